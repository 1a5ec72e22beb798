"""Objects of the pool's kinds of which a part cannot be read, stored while no webhook looked: whom they concern."""

from __future__ import annotations

import asyncio

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, World, holds, operator
from tests.mooncake import Master, Store

UNREADABLE = "1e101"
"""A quantity to the schema, and to no reader."""


async def test_a_binding_that_cannot_be_read_holds_its_own_pool_and_no_other(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    own, other = await world.pool("own"), await world.pool("other")
    fine = await world.binding("fine", domain="alpha", pool="other")
    broken = await world.binding("broken", domain="beta", pool="own", ceiling=UNREADABLE)
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.says(KVCachePoolBinding, broken, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        assert "1e101" in await world.message(KVCachePoolBinding, broken, "QuotaObserved")
        await world.delete(KVCachePoolBinding, fine)
        await world.delete(KVCachePool, own, other)
        await world.gone(KVCachePool, other)
        await world.says(KVCachePool, own, Releasable=("False", "HeldByBindings"), phase="Deleting")
        told = await world.message(KVCachePool, own, "Releasable")
        assert f"mend or delete them: {broken} (spec.quota.ceiling: '{UNREADABLE}' is not a quantity" in told
        await world.delete(KVCachePoolBinding, broken)
        await world.gone(KVCachePool, own)


async def test_the_master_of_a_backend_that_cannot_be_read_is_served_on(world: World, master: Master) -> None:
    name = await world.backend(admin=master.admin, managed=True)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        members = [{"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": UNREADABLE}]
        spec = {"spec": {"connection": {"managed": {"members": members}}}}
        await world.client.patch(KVCacheBackend.resource, Key("", name), spec)
        await world.ceiling(binding, "8Mi")
        await eventually(holds(master, {"alpha": 8 * MIB}), bool)
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.gone(KVCachePool, pool)
    assert await world.users() == []


async def test_a_pool_whose_total_cannot_be_read_is_served_and_goes_like_any_other(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool(total=UNREADABLE)
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.says(KVCachePool, pool, QuotaWithinTotal=("False", "Oversubscribed"))
        assert await world.document() == {"alpha": 16 * MIB}
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.gone(KVCachePool, pool)


async def test_a_served_binding_that_becomes_unreadable_keeps_its_quota_and_holds_up_nobody(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    await world.pool("own")
    await world.pool("other")
    broken = await world.binding("broken", domain="alpha", pool="own")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.ceiling(broken, UNREADABLE)
        for number, pool in enumerate(("other", "own")):
            await world.binding(f"late-{pool}", domain=f"late{number}", pool=pool)
        everything = {"alpha": 16 * MIB, "late0": 16 * MIB, "late1": 16 * MIB}
        await eventually(holds(master, everything), bool)
        await eventually(world.document, lambda seen: seen == everything)
        await world.ceiling(broken, "8Mi")
        await eventually(holds(master, {**everything, "alpha": 8 * MIB}), bool)


@pytest.mark.parametrize("odd", ["1e30", "0"])
async def test_a_ceiling_that_no_master_takes_holds_up_nobody_else(world: World, master: Master, odd: str) -> None:
    await world.backend(admin=master.admin)
    own, other = await world.pool("own"), await world.pool("other")
    asks = await world.binding("odd", domain="alpha", pool="own")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.ceiling(asks, odd)
        await world.says(KVCachePoolBinding, asks, QuotaObserved=("False", "MasterNotScraped"))
        fine = await world.binding("fine", domain="beta", pool="other")
        await eventually(holds(master, {"alpha": 16 * MIB, "beta": 16 * MIB}), bool)
        await eventually(world.document, lambda seen: seen == {"alpha": 16 * MIB, "beta": 16 * MIB})
        await world.delete(KVCachePoolBinding, fine)
        await world.delete(KVCachePool, other)
        await world.gone(KVCachePool, other)
        await world.delete(KVCachePoolBinding, asks)
        await world.delete(KVCachePool, own)
        await world.gone(KVCachePool, own)


async def test_an_unreadable_binding_that_is_deleted_gives_its_quota_back_like_any_other(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    await world.pool()
    broken = await world.binding("broken", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as store:
            await eventually(lambda: asyncio.to_thread(store.put, "key", MIB), lambda status: status == 0)
            await world.ceiling(broken, UNREADABLE)
            await world.delete(KVCachePoolBinding, broken)
            await world.says(KVCachePoolBinding, broken, Releasable=("False", "LedgerNotReleased"))
            assert await world.document() == {"alpha": 16 * MIB}
        await world.gone(KVCachePoolBinding, broken)
        assert await holds(master, {})()
        await eventually(world.document, lambda seen: seen == {})
