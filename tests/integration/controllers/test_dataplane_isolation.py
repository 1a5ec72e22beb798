"""Loops towards a server of which parts hang, on a real API server (decision F3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from inferencecache.api import crds
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
        self.hanging: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        if request.path != "/policy":
            self.hanging.add(request.path)
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
    settings = CacheServer(
        snapshot_url=f"{server.url}/snapshot",
        policy_url=f"{server.url}/policy",
        refresh_interval=timedelta(milliseconds=100),
        controller_token=tmp_path / "none",
        policy_token=tmp_path / "none",
    )
    loop = asyncio.get_running_loop()

    async def told() -> bool:
        return (
            any(row["namespace"] == namespace for row in server.policies[-1]["policies"]) if server.policies else False
        )

    async def hanging() -> set[str]:
        return set(server.hanging)

    async def reason() -> str:
        conditions = (await client.get(PromptTemplate, Key(namespace, "chat"))).status.conditions or ()
        return next((json.dumps([one.reason, one.message]) for one in conditions if one.type == "Ready"), "")

    async with operator(client, settings):
        await eventually(hanging, lambda seen: seen == {"/snapshot", "/templates", "/topologies"})
        start = loop.time()
        await client.create(own("CachePolicy", Key(namespace, "p"), {}))
        await eventually(told, lambda seen: seen)
        assert loop.time() - start < 4, "the policies waited for a request that hangs"
        said = await eventually(reason, lambda seen: "PushFailed" in seen)
        assert "no answer within 5 s" in said
