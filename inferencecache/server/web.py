"""The rim of the HTTP faces: an ASGI app on a socket, with limits on how long a client may dawdle and a bounded end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS: Final = 5.0
"""For the head of a request, from the connection's first moment or the request's first byte."""
BODY_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 120
STOP_SECONDS: Final = 2
LONG_BODY: Final = 32 << 10
"""Bytes from which on a body is worth a thought: it costs time to parse, and memory while it arrives."""


class BodyTooLong(Exception):
    """A request's body is longer than what is read of it."""


class BodyTooSlow(Exception):
    """A request's body did not arrive in time, or its client left."""


async def read_body(request: Request, limit: int, on_long: Callable[[], Awaitable[object]] | None = None) -> bytes:
    """The whole body. Raises `BodyTooLong` beyond `limit` bytes, `BodyTooSlow`.

    One of over `LONG_BODY` bytes is read on when `on_long` has returned; that counts as the client's time.
    """
    parts = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise BodyTooLong(f"the body is longer than {limit} bytes")
                parts.append(part)
                if on_long is not None and size > LONG_BODY:
                    await on_long()
                    on_long = None
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from error
    except ClientDisconnect as error:
        raise BodyTooSlow("the client left before its body had arrived") from error
    return b"".join(parts)


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP, with a limit on the time that a request's head may take."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_came()
        self._limit = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _head_came(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _give_up(self) -> None:
        self.transport.close()


class _Parting:
    """An app that can send its clients off: each comes back over another connection, which may lead it elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def part(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, part if self.begun else send)


class WebServer(uvicorn.Server):
    """uvicorn without its signal handlers, which are the process's business."""

    def __init__(self, config: uvicorn.Config, parting: _Parting) -> None:
        super().__init__(config)
        self._parting = parting

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        """Go on serving, and close each connection after its next answer."""
        self._parting.begun = True

    def stop(self) -> None:
        """Take no further requests, and let those that run end for `STOP_SECONDS`."""
        self.should_exit = True


@asynccontextmanager
async def serving(app: ASGIApp, sock: socket.socket) -> AsyncIterator[WebServer]:
    """Serve on a listening socket. Leaving stops the server and waits for it."""
    parting = _Parting(app)
    config = uvicorn.Config(
        parting,
        http=_Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    server = WebServer(config, parting)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve(sockets=[sock]), name="http-server")
        try:
            yield server
        finally:
            server.stop()
            await asyncio.wait([task])  # uvicorn bounds it
