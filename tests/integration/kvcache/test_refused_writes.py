"""One namespace's API server policy, or another operator's webhook, refuses what is written there: who feels it."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.client import Client
from inferencecache.kube.errors import Forbidden
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, World, holds, operator
from tests.mooncake import Master, Store


class Refused(Client):
    """A client whose writes to one path are refused."""

    path = "none"

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if method != "GET" and path.endswith(self.path):
            raise Forbidden("a policy of that namespace refuses it", status=403)
        return await super().request(method, path, **more)


def refused(world: World, path: str) -> Refused:
    client = Refused(world.client.connection, field_manager="inferencecache-controller")
    client.path = path
    return client


@pytest.fixture
async def pools(world: World, master: Master) -> World:
    """Two pools on one master, with a Binding each that nothing is wrong with, and one that takes no writes."""
    await world.backend(admin=master.admin)
    for name in ("pool", "sibling"):
        await world.pool(name)
        await world.binding(f"of-{name}", domain=name, pool=name)
    await world.binding("refusing", domain="gamma")
    return world


async def all_ready(world: World, *pools: str) -> None:
    """Wait until these pools, and their Bindings that nothing is wrong with, are ready."""
    for kind, key in world.made:
        if key.name in {world.named(name) for name in pools} | {f"of-{name}" for name in pools}:
            await world.says(kind, key, phase="Ready")


async def test_a_binding_that_takes_no_status_keeps_its_pool_and_its_siblings_from_nothing(
    pools: World, master: Master
) -> None:
    with Store(master, segment=64 * MIB):
        async with operator(pools, client=refused(pools, "/refusing/status")):
            await all_ready(pools, "pool", "sibling")
            assert await holds(master, dict.fromkeys(("pool", "sibling", "gamma"), 16 * MIB))()


async def test_a_binding_that_takes_no_finalizer_gets_no_quota_says_so_and_keeps_others_from_nothing(
    pools: World, master: Master
) -> None:
    (refusing,) = (key for kind, key in pools.made if key.name == "refusing")
    with Store(master, segment=64 * MIB):
        async with operator(pools, client=refused(pools, "/kvcachepoolbindings/refusing")):
            await all_ready(pools, "pool", "sibling")
            await pools.says(KVCachePoolBinding, refusing, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
            said = await pools.message(KVCachePoolBinding, refusing, "QuotaObserved")
            assert "the finalizer cannot be put on this Binding" in said
            assert "a policy of that namespace refuses it" in said
            assert await holds(master, dict.fromkeys(("pool", "sibling"), 16 * MIB))()
        async with operator(pools):
            await eventually(holds(master, dict.fromkeys(("pool", "sibling", "gamma"), 16 * MIB)), bool)
            await pools.says(KVCachePoolBinding, refusing, phase="Ready")


async def test_a_pool_that_takes_no_finalizer_keeps_its_sibling_from_nothing(pools: World, master: Master) -> None:
    path = f"/kvcachepools/{pools.named('pool')}"
    with Store(master, segment=64 * MIB):
        async with operator(pools, client=refused(pools, path)):
            await all_ready(pools, "sibling")
            assert await holds(master, {"sibling": 16 * MIB})()
        async with operator(pools):
            await all_ready(pools, "pool", "sibling")


async def test_a_pool_says_what_holds_it_though_a_binding_takes_no_status(pools: World, master: Master) -> None:
    (pool,) = (key for kind, key in pools.made if kind is KVCachePool and key.name == pools.named("pool"))
    (refusing,) = (key for kind, key in pools.made if key.name == "refusing")
    async with operator(pools):
        await eventually(holds(master, dict.fromkeys(("pool", "sibling", "gamma"), 16 * MIB)), bool)
    await pools.use(refusing, "llm")
    await pools.delete(KVCachePoolBinding, refusing)
    await pools.delete(KVCachePool, pool)
    async with operator(pools, client=refused(pools, "/refusing/status")):
        await pools.says(KVCachePool, pool, Releasable=("False", "HeldByBindings"))
    async with operator(pools):
        await pools.says(KVCachePoolBinding, refusing, Releasable=("False", "HeldByWorkloads"))


async def test_a_binding_that_keeps_its_finalizer_keeps_no_other_from_leaving(pools: World, master: Master) -> None:
    bindings = [key for kind, key in pools.made if kind is KVCachePoolBinding]
    async with operator(pools):
        await eventually(holds(master, dict.fromkeys(("pool", "sibling", "gamma"), 16 * MIB)), bool)
    await pools.delete(KVCachePoolBinding, *bindings)
    async with operator(pools, client=refused(pools, "/kvcachepoolbindings/refusing")):
        await pools.gone(KVCachePoolBinding, *(key for key in bindings if key.name != "refusing"))
        for name in ("pool", "sibling"):
            (key,) = (key for kind, key in pools.made if kind is KVCachePool and key.name == pools.named(name))
            await pools.says(KVCachePool, key, QuotaWithinTotal=("True", "WithinTotal"))
        assert await holds(master, {})()
    async with operator(pools):
        await pools.gone(KVCachePoolBinding, *bindings)
