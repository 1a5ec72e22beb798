"""A loopback HTTP server that answers as a test says, for faults that a real API server cannot be made to have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from inferencecache.kube.client import Client
from inferencecache.kube.connection import Connection

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """What was asked, and what to answer: one entry of `script` per request, the last one for all that follow."""

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.asked: list[SimpleNamespace] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(
            SimpleNamespace(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=request.headers,
                body=json.loads(body) if body else None,
            )
        )
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await answer(request)


def says(status: int = 200, body: Any = None, **headers: str) -> Answer:
    """Answer with a status and a JSON body; `retry_after="1"` becomes a header."""

    async def answer(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body if body is not None else {}, status=status, headers=named)

    return answer


async def hangs_up(request: web.Request) -> web.StreamResponse:
    """Cut the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def serving(
    *script: Answer, seconds: float = 60, tokens: tuple[str, ...] = ("t",), url: str = ""
) -> AsyncIterator[Any]:
    """A server with that script, and a client of it, or of `url`.

    `tokens` are what loading the credentials gives, in turn.
    """
    from kubernetes_asyncio.client import Configuration

    server = Server()
    server.script = list(script)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    left = list(tokens)

    async def load() -> Any:
        configuration = Configuration(host=url or f"http://127.0.0.1:{port}")
        configuration.api_key = {"BearerToken": f"Bearer {left.pop(0) if len(left) > 1 else left[0]}"}
        return configuration

    try:
        async with Connection(await load(), load) as connection:
            yield server, Client(connection, field_manager="us", timeout=timedelta(seconds=seconds))
    finally:
        await runner.cleanup()
