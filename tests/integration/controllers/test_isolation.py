"""Sick backends cost no other anything: 200 of them, 20 of which are sick in one way or another (decisions F3, F4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from inferencecache.adapters.registry import load_adapters
from inferencecache.api import crds
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers import CacheServer, register
from inferencecache.controllers.cachebackend.probing import TIMEOUT
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.kinds import Deployment
from inferencecache.kube.manager import Manager, Options
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually

ALL, SICK = 200, 20
SLOW_SECONDS = TIMEOUT.total_seconds() - 2
NO_PASS_TAKES = "2.5"
"""Seconds; a bucket of the histogram, and less than any sick server takes."""


def sickness(number: int) -> str:
    """What is wrong with a backend, if anything is."""
    return ("dead", "slow", "conflict")[number % 3] if number < SICK else "healthy"


NAMES = {f"{sickness(number)}-{number}": sickness(number) for number in range(ALL)}


@asynccontextmanager
async def probe_server() -> AsyncIterator[str]:
    """A server that probes a healthy backend at once, a slow one late and a dead one never; its URL."""

    closing = asyncio.Event()

    async def probe(request: web.Request) -> web.Response:
        asked = (await request.json())["backend"]
        match NAMES[asked.partition("/")[2]]:
            case "dead":
                await closing.wait()
            case "slow":
                await asyncio.sleep(SLOW_SECONDS)
        return web.json_response({"backend": asked, "ingest": "ok", "routing": "ok", "t2": "skipped"})

    app = web.Application()
    app.add_routes([web.post("/probe", probe), web.route("*", "/{other}", _taken)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        closing.set()
        await runner.cleanup()


async def _taken(request: web.Request) -> web.Response:
    return web.Response(status=204)


async def at_once(work: Iterable[Callable[[], Awaitable[object]]], width: int = 16) -> None:
    turns = asyncio.Semaphore(width)

    async def one(do: Callable[[], Awaitable[object]]) -> None:
        async with turns:
            await do()

    async with asyncio.TaskGroup() as group:
        for do in work:
            group.create_task(one(do))


def passes_within(seconds: str) -> tuple[float, float]:
    """How many passes there were, and how many of them took at most so long."""
    name = "controller_runtime_reconcile_time_seconds"
    labels = {"controller": "cachebackend"}
    return (
        REGISTRY.get_sample_value(f"{name}_count", labels) or 0,
        REGISTRY.get_sample_value(f"{name}_bucket", {**labels, "le": seconds}) or 0,
    )


@pytest.mark.timeout(300)
async def test_no_healthy_backend_waits_for_a_sick_one(client: Client, namespace: str) -> None:
    await install_crds(client, crds())
    world = World(client, namespace)
    spec = {"ports": [{"port": 80}]}
    foreign = [name for name, what in NAMES.items() if what == "conflict"]
    await at_once(
        lambda name=name: client.create(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        )
        for name in foreign
    )
    async with probe_server() as url:
        manager = Manager(
            Client(client.connection, field_manager="inferencecache-controller"),
            options=Options(metrics_address="0", health_address="0", handle_signals=False),
        )
        server = CacheServer(snapshot_url="", policy_url=f"{url}/policy", probe_url=f"{url}/probe")
        register(manager, registries=load_adapters(), server=server)
        running = asyncio.create_task(manager.run())
        try:
            before = passes_within(NO_PASS_TAKES)
            await at_once(lambda name=name: client.create(managed(namespace, name)) for name in NAMES)
            await eventually(lambda: deployments(client, namespace), lambda found: found == set(NAMES), seconds=120)
            await at_once(lambda name=name: world.rolled_out(name) for name in NAMES)
            await eventually(lambda: wrong(client, namespace), lambda found: not found, seconds=120)
            after = passes_within(NO_PASS_TAKES)
        finally:
            manager.stop()
            await running
    passes, in_time = (late - early for late, early in zip(after, before, strict=True))
    assert passes >= ALL
    # A loaded machine makes a pass long at times; waiting for the server would do so for each of its sick backends.
    assert passes - in_time < sum(what in ("dead", "slow") for what in NAMES.values()) / 2


async def deployments(client: Client, namespace: str) -> set[str]:
    return {one.metadata.name for one in await client.list(Deployment, namespace=namespace)}


WANTED = {
    "healthy": ("BackendReady", "ProbeOK"),
    "slow": ("BackendReady", "ProbeOK"),
    "dead": ("BackendReady", "ProbeError"),
    "conflict": ("ChildConflict", ""),
}
"""The reasons of Ready and FunctionalProbeOK."""


async def wrong(client: Client, namespace: str) -> dict[str, tuple[str, str]]:
    """The backends that do not say of themselves what is right."""
    found = {}
    for one in await client.list(CacheBackend, namespace=namespace):
        by_type = {condition.type: condition.reason for condition in one.status.conditions or ()}
        told = (by_type.get("Ready", ""), by_type.get("FunctionalProbeOK", ""))
        if told != WANTED[NAMES[one.metadata.name]]:
            found[one.metadata.name] = told
    return found
