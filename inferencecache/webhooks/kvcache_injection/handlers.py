"""The two webhooks of Pods with a pool, between admission requests and the pure functions.

The objects behind a Binding are read live, one after the other: a Pod is injected once and keeps what it got, and Pods
with the label are few, so a cache would save little and could hand out an address or a tenant that has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.kube.errors import ApiError, KubeError, NotFound
from inferencecache.kube.resource import Key
from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.frozen import thawed
from inferencecache.webhooks.kvcache_injection.injection import Refused, inject
from inferencecache.webhooks.kvcache_injection.request import ANNOTATIONS, annotation, read_request, wants_pool
from inferencecache.webhooks.metrics import POOL_POD_ADMISSIONS
from inferencecache.webhooks.objects import MOST_CAUSES
from inferencecache.webhooks.patches import diff
from inferencecache.webhooks.pods import UnreadablePod, read_pod
from inferencecache.webhooks.review import Answer, Request, allowed, denied
from inferencecache.webhooks.validation.findings import Violation

MUTATING_PATH: Final = "/mutate-kvcache--v1-pod"
VALIDATING_PATH: Final = "/validate-kvcache--v1-pod"
LOOKUP_TIMEOUT: Final = timedelta(seconds=5)

K = TypeVar("K", bound=CustomObject)


class ChainReader(Protocol):
    """Where the objects behind a Binding are read."""

    async def chain(self, namespace: str, binding: str) -> Chain:
        """The chain as far as it exists, read live. Raises `KubeError` or `TimeoutError`."""


class Getter(Protocol):
    """What is asked of the API server (`inferencecache.kube.client.Client`)."""

    async def get(self, kind: Any, key: Key) -> Any: ...


class LiveChains:
    """A `ChainReader` that asks the API server."""

    def __init__(self, client: Getter, *, timeout: timedelta = LOOKUP_TIMEOUT) -> None:
        self._client = client
        self._timeout = timeout.total_seconds()

    async def chain(self, namespace: str, binding: str) -> Chain:
        """See `ChainReader`."""
        async with asyncio.timeout(self._timeout):
            found = await self._get(KVCachePoolBinding, Key(namespace, binding))
            pool = await self._get(KVCachePool, Key("", found.pool)) if found is not None and found.pool else None
            name = pool.backend if pool is not None else None
            backend = await self._get(KVCacheBackend, Key("", name)) if name else None
            return Chain(found, pool, backend)

    async def _get(self, kind: type[K], key: Key) -> K | None:
        try:
            found: K = await self._client.get(kind, key)
        except NotFound:
            return None
        return found


@dataclass(frozen=True)
class PoolInjection:
    """Both webhooks; `dtype_owned` is the Setting that hands the Binding's dtype to engines."""

    chains: ChainReader
    dtype_owned: bool = True

    @property
    def paths(self) -> Mapping[str, Callable[[Request], Awaitable[Answer]]]:
        """The webhooks by their paths."""
        return {MUTATING_PATH: self.mutate, VALIDATING_PATH: self.keep_frozen}

    async def mutate(self, request: Request) -> Answer:
        """Give a new Pod its pool, or refuse it. Pods without the label pass as they are."""
        if request.operation != "CREATE":
            return allowed()
        try:
            pod, view = read_pod(request.object)
        except UnreadablePod as error:
            return _counted("refused", "unreadable", denied(400, "BadRequest", f"the Pod cannot be read: {error}"))
        annotations = view.metadata.annotations
        if not wants_pool(view.metadata.labels):
            return allowed()
        namespace = view.metadata.namespace or request.namespace
        wanted, _ = read_request(annotations)
        try:
            chain = await self.chains.chain(namespace, wanted.binding) if wanted.binding else Chain()
            injected = inject(pod, annotations, namespace, chain, dtype_owned=self.dtype_owned)
        except (KubeError, TimeoutError) as error:
            return _counted("refused", "lookup_failed", _lookup_failed(namespace, wanted.binding, error))
        except Refused as refused:
            name = view.metadata.name or view.metadata.generate_name
            return _counted("refused", _reason(refused.violations[0]), _refusal(name, "is not given its pool", refused))
        return _counted("injected", "", allowed(patch=diff(pod, injected.pod), warnings=injected.warnings))

    async def keep_frozen(self, request: Request) -> Answer:
        """Refuse an update of what was decided at creation; what cannot be read is not held up by this."""
        try:
            old, new = msgspec.json.decode(request.old_object), msgspec.json.decode(request.object)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return allowed(f"the Pod cannot be read, so nothing of it is held: {error}")
        violations = thawed(old, new)
        if request.operation != "UPDATE" or not violations:
            return allowed()
        return _refusal(request.name, "keeps its pool", Refused(violations))


def _counted(outcome: str, reason: str, answer: Answer) -> Answer:
    POOL_POD_ADMISSIONS.labels(outcome, reason).inc()
    return answer


def _reason(violation: Violation) -> str:
    if violation.field == annotation(keys.ANNOTATION_BINDING):
        return "binding"
    return "annotations" if violation.field.startswith(ANNOTATIONS) else "container"


def _refusal(name: str, what: str, refused: Refused) -> Answer:
    told = Refused(refused.violations[:MOST_CAUSES])
    causes = [finding.cause for finding in told.violations]
    more = len(refused.violations) - len(causes)
    and_more = f"; and {more} more" if more else ""
    return denied(422, "Invalid", f'Pod "{name}" {what}: {told}{and_more}', kind="Pod", name=name, causes=causes)


def _lookup_failed(namespace: str, binding: str, error: Exception) -> Answer:
    told = f"reading KVCachePoolBinding {namespace}/{binding} and its pool failed: {error or 'timed out'}; try again"
    if isinstance(error, ApiError):
        return denied(error.status, error.reason or "InternalError", told)
    return denied(504, "Timeout", told)
