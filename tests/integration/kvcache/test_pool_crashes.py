"""Check 18: a pass may die before any call it makes, to the API server or to the master; the next ones make up for it.

Each way is gone once undisturbed, and then once for each call that it makes, with a controller that dies right before
this call and one that comes after it. What is left in the end is the same: ledger, document, statuses, finalizers and
claims. The ways end with the controller that makes it to the end without dying. They take their time, so the calls are
dealt out to three tests for each way.

While the first controller lies dead the world is looked at as well: an entry on the ledger always belongs to a Binding
that carries the finalizer, and is always listed in the document.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from yarl import URL

from inferencecache.api.kvcache import FINALIZER
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.connections import NoAnswer
from inferencecache.controllers.mooncake.admin import MooncakeClients
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, TransportError
from inferencecache.kube.resource import Key
from tests.integration.kvcache.pool_world import MIB, Driven, World, requested
from tests.mooncake import Master, Store

MOST_POINTS = 60
"""More than any of the ways makes calls."""
PARTS = 3
SETTLED_AFTER = 2
"""Passes in a row that change nothing."""


@dataclass
class Life:
    """How many calls a controller still makes."""

    left: int = 1_000_000

    def spend(self) -> bool:
        """Whether the next call is made."""
        self.left -= 1
        return not self.over

    @property
    def over(self) -> bool:
        return self.left < 0


class MortalClient(Client):
    """Fails every call once its life is over."""

    life = Life()

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if not self.life.spend():
            raise TransportError(f"{method} {path}: this controller is dead")
        return await super().request(method, path, **more)


class MortalClients(MooncakeClients):
    """The same towards masters."""

    life = Life()

    async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
        if not self.life.spend():
            raise NoAnswer("this controller is dead")
        return await super().request(method, url, **more)


def controller(world: World, life: Life) -> Driven:
    """A controller that makes calls as long as it lives."""
    client = MortalClient(world.client.connection, field_manager="inferencecache-controller")
    client.life = life
    masters = MortalClients()
    masters.life = life
    return Driven(world, client, masters)


async def work(world: World, life: Life, pools: list[Key]) -> bool:
    """Make passes until nothing changes any more; whether the controller lived to see it."""
    async with controller(world, life) as one:
        quiet, before = 0, await world.versions()
        deadline = asyncio.get_running_loop().time() + 60
        while quiet < SETTLED_AFTER:
            assert asyncio.get_running_loop().time() < deadline, "the world does not come to rest"
            for pool in pools:
                try:
                    await one.reconciler.reconcile(pool)
                except KubeError:
                    assert life.over
                if life.over:
                    return False
            now = await world.versions()
            await one.catch_up(now)
            quiet, before = (quiet + 1 if now == before else 0), now
    return True


async def found(world: World, master: Master) -> Any:
    """What there is in the end, under names that do not tell the way it came."""
    state: dict[str, Any] = {"users": await world.users(), "document": await world.document()}
    state["ledger"] = {
        tenant: quota for tenant, quota in (await requested(master)).items() if tenant.startswith(world.prefix)
    }
    for kind, key in world.made:
        if kind is KVCacheBackend:
            continue
        status = await world.status(kind, key)
        for condition in status.get("conditions", ()):
            del condition["lastTransitionTime"]
        state[f"{kind.__name__} {key}"] = [status, await world.finalizers(kind, key)] if status else "gone"
    return json.loads(json.dumps(state, sort_keys=True).replace(world.prefix, ""))


async def nothing_is_orphaned(world: World, master: Master) -> None:
    """Every entry of this world has a Binding that cannot vanish, and is in the document."""
    held = {
        binding.spec.domain.name
        for binding in await world.client.list(KVCachePoolBinding, namespace=world.namespace)
        if FINALIZER in binding.metadata.finalizers
    }
    entries = {tenant for tenant in await requested(master) if tenant.startswith(world.prefix)}
    assert entries <= held
    if entries:
        assert entries <= (await world.document()).keys()


async def birth(world: World, _settle: Callable[[], Awaitable[None]]) -> list[Key]:
    """Two pools with a Binding each are created."""
    pools = [await world.pool("one"), await world.pool("two")]
    await world.binding("a", domain="alpha", pool="one")
    await world.binding("b", domain="beta", ceiling="32Mi", pool="two")
    return pools


async def change(world: World, settle: Callable[[], Awaitable[None]]) -> list[Key]:
    """A ceiling moves, a Binding goes and another comes."""
    pools = [await world.pool("one"), await world.pool("two")]
    kept = await world.binding("a", domain="alpha", pool="one")
    leaving = await world.binding("b", domain="beta", pool="two")
    await settle()
    await world.ceiling(kept, "8Mi")
    await world.delete(KVCachePoolBinding, leaving)
    await world.binding("c", domain="gamma", pool="two")
    return pools


async def end(world: World, settle: Callable[[], Awaitable[None]]) -> list[Key]:
    """A pool and its Bindings are deleted together, beside a sibling that stays."""
    leaving, _ = pools = [await world.pool("one"), await world.pool("two")]
    bindings = [await world.binding(name, domain=name, pool="one") for name in ("a", "b")]
    await world.binding("c", domain="gamma", pool="two")
    await settle()
    await world.delete(KVCachePoolBinding, *bindings)
    await world.delete(KVCachePool, leaving)
    return pools


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", [birth, change, end])
async def test_18_a_pass_that_dies_before_any_of_its_calls_is_made_up_for(
    world: World,
    master: Master,
    way: Callable[[World, Callable[[], Awaitable[None]]], Awaitable[list[Key]]],
    part: int,
) -> None:
    worlds: list[World] = []

    async def go(calls: int) -> tuple[bool, Any]:
        one = World(world.client, world.namespace, f"w{len(worlds)}-")
        worlds.append(one)
        await one.backend(admin=master.admin)

        async def settle() -> None:
            everything = [key for kind, key in one.made if kind is KVCachePool]
            assert await work(one, Life(), everything)

        pools = await way(one, settle)
        lived = await work(one, Life(calls), pools)
        await nothing_is_orphaned(one, master)
        assert lived or await work(one, Life(), pools)
        state = await found(one, master)
        await nothing_is_orphaned(one, master)
        await one.clean()
        return lived, state

    with Store(master, segment=4096 * MIB):  # enough for what all ways leave behind
        lived, undisturbed = await go(1_000_000)
        assert lived
        points = part
        while True:
            lived, state = await go(points)
            assert state == undisturbed, f"after a death before call {points}"
            if lived:
                break
            points += PARTS
            assert points < MOST_POINTS
    assert points > 10
