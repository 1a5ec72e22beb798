"""Pools on real masters: what administrators create, and the controller that serves it.

The backends are external ones whose addresses this module publishes, so that the controller under test is alone.
Clusters-scoped names carry the test's namespace, and everything is taken away after the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

import yaml
from yarl import URL

from inferencecache.api.kvcache import LABEL_TYPE, POLICY_KEY, TYPE_BACKENDS, policy_config_map
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers import kvcachepool
from inferencecache.controllers.kvcachepool.masters import Masters
from inferencecache.controllers.kvcachepool.observe import Surroundings
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles
from inferencecache.controllers.kvcachepool.reconciler import KVCachePoolReconciler
from inferencecache.controllers.mooncake.admin import LedgerEntry, MooncakeClients
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key, Kind, Manifest
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running
from tests.mooncake import Master

API = "worker.gpustack.ai/v1"
GIB = 1 << 30
MIB = 1 << 20
LOOK_AGAIN = timedelta(seconds=0.3)
PATIENT = timedelta(minutes=1)
"""What a busy machine may take over an answer; only tests of masters that do not answer wait less."""

K = TypeVar("K", bound=Kind)
Condition = tuple[str, str]
"""Status and reason."""


class World:
    """What there is of one test."""

    def __init__(self, client: Client, namespace: str, prefix: str = "") -> None:
        """`prefix`: of all names, where one test has several worlds."""
        self.client = client
        self.namespace = namespace
        self.prefix = prefix
        self._made: list[tuple[type[Kind], Key]] = []

    # ------------------------------------------------------------------------------------------- what somebody creates

    def named(self, name: str) -> str:
        """A name in the cluster that no other test has."""
        return f"{self.namespace}-{self.prefix}{name}"

    async def backend(
        self, name: str = "store", *, admin: str | None, client: str = "client:50051", managed: bool | None = None
    ) -> str:
        """A backend that has published its addresses, unless `admin` is None; its name.

        `managed`: whether a managed one keeps a ledger; None: it is external.
        """
        full = self.named(name)
        endpoints = [{"name": "Client", "address": client}, {"name": "Admin", "address": admin or "admin:9003"}]
        connection: Manifest = {"external": {"endpoints": endpoints}}
        if managed is not None:
            members = [{"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "1Gi"}]
            connection = {"managed": {"leader": {"multiTenancy": managed}, "members": members}}
        await self._create(KVCacheBackend, Key("", full), {"connection": connection})
        if admin is not None:
            await self.publish(name, endpoints)
        return full

    async def publish(self, name: str, endpoints: list[Manifest]) -> None:
        """Be the backend controller."""
        await self.client.patch_status(KVCacheBackend.resource, Key("", self.named(name)), {"endpoints": endpoints})

    async def pool(self, name: str = "pool", backend: str = "store", total: str = "1Gi", **more: Any) -> Key:
        """A pool on a backend."""
        spec = {"backends": [self.named(backend)], "quota": {"total": total}, **more}
        return await self._create(KVCachePool, Key("", self.named(name)), spec)

    async def binding(self, name: str, *, domain: str, ceiling: str = "16Mi", pool: str = "pool") -> Key:
        """A Binding in the test's namespace."""
        spec = {
            "poolRef": {"name": self.named(pool)},
            "quota": {"ceiling": ceiling},
            "domain": {"name": f"{self.prefix}{domain}", "blockSize": 64, "dtype": "bfloat16"},
        }
        return await self._create(KVCachePoolBinding, Key(self.namespace, f"{self.prefix}{name}"), spec)

    async def ceiling(self, binding: Key, ceiling: str) -> None:
        """Change what a Binding asks for."""
        await self.client.patch(KVCachePoolBinding.resource, binding, {"spec": {"quota": {"ceiling": ceiling}}})

    async def use(self, binding: Key, *workloads: str) -> None:
        """Be the workloads that use a Binding; without any, nobody does any more."""
        used = [{"kind": "ModelDeployment", "namespace": "", "name": name} for name in workloads]
        await self.client.patch_status(KVCachePoolBinding.resource, binding, {"usedBy": used or None})

    async def delete(self, kind: type[Kind], *keys: Key) -> None:
        """Ask for their deletion."""
        for key in keys:
            await self.client.delete(kind.resource, key)

    async def force_away(self, kind: type[Kind], key: Key) -> None:
        """Delete an object whatever holds it."""
        with suppress(NotFound):
            await self.client.patch(kind.resource, key, {"metadata": {"finalizers": None}})
            await self.client.delete(kind.resource, key)
        with suppress(NotFound):
            await self.client.patch(kind.resource, key, {"metadata": {"finalizers": None}})

    @property
    def made(self) -> list[tuple[type[Kind], Key]]:
        """All that was created."""
        return list(self._made)

    async def clean(self) -> None:
        """Take everything away."""
        for kind, key in reversed(self._made):
            await self.force_away(kind, key)

    async def _create(self, kind: type[Kind], key: Key, spec: Manifest) -> Key:
        metadata = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})}
        await self.client.create({"apiVersion": API, "kind": kind.resource.kind, "metadata": metadata, "spec": spec})
        self._made.append((kind, key))
        return key

    # ----------------------------------------------------------------------------------------------------- what it says

    async def conditions(self, kind: type[Kind], key: Key) -> dict[str, Condition]:
        """Status and reason by type, of a pool or a Binding; `phase` is among them. Empty if it is gone."""
        status = await self.status(kind, key)
        found = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions", ())}
        return {**found, "phase": (status.get("phase", ""), "")}

    async def says(self, kind: type[Kind], key: Key, *, seconds: float = 60, **wanted: Condition | str) -> None:
        """Wait until an object says all of this; a text is a phase."""
        expected = {name: (value, "") if isinstance(value, str) else value for name, value in wanted.items()}
        await eventually(
            lambda: self.conditions(kind, key),
            lambda seen: {name: seen.get(name) for name in expected} == expected,
            seconds=seconds,
        )

    async def message(self, kind: type[Kind], key: Key, condition: str) -> str:
        """What a condition says to people."""
        status = await self.status(kind, key)
        return next((str(one["message"]) for one in status.get("conditions", ()) if one["type"] == condition), "")

    async def status(self, kind: type[Kind], key: Key) -> Manifest:
        """The whole status; empty if the object is gone."""
        try:
            return (await self.client.get_manifest(kind.resource, key)).get("status") or {}
        except NotFound:
            return {}

    async def gone(self, kind: type[Kind], *keys: Key, seconds: float = 60) -> None:
        """Wait until none of them is there."""

        async def left() -> list[Key]:
            return [key for key in keys if await self._is_there(kind, key)]

        await eventually(left, lambda found: not found, seconds=seconds)

    async def finalizers(self, kind: type[Kind], key: Key) -> list[str]:
        """The finalizers of an object."""
        return list((await self.client.get_manifest(kind.resource, key))["metadata"].get("finalizers") or ())

    async def users(self, backend: str = "store") -> list[str]:
        """The names of the pools that a backend says it is used by."""
        status = await self.status(KVCacheBackend, Key("", self.named(backend)))
        return [f"{user['kind']}/{user['namespace']}/{user['name']}" for user in status.get("usedBy", ())]

    async def document(self, backend: str = "store") -> dict[str, int]:
        """Bytes by tenant in the policy document of a backend."""
        read = yaml.safe_load(await self.document_text(backend))
        assert read["version"] == 1
        return {row["name"]: row["quota"] for row in read["tenants"]}

    async def document_text(self, backend: str = "store") -> str:
        """The policy document of a backend."""
        key = Key(self.namespace, policy_config_map(self.named(backend)))
        return (await self.client.get(ConfigMap, key)).data[POLICY_KEY]

    async def versions(self, backend: str = "store") -> dict[str, str]:
        """The resourceVersion of everything there is."""
        found = {}
        for name, (kind, key) in self._named(backend).items():
            with suppress(NotFound):
                live = await self.client.get_manifest(kind.resource, key)
                found[name] = live["metadata"]["resourceVersion"]
        return found

    @property
    def names(self) -> frozenset[str]:
        """Kinds and keys of all that was created, the policy document with it."""
        return frozenset(self._named("store"))

    def _named(self, backend: str) -> dict[str, tuple[type[Kind], Key]]:
        document = Key(self.namespace, policy_config_map(self.named(backend)))
        return {f"{kind.__name__} {key}": (kind, key) for kind, key in [*self._made, (ConfigMap, document)]}

    async def _is_there(self, kind: type[Kind], key: Key) -> bool:
        try:
            await self.client.get_manifest(kind.resource, key)
        except NotFound:
            return False
        return True


class Masterly(MooncakeClients):
    """Connections to masters that write down what is asked, as method and path.

    `only`: an address; what is asked of others, as for pools of other tests, is not written down.
    """

    def __init__(self, *, only: str = "", timeout: timedelta = PATIENT) -> None:
        super().__init__(timeout=timeout)
        self.asked: list[str] = []
        self._only = only

    async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
        if self._only in ("", url.raw_authority):
            self.asked.append(f"{method} {url.raw_path_qs}")
        return await super().request(method, url, **more)

    @property
    def writes(self) -> list[str]:
        """What was asked that is no question."""
        return [one for one in self.asked if not one.startswith("GET")]


class Held(MooncakeClients):
    """Connections to masters on which passes can be held at their first question."""

    def __init__(self) -> None:
        super().__init__(timeout=PATIENT)
        self._go = asyncio.Event()
        self._go.set()
        self._waiting = asyncio.Event()

    async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
        if (method, url.path) == ("GET", "/api/v1/tenant_quotas") and not self._go.is_set():
            self._waiting.set()
            await self._go.wait()
        return await super().request(method, url, **more)

    @asynccontextmanager
    async def between_passes(self) -> AsyncIterator[None]:
        """While inside, the next pass waits to begin, and the one before is over; there is one master, and one pool."""
        self._waiting.clear()
        self._go.clear()
        async with asyncio.timeout(60):
            await self._waiting.wait()
        try:
            yield
        finally:
            self._go.set()


class Noted(Client):
    """A client that writes down what it asks, as method and path."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.connection, field_manager="inferencecache-controller")
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        self.asked.append(f"{method} {path}")
        return await super().request(method, path, **more)


@asynccontextmanager
async def operator(
    world: World,
    *,
    client: Client | None = None,
    masters: MooncakeClients | None = None,
    look_again: timedelta = LOOK_AGAIN,
    shared_for: timedelta = timedelta(),
) -> AsyncIterator[Manager]:
    """The controller, which looks again soon and shares nothing unless it is told to."""
    manager = quiet_manager(client or operator_client(world.client))
    masters = masters or MooncakeClients(timeout=PATIENT)
    manager.add(masters.run, name="mooncake-clients")
    kvcachepool.register(
        manager, namespace=world.namespace, masters=masters, reobserved=look_again, shared_for=shared_for
    )
    async with running(manager):
        yield manager


class Driven:
    """A controller whose passes the test calls, with caches of its own."""

    def __init__(self, world: World, client: Client, masters: MooncakeClients) -> None:
        self._world = world
        self._cache = Cache(world.client)  # what fills it is no part of a pass
        self._masters = masters
        surroundings = Surroundings(client, self._cache)
        labels = {LABEL_TYPE: TYPE_BACKENDS}
        documents = self._cache.informer(ConfigMap, namespace=world.namespace, labels=labels)
        self._informers: list[Informer[Any]] = [
            surroundings.pools,
            surroundings.bindings,
            surroundings.backends,
            documents,
        ]
        self.reconciler = KVCachePoolReconciler(
            client=client,
            surroundings=surroundings,
            policies=PolicyFiles(client, self._cache, world.namespace),
            masters=Masters(masters, lambda _: None, window=0),
        )

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._cache.run())
        self._connected = asyncio.create_task(self._masters.run())
        await self._cache.wait_synced(timedelta(seconds=60))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connected.cancel()
        await asyncio.wait([self._connected])
        await self.stop_looking()

    async def catch_up(self, versions: dict[str, str]) -> None:
        """Wait until the caches hold just these of the world's objects, as `World.versions` tells them."""

        async def cached() -> dict[str, str]:
            found = [one for informer in self._informers for one in informer.list()]
            held = {f"{one.resource.kind} {Key.of(one)}": one.metadata.resource_version for one in found}
            return {name: version for name, version in held.items() if name in self._world.names}

        await eventually(cached, lambda seen: seen == versions)

    async def stop_looking(self) -> None:
        """From now on the caches stay as they are, as those of a controller that lost its watches."""
        self._following.cancel()
        await asyncio.wait([self._following])


async def ledger(master: Master) -> dict[str, LedgerEntry]:
    """The ledger of a master, read by a client of its own."""
    clients = MooncakeClients(timeout=PATIENT)
    closing = asyncio.create_task(clients.run())
    try:
        await asyncio.sleep(0)
        return await clients.at(master.admin).quotas()
    finally:
        closing.cancel()
        await asyncio.wait([closing])


async def requested(master: Master) -> dict[str, int]:
    """Bytes by tenant that somebody registered on a master."""
    entries = (await ledger(master)).values()
    return {entry.tenant_id: entry.requested_quota_bytes for entry in entries if entry.has_explicit_policy}


async def by_hand(master: Master, tenant: str, quota: int) -> None:
    """Register a tenant as somebody with curl would."""
    clients = MooncakeClients(timeout=PATIENT)
    closing = asyncio.create_task(clients.run())
    try:
        await asyncio.sleep(0)
        await clients.at(master.admin).put_quota(tenant, quota)
    finally:
        closing.cancel()
        await asyncio.wait([closing])


def holds(master: Master, tenants: dict[str, int]) -> Callable[[], Awaitable[bool]]:
    """Whether a master's ledger has exactly these."""

    async def look() -> bool:
        return await requested(master) == tenants

    return look
