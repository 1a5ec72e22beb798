"""Loops towards a server of which parts hang, on a real API server (decision F3)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.kinds import crds
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers import CacheServer
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.resource import Key
from tests.integration.controllers.cache_server import operator, own
from tests.integration.kube.waiting import eventually


class HalfDead:
    """A server that takes policies and never answers anything else."""

    def __init__(self) -> None:
        self.url = ""
        self.policies: list[dict[str, Any]] = []
        self.hanging: dict[str, int] = {}
        """How many requests for a path have hung, or still do."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path != "/policy":
            self.hanging[request.path] = self.hanging.get(request.path, 0) + 1
            await asyncio.sleep(3600)
        self.policies.append(await request.json())
        return web.Response(status=204)


@pytest.fixture
async def server() -> AsyncIterator[HalfDead]:
    server = HalfDead()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def test_what_hangs_costs_its_own_loop_a_timeout_and_no_other_anything(
    client: Client, namespace: str, server: HalfDead, tmp_path: Path
) -> None:
    await install_crds(client, crds())
    await client.create(own("PromptTemplate", Key(namespace, "chat"), {"body": "x"}))
    await client.create(own("CachePolicy", Key(namespace, "p"), {}))
    settings = CacheServer(
        snapshot_url=f"{server.url}/snapshot",
        policy_url=f"{server.url}/policy",
        refresh_interval=timedelta(milliseconds=100),
        controller_token=tmp_path / "none",
        policy_token=tmp_path / "none",
    )

    def told(minimum: int) -> bool:
        rows = server.policies[-1]["policies"] if server.policies else []
        return any((row["namespace"], row["minimumMatchedTokens"]) == (namespace, minimum) for row in rows)

    minima = itertools.count(1)
    policy = Key(namespace, "p")

    async def told_meanwhile() -> bool:
        """Whether a policy reaches the server while one request for the templates hangs all the time."""
        minimum = next(minima)
        before = dict(server.hanging)
        await client.patch(CachePolicy.resource, policy, {"spec": {"minimumMatchedTokens": minimum}})
        while not told(minimum):  # noqa: ASYNC110 - the operator's doing
            await asyncio.sleep(0.01)
        return server.hanging == before

    async def hanging() -> set[str]:
        return set(server.hanging)

    async def reason() -> str:
        conditions = (await client.get(PromptTemplate, Key(namespace, "chat"))).status.conditions or ()
        return next((json.dumps([one.reason, one.message]) for one in conditions if one.type == "Ready"), "")

    async with operator(client, settings):
        await eventually(hanging, lambda seen: seen == {"/snapshot", "/templates", "/topologies"})
        # A busy machine may need several attempts; policies that waited for what hangs would never get there.
        await eventually(told_meanwhile, bool)
        said = await eventually(reason, lambda seen: "PushFailed" in seen)
        assert "no answer within 5 s" in said
