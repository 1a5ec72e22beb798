"""Engines are rolled once when their cache server was replaced, and at no other time (spec 05 §4, decision F11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import register
from inferencecache.controllers.cachebackend import cascade
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.kinds import Deployment
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key
from tests.integration.controllers.played import World, managed
from tests.integration.controllers.rest import passes
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running


@asynccontextmanager
async def operator(client: Client) -> AsyncIterator[Manager]:
    manager = quiet_manager(operator_client(client))
    register(manager, registries=load_adapters())
    async with running(manager):
        yield manager


@pytest.fixture
async def world(client: Client, namespace: str) -> World:
    await install_crds(client, crds())
    return World(client, namespace)


async def baseline(world: World) -> str:
    found = await world.client.get(CacheBackend, Key(world.namespace, "kv"))
    return found.status.observed_server_instance or ""


async def becomes(look: Callable[[], Awaitable[str]], want: str) -> None:
    await eventually(look, lambda seen: seen == want)


async def looked_again(world: World) -> None:
    """Have the operator make a pass that sees everything up to now."""
    before = passes()
    poke = {"metadata": {"labels": {"poke": str(before)}}}
    await world.client.patch(CacheBackend.resource, Key(world.namespace, "kv"), poke)

    async def look() -> float:
        return passes()

    await eventually(look, lambda now: now > before)


async def served_by(world: World, *pods: str) -> dict[str, str]:
    """A backend whose baseline is these Pods; their UIDs."""
    await world.client.create(managed(world.namespace, replicas=len(pods)))
    await eventually(lambda: exists(world), bool)
    found = {pod: await world.store_pod(pod) for pod in pods}
    await world.rolled_out("kv", len(pods))
    await becomes(lambda: baseline(world), ",".join(f"{found[pod]}:0" for pod in sorted(pods)))
    return found


async def exists(world: World) -> bool:
    return bool(await world.client.list(Deployment, namespace=world.namespace))


async def test_a_replacement_rolls_the_wired_engines_once_and_survives_a_new_controller(world: World) -> None:
    async with operator(world.client):
        await served_by(world, "a")
        await world.engine("mine")
        await world.engine("of-a-namesake", uid="another")
        await world.gone("a")
        new = await world.store_pod("b")
        await becomes(lambda: world.mark("mine"), f"{new}:0")
        await becomes(lambda: baseline(world), f"{new}:0")
    versions = await generations(world)
    async with operator(world.client):
        await looked_again(world)
        assert await generations(world) == versions
    assert await world.mark("of-a-namesake") == ""
    assert await world.mark("kv") == "", "its own Deployment never rolls itself"


async def generations(world: World) -> dict[str, int]:
    found = await world.client.list(Deployment, namespace=world.namespace)
    return {one.metadata.name: one.metadata.generation for one in found}


async def test_a_second_replacement_within_the_window_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "WINDOW", timedelta(hours=1))
    async with operator(world.client):
        uids = await served_by(world, "a")
        await world.engine("mine")
        await world.report("a", restarts=1)
        await becomes(lambda: world.mark("mine"), f"{uids['a']}:1")
        await becomes(lambda: baseline(world), f"{uids['a']}:1")
        await world.report("a", restarts=2)
        await looked_again(world)
        assert await world.mark("mine") == f"{uids['a']}:1"
        assert await baseline(world) == f"{uids['a']}:1"


async def test_neither_a_flap_nor_a_scale_in_is_a_replacement(world: World) -> None:
    async with operator(world.client):
        uids = await served_by(world, "a", "b")
        await world.engine("mine")
        await world.report("b", ready=False)
        await world.rolled_out("kv", 2, available=1)
        await looked_again(world)
        await world.report("b")
        await world.rolled_out("kv", 2)
        await looked_again(world)
        assert await baseline(world) == f"{uids['a']}:0,{uids['b']}:0"
        await world.client.patch(CacheBackend.resource, Key(world.namespace, "kv"), {"spec": {"replicas": 1}})
        await world.gone("b")
        await eventually(lambda: replicas(world), lambda seen: seen == 1)
        await world.rolled_out("kv", 1)
        await becomes(lambda: baseline(world), f"{uids['a']}:0")
        assert await world.mark("mine") == ""


async def replicas(world: World) -> int:
    found = await world.client.get(Deployment, Key(world.namespace, "kv"))
    return int(found.spec["replicas"])


async def test_a_rollout_in_progress_moves_nothing_until_the_old_server_goes(world: World) -> None:
    async with operator(world.client):
        uids = await served_by(world, "a")
        await world.engine("mine")
        new = await world.store_pod("b")
        await looked_again(world)
        assert (await baseline(world), await world.mark("mine")) == (f"{uids['a']}:0", "")
        await world.gone("a")
        await becomes(lambda: world.mark("mine"), f"{new}:0")


async def test_leaving_the_managed_path_clears_the_baseline(world: World) -> None:
    async with operator(world.client):
        await served_by(world, "a")
        spec = {"remoteStorage": {"ownership": "External", "endpoint": "kv.example:65432"}}
        await world.client.patch(CacheBackend.resource, Key(world.namespace, "kv"), {"spec": spec})
        await becomes(lambda: baseline(world), "")
