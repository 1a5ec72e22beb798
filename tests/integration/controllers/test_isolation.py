"""Sick backends cost no other anything: 200 of them, 20 of which are sick in one way or another (decisions F3, F4).

Shown by count, not by time: more calls about sick backends are open at once than the controller has workers, so no pass
waits for one; and before that has happened, the slow ones get no answer at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import CacheServer, register
from inferencecache.kube.client import Client
from inferencecache.kube.controller import DEFAULT_WORKERS
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.kinds import Deployment
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running

ALL, SICK = 200, 20


def sickness(number: int) -> str:
    """What is wrong with a backend, if anything is."""
    return ("dead", "slow", "conflict")[number % 3] if number < SICK else "healthy"


NAMES = {f"{sickness(number)}-{number}": sickness(number) for number in range(ALL)}


class Prober:
    """A server that probes a healthy backend at once, a dead one never, and a slow one when enough calls are open."""

    def __init__(self) -> None:
        self.enough = asyncio.Event()
        self.closing = asyncio.Event()
        self._open: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.Response:
        asked = (await request.json())["backend"]
        sickness = NAMES[asked.partition("/")[2]]
        if sickness != "healthy":
            # A call that its caller has given up is not open, though its handler goes on.
            self._open = [one for one in (*self._open, request) if one.transport and not one.transport.is_closing()]
            if len(self._open) > DEFAULT_WORKERS:
                self.enough.set()
            await (self.enough if sickness == "slow" else self.closing).wait()
            self._open = [one for one in self._open if one is not request]
        return web.json_response({"backend": asked, "ingest": "ok", "routing": "ok", "t2": "skipped"})


@asynccontextmanager
async def served(prober: Prober) -> AsyncIterator[str]:
    """The URL of the server."""
    app = web.Application()
    app.add_routes([web.post("/probe", prober.answer), web.route("*", "/{other}", _taken)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        prober.enough.set()
        prober.closing.set()
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


@pytest.mark.timeout(400)
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
    prober = Prober()
    async with served(prober) as url:
        manager = quiet_manager(operator_client(client))
        server = CacheServer(snapshot_url="", policy_url=f"{url}/policy", probe_url=f"{url}/probe")
        register(manager, registries=load_adapters(), server=server)
        async with running(manager):
            await at_once(lambda name=name: client.create(managed(namespace, name)) for name in NAMES)
            await eventually(lambda: deployments(client, namespace), lambda found: found == set(NAMES), seconds=120)
            await at_once(lambda name=name: world.rolled_out(name) for name in NAMES)
            await eventually(lambda: wrong(client, namespace), lambda found: not found, seconds=120)
            assert prober.enough.is_set()


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
