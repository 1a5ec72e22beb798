"""Requests to the cache server, each with a deadline and with the token that is in its file right now.

Kubernetes replaces a projected token while its pod runs, so the file is read before every request; it lies in memory
and is small. The server checks a token's audience per endpoint, so a token belongs to an `Endpoint`, not to the client.
A token that is not there means a server without authentication. One that is there and cannot be read is a fault of the
installation: most requests go without it and let the server's refusal be the news, some would rather not be sent.

Servers without a common store each have to be told everything. A name with several addresses, as a headless Service
has, means all of them to what is sent, and any of them to what is read.

Proxies are taken from the environment, as operators expect of a client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import Counter
from yarl import URL

from inferencecache.controllers.connections import Connections, NoAnswer
from inferencecache.kube.errors import KubeError

TIMEOUT: Final = timedelta(seconds=5)
"""Of a request, from resolving the name to the last byte of the answer (spec 05 §1.5)."""
LARGEST_ANSWER: Final = 64 << 20

_QUOTED_BYTES: Final = 1024

REQUESTS: Final = Counter(
    "inferencecache_controller_server_requests_total",
    "Requests of the controller to the cache server, by what became of them.",
    ["endpoint", "result"],
)

_log = structlog.stdlib.get_logger(__name__)


class ServerCallError(KubeError):
    """The cache server gave no answer in time, or refused; the message names the request and quotes the answer.

    `status` is the HTTP status, or None without an answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TokenUnreadable(Exception):
    """A token file is there and cannot be read."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A bearer token that somebody else keeps fresh."""

    path: Path

    def read(self) -> str:
        """The token; empty if there is no file, or a blank one. Raises `TokenUnreadable`."""
        try:
            return self.path.read_text().strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise TokenUnreadable(f"token file {self.path}: {error}") from error


async def addresses_of(host: str) -> list[str]:
    """The addresses of a name, in order: those of IPv4, or if it has none, of IPv6. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    by_family: dict[int, set[str]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, set()).add(str(address[0]))
    return sorted(by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6) or ())


class ServerClient(Connections):
    """Connections to the cache server. `resolve` looks up the addresses of a name."""

    def __init__(
        self, *, timeout: timedelta = TIMEOUT, resolve: Callable[[str], Awaitable[list[str]]] = addresses_of
    ) -> None:
        super().__init__(timeout=timeout, proxies=True)
        self._resolve = resolve
        self._patience = timeout

    async def everywhere(self, url: str) -> list[str]:
        """The addresses behind a URL if there are several; nothing if it is enough to call it by its name."""
        host = URL(url).host or ""
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                found = await self._resolve(host)
        except OSError:
            return []  # the call itself will say what is wrong, or go through a proxy that knows better
        return found if len(found) > 1 else []

    async def exchange(
        self, method: str, url: str, *, token: str, body: bytes | None, address: str = ""
    ) -> tuple[int, bytes]:
        """Status and body of the answer of the server at `address`, or at whatever the URL's name leads to.

        Raises `ServerCallError` if none came, or one that does not end.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        target, name = URL(url), None
        if address:
            headers["Host"], name = target.authority, target.host
            target = target.with_host(address)
        try:
            return await self.request(
                method, target, largest=LARGEST_ANSWER, body=body, headers=headers, server_hostname=name
            )
        except NoAnswer as error:
            raise ServerCallError(f"{method} {target}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One path of the server, with the token for its audience.

    `name` stands in metrics. `insists_on_token` refuses to send without a token whose file is there but unreadable.
    """

    name: str
    client: ServerClient
    url: str
    token: TokenFile
    insists_on_token: bool = False

    async def get(self) -> bytes:
        """The body of a 200. Raises `ServerCallError` for anything else."""
        return await self._call("GET", None, range(200, 201))

    async def send(self, method: str, body: bytes) -> bytes:
        """Send JSON; the body of any 2xx. Raises `ServerCallError` for anything else."""
        return await self._call(method, body, range(200, 300))

    async def send_to_all(self, method: str, body: bytes) -> None:
        """Send JSON to every server behind the name. Raises the `ServerCallError` of one that did not take it."""
        addresses = await self.client.everywhere(self.url) or [""]
        calls = (self._call(method, body, range(200, 300), address) for address in addresses)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _call(self, method: str, body: bytes | None, good: range, address: str = "") -> bytes:
        result = "error"
        where = f"{self.url} at {address}" if address else self.url
        try:
            token = self._bearer()
            status, content = await self.client.exchange(method, self.url, token=token, body=body, address=address)
            if status in good:
                result = "ok"
                return content
            said = content[:_QUOTED_BYTES].decode(errors="replace").strip()
            raise ServerCallError(f"{method} {where}: HTTP {status}" + (f": {said}" if said else ""), status)
        finally:
            REQUESTS.labels(self.name, result).inc()

    def _bearer(self) -> str:
        try:
            return self.token.read()
        except TokenUnreadable as error:
            if self.insists_on_token:
                raise ServerCallError(f"{self.url} was not called: {error}") from error
            _log.warning("calling the server without a token", endpoint=self.name, error=str(error))
            return ""
