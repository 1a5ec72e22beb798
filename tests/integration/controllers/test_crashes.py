"""A controller may die between any two API calls of a pass: the next one ends in the same state, and once.

Death is played by a client that makes so many calls and then none any more. Each way is gone once undisturbed, which
tells how many calls it makes, and once for each of them. What counts are calls about the test's own namespace: an
operator sees the whole cluster, and works on what other tests left in it too, in namespaces that end for ever where no
controller empties them. So reads that fill the informers do not count, nor does discovery, which any pass may be the
first to need. Neither do Events, which are written beside the passes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import register
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import NotFound, TransportError
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Deployment, Service
from inferencecache.kube.resource import Key, path_of
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually
from tests.integration.operating import quiet_manager, running

BIRTH, CASCADE = 4, 11
"""How many calls a new process makes on each of the two ways; any of them may be the first that is not made."""
IMMORTAL = 10_000


class Mortal(Client):
    """Makes so many calls about one namespace, then fails them all."""

    namespace = ""
    left = IMMORTAL

    @property
    def dead(self) -> bool:
        return self.left < 0

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if f"/namespaces/{self.namespace}/" in path and not path.startswith("/apis/events.k8s.io"):
            self.left -= 1
        if self.dead:
            raise TransportError(f"{method} {path}: this controller is dead")
        return await super().request(method, path, **more)


@asynccontextmanager
async def operator(world: World, *, calls: int = IMMORTAL) -> AsyncIterator[Mortal]:
    mortal = Mortal(world.client.connection, field_manager="inferencecache-controller")
    mortal.namespace, mortal.left = world.namespace, calls
    manager = quiet_manager(mortal)
    register(manager, registries=load_adapters())
    async with running(manager):
        yield mortal


@pytest.fixture
async def world(client: Client, namespace: str) -> World:
    await install_crds(client, crds())
    return World(client, namespace)


async def lives_or_dies(mortal: Mortal, done: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the end of the work or of the controller."""

    async def look() -> bool:
        return mortal.dead or await done()

    await eventually(look, bool)


@pytest.mark.parametrize("calls", [*range(BIRTH), IMMORTAL])
async def test_a_birth_that_is_interrupted_is_completed(world: World, calls: int) -> None:
    async def born() -> bool:
        return (await status(world)).get("endpoint") is not None and await both(world)

    await world.client.create(managed(world.namespace))
    async with operator(world, calls=calls) as mortal:
        await lives_or_dies(mortal, born)
    if calls == IMMORTAL:
        assert IMMORTAL - mortal.left == BIRTH
    else:
        assert mortal.dead
    async with operator(world):
        await eventually(born, bool)
    assert await generations(world) == {"kv": 1}
    assert reason_of(await status(world)) == "RolloutInProgress"
    assert set((await events(world)).values()) <= {1}


@pytest.mark.parametrize("calls", [*range(CASCADE), IMMORTAL])
async def test_a_cascade_that_is_interrupted_rolls_the_engines_once(world: World, calls: int) -> None:
    await world.client.create(managed(world.namespace))
    async with operator(world):
        await eventually(lambda: both(world), bool)
        await world.store_pod("a")
        await world.rolled_out("kv")
        await eventually(lambda: baseline(world), bool)
    await world.engine("mine")
    await world.engine("more")
    await world.gone("a")
    new = f"{await world.store_pod('b')}:0"

    async def published() -> bool:
        return await baseline(world) == new

    async with operator(world, calls=calls) as mortal:
        await lives_or_dies(mortal, published)
    if calls == IMMORTAL:
        assert IMMORTAL - mortal.left == CASCADE
    else:
        assert mortal.dead
    async with operator(world):
        await eventually(published, bool)
    assert [await world.mark(name) for name in ("mine", "more")] == [new, new]
    assert await generations(world) == {"kv": 1, "mine": 2, "more": 2}
    assert set((await events(world)).values()) <= {1}


async def both(world: World) -> bool:
    key = Key(world.namespace, "kv")
    try:
        await world.client.get(Deployment, key)
        await world.client.get(Service, key)
    except NotFound:
        return False
    return True


async def status(world: World) -> dict[str, Any]:
    return (await world.client.get(CacheBackend, Key(world.namespace, "kv"))).status.manifest()


async def baseline(world: World) -> str:
    return str((await status(world)).get("observedServerInstance", ""))


def reason_of(found: dict[str, Any]) -> str:
    return next(one["reason"] for one in found["conditions"] if one["type"] == "Ready")


async def generations(world: World) -> dict[str, int]:
    found = await world.client.list(Deployment, namespace=world.namespace)
    return {one.metadata.name: one.metadata.generation for one in found}


async def events(world: World) -> Counter[tuple[str, str]]:
    """How many Events there are about the same thing, a series counting as often as it was said."""
    found = json.loads(await world.client.request("GET", path_of(EVENTS, world.namespace)))["items"]
    told: Counter[tuple[str, str]] = Counter()
    for one in found:
        if one["regarding"]["kind"] == "CacheBackend":
            told[one["regarding"]["name"], one["reason"]] += (one.get("series") or {}).get("count", 1)
    return told
