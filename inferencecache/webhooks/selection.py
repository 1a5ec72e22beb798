"""What the webhooks look up in the cluster, and when that may come from a cache.

**CacheBackends for Pod admission** come from the informer, so that admitting a Pod costs no API request (decision A13).
A Pod is admitted once and never asked about again, so a backend that the informer does not hold yet would leave it
unwired for good. A live list of the Pod's namespace is therefore made where the informer may lag:

* its watch is not open. A quiet collection is silent for up to a minute between two bookmarks, so silence alone says
  nothing; what counts is whether a change would arrive as soon as it is sent, and, as a bound on connections that died
  without a word, silence longer than any bookmark takes;
* this replica saw a CacheBackend of that namespace being admitted moments ago, by either webhook: the usual
  `kubectl apply` of a backend together with its engines. One that only other replicas saw reaches the informer in the
  time a watch event takes;
* a CacheBackend of that namespace came, went or got another spec or address moments ago: more of that kind may be on
  its way, and a backend without its address would leave the Pod unwired. Other news in a status does not count, or
  engines that report would have every Pod looked up.

If the live list fails or takes too long, the informer's content is used after all: old knowledge beats none.

**Siblings for validation** are always read live, and a failed look-up refuses the request (spec 02 §2.4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import structlog

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.model import CustomObject
from inferencecache.kube.errors import KubeError
from inferencecache.kube.informer import Change

log = structlog.get_logger(__name__)

LIVE_LIST_TIMEOUT: Final = timedelta(seconds=1)
SIBLING_TIMEOUT: Final = timedelta(seconds=5)
SETTLING: Final = timedelta(seconds=5)
"""How long after an admission, or after news of a backend, the informer may be missing something of its namespace."""
LONGEST_SILENCE: Final = timedelta(seconds=90)
"""Bookmarks come about once a minute; a watch without any for this long is not to be believed."""

T = TypeVar("T", bound=CustomObject)


class LookupFailed(Exception):
    """The backends of a namespace are unknown: nothing is cached, and the live list failed."""


class BackendReader(Protocol):
    """Where Pod admission reads CacheBackends."""

    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        """The backends of a namespace, fresh enough to wire a Pod by. Raises `LookupFailed`."""

    def cached(self, namespace: str) -> Sequence[CacheBackend]:
        """The backends of a namespace as far as known, without asking anybody."""

    def admitted(self, namespace: str) -> None:
        """A backend of this namespace is just being admitted, and this replica has a part in it."""


class SiblingReader(Protocol):
    """Where validation reads the other objects of a namespace."""

    async def siblings(self, kind: type[T], namespace: str) -> Sequence[T]:
        """All objects of a kind in a namespace, read live. Raises `KubeError` or `TimeoutError`."""


class BackendInformer(Protocol):
    """What is asked of the shared informer of CacheBackends (`inferencecache.kube.informer.Informer`)."""

    @property
    def synced(self) -> bool: ...
    def connected(self, now_monotonic: float) -> bool: ...
    def silent_for(self, now_monotonic: float) -> float: ...
    def list(self, namespace: str = "") -> list[CacheBackend]: ...


class Lister(Protocol):
    """What is asked of the API server (`inferencecache.kube.client.Client`)."""

    async def list(self, kind: Any, *, namespace: str = "") -> list[Any]: ...


class InformedBackends:
    """A `BackendReader` over a shared informer, with a client for the cases in which the informer may lag."""

    def __init__(
        self,
        informer: BackendInformer,
        client: Lister,
        *,
        clock: Callable[[], float] = time.monotonic,
        live_timeout: timedelta = LIVE_LIST_TIMEOUT,
        settling: timedelta = SETTLING,
    ) -> None:
        self._informer = informer
        self._client = client
        self._clock = clock
        self._live_timeout = live_timeout.total_seconds()
        self._settling = settling.total_seconds()
        self._admitted: dict[str, float] = {}

    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        """See `BackendReader`."""
        if not self._may_lag(namespace):
            return self.cached(namespace)
        try:
            async with asyncio.timeout(self._live_timeout):
                return await self._client.list(CacheBackend, namespace=namespace)
        except (KubeError, TimeoutError) as error:
            if not self._informer.synced:
                raise LookupFailed(f"listing CacheBackends in {namespace} failed: {error or 'timed out'}") from error
            log.warning("live list failed, using the cache", namespace=namespace, error=str(error) or "timed out")
            return self.cached(namespace)

    def cached(self, namespace: str) -> Sequence[CacheBackend]:
        """See `BackendReader`."""
        return self._informer.list(namespace)

    def admitted(self, namespace: str) -> None:
        """See `BackendReader`."""
        now = self._clock()
        self._admitted = {known: at for known, at in self._admitted.items() if now - at < self._settling}
        self._admitted[namespace] = now

    def changed(self, change: Change[CacheBackend]) -> None:
        """Hear of a change from the informer, and expect more of its namespace if it is one that Pods depend on."""
        old, new = change.old, change.new
        if change.initial:
            return
        if old is None or new is None or _wiring(old) != _wiring(new):
            self.admitted(change.key.namespace)

    def _may_lag(self, namespace: str) -> bool:
        now = self._clock()
        return (
            not self._informer.synced
            or not self._informer.connected(now)
            or self._informer.silent_for(now) > LONGEST_SILENCE.total_seconds()
            or now - self._admitted.get(namespace, -self._settling) < self._settling
        )


def _wiring(backend: CacheBackend) -> tuple[int, dict[str, str], str | None, bool]:
    """What decides how a Pod is wired to a backend."""
    metadata = backend.metadata
    return metadata.generation, metadata.annotations, backend.status.endpoint, metadata.deletion_timestamp is None


class NoBackends:
    """A `BackendReader` of a process that wires no Pods."""

    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        """See `BackendReader`."""
        return self.cached(namespace)

    def cached(self, namespace: str) -> Sequence[CacheBackend]:
        """See `BackendReader`."""
        return ()

    def admitted(self, namespace: str) -> None:
        """See `BackendReader`."""


class LiveSiblings:
    """A `SiblingReader` that asks the API server."""

    def __init__(self, client: Lister, *, timeout: timedelta = SIBLING_TIMEOUT) -> None:
        self._client = client
        self._timeout = timeout.total_seconds()

    async def siblings(self, kind: type[T], namespace: str) -> Sequence[T]:
        """See `SiblingReader`."""
        async with asyncio.timeout(self._timeout):
            return await self._client.list(kind, namespace=namespace)
