"""Gathering what the checks look at: everything at once, within one deadline.

Nothing here fails. What could not be read, resolved or reached becomes part of the observations, with the reason.
Pods and their Events are read only if some backend selects Pods at all, so a small role is enough where there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.doctor.dialling import dial_target
from inferencecache.doctor.events import INJECTED, NO_MATCH, NOT_INJECTED, CoreEvent, NewEvent, PodEvent, merged
from inferencecache.doctor.installation import Installation, WebhookConfiguration, look
from inferencecache.doctor.reading import NOT_READ, Read, Reader
from inferencecache.doctor.server import NO_TOKEN, Address, ServerAnswers, Tls, Token, ask, dial, discover
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import K

_DIALS_AT_ONCE: Final = 32
_LONGEST_DIAL: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What to look at, and how.

    Attributes:
        namespace: to read namespaced kinds in; empty for all. Cluster-scoped kinds are then left out.
        config_only: look at objects alone; no server is asked, and no store is dialled.
        address: of the server; None to find it by its Service.
        token: for the snapshot.
        tls: how to speak to the gRPC port; None is plaintext.
        webhooks: the configurations that this version ships.
        seconds: for everything together.
    """

    namespace: str = ""
    config_only: bool = False
    address: Address | None = None
    token: Token = NO_TOKEN
    tls: Tls | None = None
    webhooks: tuple[WebhookConfiguration, ...] = ()
    seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All there is to know. None means that it was not asked for.

    `dials` has an entry per address that was dialled: why it failed, empty if it did not.
    """

    now: datetime
    server: ServerAnswers | None = None
    backends: Read[CacheBackend] = NOT_READ
    policies: Read[CachePolicy] = NOT_READ
    tenants: Read[CacheTenant] = NOT_READ
    pods: Read[Pod] | None = None
    events: tuple[PodEvent, ...] = ()
    event_failures: tuple[str, ...] = ()
    dials: Mapping[str, str] = field(default_factory=dict)
    stores: Read[KVCacheBackend] | None = None
    pools: Read[KVCachePool] | None = None
    bindings: Read[KVCachePoolBinding] = NOT_READ
    installation: Installation | None = None

    @property
    def caches_installed(self) -> bool:
        """Whether the half of caches and their server is there; if neither half is, it is the one that is missed."""
        return self.backends.served or not self.bindings.served


async def observe(client: Client, scope: Scope) -> Observations:
    """Look at an installation. Takes `scope.seconds` at most, give or take the last question."""
    return await _Observer(client, scope).everything()


class _Observer:
    def __init__(self, client: Client, scope: Scope) -> None:
        self._client = client
        self._scope = scope
        self._reader = Reader(client, scope.seconds)

    async def everything(self) -> Observations:
        async with asyncio.TaskGroup() as group:
            backends = group.create_task(self._read(CacheBackend))
            server = group.create_task(self._server())
            policies = group.create_task(self._read(CachePolicy))
            tenants = group.create_task(self._read(CacheTenant))
            bindings = group.create_task(self._read(KVCachePoolBinding))
            pods = group.create_task(self._after(backends, self._pods))
            dials = group.create_task(self._after(backends, self._dials))
            events = group.create_task(self._after(backends, self._events))
            stores = group.create_task(self._read_everywhere(KVCacheBackend))
            pools = group.create_task(self._read_everywhere(KVCachePool))
            installation = group.create_task(self._installation())
        told, failures = events.result()
        return Observations(
            now=datetime.now(UTC),
            server=server.result(),
            backends=backends.result(),
            policies=policies.result(),
            tenants=tenants.result(),
            pods=pods.result(),
            events=told,
            event_failures=failures,
            dials=dials.result(),
            stores=stores.result(),
            pools=pools.result(),
            bindings=bindings.result(),
            installation=installation.result(),
        )

    @staticmethod
    async def _after(
        backends: asyncio.Task[Read[CacheBackend]], follow: Callable[[tuple[CacheBackend, ...]], Awaitable[T]]
    ) -> T:
        return await follow((await backends).items)

    async def _read(self, kind: type[K], fields: str = "") -> Read[K]:
        return await self._reader.all(kind, namespace=self._scope.namespace, fields=fields)

    async def _read_everywhere(self, kind: type[K]) -> Read[K] | None:
        """A cluster-scoped kind, which is outside of a scope that is one namespace."""
        return None if self._scope.namespace else await self._read(kind)

    async def _installation(self) -> Installation | None:
        """Webhook configurations and kinds, which are the cluster's too."""
        return None if self._scope.namespace else await look(self._reader, self._scope.webhooks)

    async def _server(self) -> ServerAnswers | None:
        scope = self._scope
        if scope.config_only:
            return None
        address = scope.address
        if address is None:
            try:
                async with asyncio.timeout(self._reader.left):
                    address = await discover(self._client)
            except (KubeError, TimeoutError) as error:
                return ServerAnswers(None, discovery=str(error) or self._reader.late)
        return await ask(address, scope.token.value, scope.tls, self._reader.left)

    async def _pods(self, backends: tuple[CacheBackend, ...]) -> Read[Pod] | None:
        return await self._read(Pod) if _any_selects(backends) else None

    async def _events(self, backends: tuple[CacheBackend, ...]) -> tuple[tuple[PodEvent, ...], tuple[str, ...]]:
        reasons = (NO_MATCH, INJECTED, NOT_INJECTED) if _any_selects(backends) else (NO_MATCH,)
        async with asyncio.TaskGroup() as group:
            core = [group.create_task(self._read(CoreEvent, f"reason={reason}")) for reason in reasons]
            new = [group.create_task(self._read(NewEvent, f"reason={reason}")) for reason in reasons]
        reads = [task.result() for task in core], [task.result() for task in new]
        events = merged(
            (event for read in reads[0] for event in read.items), (event for read in reads[1] for event in read.items)
        )
        failures = dict.fromkeys(
            [f"core/v1: {read.failure}" for read in reads[0] if read.failure]
            + [f"events.k8s.io/v1: {read.failure}" for read in reads[1] if read.failure]
        )
        return events, tuple(failures)

    async def _dials(self, backends: tuple[CacheBackend, ...]) -> dict[str, str]:
        if self._scope.config_only:
            return {}
        endpoints = {backend.status.endpoint for backend in backends if backend.spec.remote_storage is not None}
        at_once = asyncio.Semaphore(_DIALS_AT_ONCE)

        async def one(endpoint: str) -> str:
            target = dial_target(endpoint)
            if target is None:
                return "it is no address: host:port is needed"
            async with at_once:
                return await dial(*target, min(self._reader.left, _LONGEST_DIAL))

        async with asyncio.TaskGroup() as group:
            tasks = {endpoint: group.create_task(one(endpoint)) for endpoint in endpoints if endpoint}
        return {endpoint: task.result() for endpoint, task in tasks.items()}


def _any_selects(backends: Iterable[CacheBackend]) -> bool:
    return any(backend.selector for backend in backends)
