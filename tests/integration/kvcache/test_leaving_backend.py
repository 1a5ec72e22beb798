"""A backend that is being deleted: those who claimed it before are served on, and nobody comes to it any more.

A claim that came after the deletion would hold a backend whose leader is gone already, and be held itself by a master
that nobody can ask any more: neither could ever go.
"""

from __future__ import annotations

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.resource import Key
from tests.integration.kvcache.pool_world import World, operator, requested
from tests.mooncake import Master

ELSEWHERE = {"metadata": {"finalizers": ["test.inferencecache.io/teardown"]}}
"""Keeps an object in deletion, as the teardown of a backend's workloads does."""


async def leave(world: World) -> Key:
    """Begin the deletion of the backend."""
    key = Key("", world.named("store"))
    await world.client.patch(KVCacheBackend.resource, key, ELSEWHERE)
    await world.delete(KVCacheBackend, key)
    return key


async def test_a_pool_that_comes_to_a_leaving_backend_is_not_served_and_holds_nothing(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    backend = await leave(world)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await world.says(KVCachePool, pool, phase="Error", BackendResolved=("False", "EndpointsNotPublished"))
        assert "is being deleted" in await world.message(KVCachePool, pool, "BackendResolved")
        await world.says(KVCachePoolBinding, binding, QuotaObserved=("False", "MasterNotScraped"))
        assert await world.users() == []
        assert await requested(master) == {}
        assert "clientEndpoint" not in await world.status(KVCachePool, pool)
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.force_away(KVCacheBackend, backend)
        await world.gone(KVCachePoolBinding, binding)
        await world.gone(KVCachePool, pool)


async def test_a_pool_that_claimed_the_backend_before_is_served_on_without_those_who_came_later(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    before = await world.pool("before")
    await world.binding("one", domain="alpha", pool="before")
    async with operator(world):
        await world.says(KVCachePool, before, QuotaLedgerAvailable=("True", "Available"))
        await leave(world)
        after = await world.pool("after")
        late = await world.binding("two", domain="beta", pool="after")
        await world.says(KVCachePool, after, BackendResolved=("False", "EndpointsNotPublished"))
        await world.ceiling(Key(world.namespace, "one"), "8Mi")
        await world.says(KVCachePoolBinding, late, QuotaObserved=("False", "MasterNotScraped"))
        await world.says(KVCachePool, before, QuotaLedgerAvailable=("True", "Available"))
        assert await world.users() == [f"KVCachePool//{before.name}"]
        assert "beta" not in await requested(master)
        await world.delete(KVCachePoolBinding, Key(world.namespace, "one"))
        await world.delete(KVCachePool, before)
        await world.gone(KVCachePool, before)
        assert await world.users() == []
        assert await requested(master) == {}
