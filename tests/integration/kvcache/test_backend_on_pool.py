"""A CacheBackend on a pool, with a real API server, the real controllers of both halves and a real master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.api.kvcache import FINALIZER as HELD
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers import register
from inferencecache.controllers.cachebackend.pool_claims import FINALIZER, Pools
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import TransportError
from inferencecache.kube.kinds import Deployment, Service
from inferencecache.kube.resource import Key, Manifest
from inferencecache.webhooks.injection import Outcome, inject
from inferencecache.webhooks.pods import view_of
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, World, operator
from tests.integration.operating import quiet_manager, running
from tests.integration.operator_process import condition, find, stays
from tests.mooncake import Master, Store

ADDRESS = "client:50051"


def ours(client: Client) -> Client:
    return Client(client.connection, field_manager="inferencecache-controller")


@asynccontextmanager
async def backends_of(client: Client) -> AsyncIterator[None]:
    """The half of CacheBackends, by a client of its own."""
    manager = quiet_manager(client)
    register(manager, registries=load_adapters())
    async with running(manager):
        yield


@pytest.fixture
async def served(world: World, master: Master) -> AsyncIterator[World]:
    """A served pool with two Bindings, and both halves at work."""
    await world.backend(admin=master.admin)
    await world.pool()
    await world.binding("team-a", domain="default")
    await world.binding("team-b", domain="chat")
    with Store(master, segment=64 * MIB):
        async with (
            operator(world),
            backends_of(ours(world.client)),
        ):
            yield world


def storage(binding: str) -> Manifest:
    return {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": binding}}


async def born(world: World, binding: str = "team-a", **spec: Any) -> Key:
    """A backend on a Binding's pool."""
    key = Key(world.namespace, "kv")
    selector = {"matchLabels": {"app": "engine"}}
    spec = {"runtime": "VLLM", "remoteStorage": storage(binding), "engineSelector": selector, **spec}
    metadata = {"name": key.name, "namespace": key.namespace}
    api = CacheBackend.resource.api_version
    await world.client.create({"apiVersion": api, "kind": "CacheBackend", "metadata": metadata, "spec": spec})
    return key


async def says(world: World, key: Key, status: str, reason: str) -> str:
    """Wait for a backend's Ready; its message."""
    seen = await eventually(lambda: condition(world.client, key), lambda seen: seen[:2] == (status, reason))
    return seen[2]


async def users(world: World, binding: str) -> list[str]:
    """Who uses a Binding."""
    status = await world.status(KVCachePoolBinding, Key(world.namespace, binding))
    return [f"{one['kind']}/{one['namespace']}/{one['name']}" for one in status.get("usedBy") or []]


async def used_by(world: World, binding: str, *names: str) -> None:
    """Wait until exactly these use a Binding."""
    await eventually(lambda: users(world, binding), lambda seen: seen == list(names))


async def endpoint(world: World, key: Key) -> str:
    return (await world.client.get(CacheBackend, key)).status.endpoint or ""


async def finalizers(world: World, key: Key) -> list[str]:
    found = await find(world.client, CacheBackend, key)
    return (found or {"metadata": {}})["metadata"].get("finalizers") or []


async def test_it_is_ready_with_its_binding_holds_it_runs_nothing_and_wires_engines_to_the_pool(served: World) -> None:
    key = await born(served)
    await says(served, key, "True", "PoolBindingReady")
    assert await endpoint(served, key) == ADDRESS
    assert await users(served, "team-a") == ["CacheBackend//kv"]
    assert await finalizers(served, key) == [FINALIZER]
    for kind in (Deployment, Service):
        assert await find(served.client, kind, key) is None
    live = await served.client.get(CacheBackend, key)
    pod = {"metadata": {"labels": {"app": "engine"}}, "spec": {"containers": [{"name": "vllm", "image": "vllm:1"}]}}
    done = inject(pod, view_of(pod), served.namespace, [live], load_adapters()[0], Settings())
    assert done.outcome is Outcome.WIRED
    assert {"name": "LMCACHE_REMOTE_URL", "value": f"mooncakestore://{ADDRESS}"} in done.pod["spec"]["containers"][0][
        "env"
    ]

    async def versions() -> list[Any]:
        found = [await find(served.client, CacheBackend, key)]
        found.append(await find(served.client, KVCachePoolBinding, Key(served.namespace, "team-a")))
        return [one["metadata"]["resourceVersion"] for one in found if one is not None]

    await stays(versions, seconds=2)


async def test_the_tenant_has_to_be_the_bindings_and_lmcaches_settings_say_which_it_is(served: World) -> None:
    key = await born(served, "team-b")
    assert '"mooncake_tenant_id": "chat"' in await says(served, key, "False", "PoolTenantNotSent")
    assert await endpoint(served, key) == ""
    config = {"name": "LMCACHE_EXTRA_CONFIG", "value": json.dumps({"mooncake_tenant_id": "chat"})}
    change = {"spec": {"integration": {"engineOverrides": {"env": [config]}}}}
    await served.client.patch(CacheBackend.resource, key, change)
    await says(served, key, "True", "PoolBindingReady")
    assert await endpoint(served, key) == ADDRESS


async def test_it_holds_the_deletion_of_its_binding_and_its_own_lets_it_go(served: World) -> None:
    key, binding = await born(served), Key(served.namespace, "team-a")
    await used_by(served, "team-a", "CacheBackend//kv")
    # Its pool holds it from its own first pass on, which may come after the backend's.
    await eventually(lambda: served.finalizers(KVCachePoolBinding, binding), bool)
    await served.delete(KVCachePoolBinding, binding)
    await served.says(KVCachePoolBinding, binding, phase="Deleting", Releasable=("False", "HeldByWorkloads"))
    await says(served, key, "False", "PoolBindingDeleting")
    assert await endpoint(served, key) == ""
    await served.client.delete(CacheBackend.resource, key)
    await served.gone(CacheBackend, key)
    await served.gone(KVCachePoolBinding, binding)


async def test_the_claim_follows_the_spec_and_ends_with_it(served: World) -> None:
    key = await born(served)
    await used_by(served, "team-a", "CacheBackend//kv")
    await served.client.patch(CacheBackend.resource, key, {"spec": {"remoteStorage": storage("team-b")}})
    await used_by(served, "team-b", "CacheBackend//kv")
    await used_by(served, "team-a")
    await served.client.patch(CacheBackend.resource, key, {"spec": {"remoteStorage": None}})
    await used_by(served, "team-b")
    await eventually(lambda: finalizers(served, key), lambda found: found == [])
    await eventually(lambda: endpoint(served, key), lambda seen: seen == "")


async def test_claims_of_others_survive_its_coming_and_going(served: World) -> None:
    await served.use(Key(served.namespace, "team-a"), "chat", "zeta")
    others = ["ModelDeployment//chat", "ModelDeployment//zeta"]
    key = await born(served)
    await used_by(served, "team-a", "CacheBackend//kv", *others)
    await served.client.delete(CacheBackend.resource, key)
    await served.gone(CacheBackend, key)
    assert await users(served, "team-a") == others


async def test_a_binding_that_comes_later_is_claimed_when_it_comes(served: World) -> None:
    key = await born(served, "team-c")
    await says(served, key, "False", "PoolBindingNotFound")
    await served.binding("team-c", domain="late")
    await used_by(served, "team-c", "CacheBackend//kv")


async def test_a_binding_whose_deletion_a_cache_has_not_seen_yet_is_not_claimed(world: World) -> None:
    binding = await world.binding("team-a", domain="default")
    await world.client.patch(KVCachePoolBinding.resource, binding, {"metadata": {"finalizers": [HELD]}})
    key = await born(world)
    cache = Cache(world.client)
    pools = Pools(ours(world.client), cache)
    following = asyncio.create_task(cache.run())
    await cache.wait_synced(timedelta(seconds=60))
    following.cancel()
    await asyncio.wait([following])
    await world.delete(KVCachePoolBinding, binding)
    await pools.hold(await world.client.get(CacheBackend, key))
    assert await users(world, "team-a") == []
    await pools.let_go(await world.client.get(CacheBackend, key))
    await world.client.delete(CacheBackend.resource, key)


# ----------------------------------------------------------------------------------------------------------- crashes


@dataclass
class Life:
    """How many writes a process still makes."""

    left: int

    @property
    def over(self) -> bool:
        return self.left < 0


class MortalClient(Client):
    """Dies before a write, and writes nothing from then on."""

    life = Life(0)

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if method != "GET":
            self.life.left -= 1
            if self.life.over:
                raise TransportError(f"died before {method} {path}")
        return await super().request(method, path, **more)


@asynccontextmanager
async def dies_after(world: World, writes: int) -> AsyncIterator[Life]:
    """The half of CacheBackends, which dies before a write of one of them."""
    client = MortalClient(world.client.connection, field_manager="inferencecache-controller")
    client.life = Life(writes)
    async with backends_of(client):
        yield client.life


async def is_over(life: Life) -> bool:
    return life.over


async def promised(world: World, key: Key) -> None:
    """Whoever stands in a Binding will take himself out of it."""
    if await users(world, "team-a"):
        assert await finalizers(world, key) == [FINALIZER]


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_death_before_any_write_of_its_coming_leaves_no_claim_without_a_promise(
    world: World, writes: int
) -> None:
    await world.binding("team-a", domain="default")
    async with dies_after(world, writes) as life:
        key = await born(world)
        await eventually(lambda: is_over(life), bool)
    await promised(world, key)
    async with backends_of(ours(world.client)):
        await used_by(world, "team-a", "CacheBackend//kv")
        await says(world, key, "False", "PoolNotServed")
        await world.client.delete(CacheBackend.resource, key)
        await world.gone(CacheBackend, key)
    assert await users(world, "team-a") == []


@pytest.mark.parametrize("writes", [0, 1])
async def test_death_before_any_write_of_its_going_leaves_the_rest_to_the_next(world: World, writes: int) -> None:
    await world.binding("team-a", domain="default")
    async with backends_of(ours(world.client)):
        key = await born(world)
        await says(world, key, "False", "PoolNotServed")
    async with dies_after(world, writes) as life:
        await world.client.delete(CacheBackend.resource, key)
        await eventually(lambda: is_over(life), bool)
    await promised(world, key)
    assert await finalizers(world, key) == [FINALIZER]
    async with backends_of(ours(world.client)):
        await world.gone(CacheBackend, key)
    assert await users(world, "team-a") == []


async def test_where_the_kinds_of_pools_are_not_installed_a_backend_says_so_and_can_be_deleted() -> None:
    with ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="test")
            await install_crds(client, [crd for crd in crds() if crd["spec"]["names"]["kind"] == "CacheBackend"])
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alone"}})
            world = World(client, "alone")
            async with backends_of(ours(client)):
                key = await born(world)
                await says(world, key, "False", "PoolBindingNotFound")
                await client.delete(CacheBackend.resource, key)
                await world.gone(CacheBackend, key)


async def test_a_binding_that_cannot_be_read_holds_no_backend_that_is_on_another(served: World) -> None:
    key = await born(served)
    await used_by(served, "team-a", "CacheBackend//kv")
    await served.ceiling(Key(served.namespace, "team-b"), "1e101")
    await served.client.delete(CacheBackend.resource, key)
    await eventually(lambda: find(served.client, CacheBackend, key), lambda seen: seen is None)
    await used_by(served, "team-a")
