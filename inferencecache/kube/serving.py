"""Small HTTP listeners of a manager: where they listen, and how they start and stop."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. An empty host is every address of the machine, port 0 any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Read `:8080`, `127.0.0.1:8080`, `localhost:8080` or `[::1]:8080`; `0` is None: do not listen.

        Raises `ValueError`.
        """
        if text == "0":
            return None
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise ValueError(
                f"{text!r} is no address to listen on; write :8080, 127.0.0.1:8080 or [::1]:8080, or 0 for none"
            )
        return cls(match["v6"] or match["host"] or "", int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@asynccontextmanager
async def listening(
    app: web.Application, address: Address, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Address]:
    """Serve an app; gives the address with the port that was taken. Raises `OSError` that names the address."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address.host or None, address.port, ssl_context=tls).start()
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
        yield Address(address.host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def metrics_app() -> web.Application:
    """`/metrics` over everything in the default registry."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


def self_signed_context() -> ssl.SSLContext:
    """TLS without any promise of identity, HTTP/1.1 only."""
    from inferencecache.kube import pki  # its cryptography takes 8 MiB, which listeners without TLS do without

    return pki.server_context(pki.self_signed(["localhost"], now=datetime.now(UTC)))
