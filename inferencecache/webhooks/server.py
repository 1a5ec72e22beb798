"""Serves the admission app over TLS, as one runnable of a manager.

The TLS context is given ready-made: whoever owns the certificate replaces it inside the context, and the next handshake
uses it, without a restart (decision A8). Signals are the manager's business.

Its end has two parts. For the shutdown delay it goes on answering, as nodes that have not heard of it yet still send
the API server here; each answer asks for the connection to be closed, so that the next call finds the way to another
replica. Then the listener closes, requests in flight are answered, and connections that idle are dropped after a short
grace.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

KEEP_ALIVE: Final = timedelta(seconds=120)
"""Longer than the API server's idle limit of 90 s, so that it is the API server that closes."""
GRACE: Final = timedelta(seconds=10)
_BACKLOG: Final = 1024


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, telling when it accepts connections."""

    def __init__(self, config: uvicorn.Config, accepting: asyncio.Event) -> None:
        super().__init__(config)
        self._accepting = accepting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebhookServer:
    """The listener. `port` 0 takes a free one; `bound_port` tells which, once `started` is set.

    With `tls` absent it serves plain HTTP, for tests and for setups that end TLS elsewhere. `shutdown_delay` is how
    long it goes on answering after it was cancelled; another cancellation cuts that short.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str = "",
        port: int = 9443,
        tls: ssl.SSLContext | None = None,
        grace: timedelta = GRACE,
        shutdown_delay: timedelta = timedelta(0),
    ) -> None:
        self.started = asyncio.Event()
        self.bound_port = port
        self._app = app
        self._host = host
        self._tls = tls
        self._grace = grace
        self._shutdown_delay = shutdown_delay
        self._leaving = False

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` if the port cannot be had."""
        listener = _listen(self._host, self.bound_port)
        # asyncio leaves sockets alone that it did not make; connections inherit this from the listener. Without it the
        # second packet of an answer waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bound_port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(KEEP_ALIVE.total_seconds()),
            timeout_graceful_shutdown=int(self._grace.total_seconds()),
        )
        config.load()
        config.ssl = self._tls
        server = _Server(config, self.started)
        log.info("serving webhooks", port=self.bound_port, tls=self._tls is not None)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]), name="webhook-server")
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                self._leaving = True
                await asyncio.wait([serving], timeout=self._shutdown_delay.total_seconds())
                raise
            finally:
                self.started.clear()
                server.should_exit = True
                await asyncio.wait([serving])  # until requests in flight are answered; uvicorn bounds that

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if self._leaving and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_on)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; without a host on all addresses, IPv6 and IPv4 where the machine has both."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
