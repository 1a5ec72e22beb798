"""Asking the cache server: where it is, whether gRPC serves, and what its HTTP endpoints answer (spec 09 §1.1).

Nothing is sent that could change anything: `/policy` and `/probe` are asked with HEAD, which no method of theirs is.
A redirect is an answer like any other and is not followed, so a token goes where its owner pointed it and nowhere else.
No text that leaves this module contains a token.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Service
from inferencecache.kube.resource import Key

SERVICE: Final = Key("inference-cache-system", "inference-cache-server")
GRPC_PORT: Final = 9090
HTTP_PORT: Final = 8081
LARGEST_SNAPSHOT: Final = 8 << 20


class EndpointError(ValueError):
    """`--server-endpoint` is no address."""


@dataclass(frozen=True, slots=True)
class Address:
    """The server's host, an IPv6 address without brackets, and its gRPC port."""

    host: str
    grpc_port: int = GRPC_PORT

    @property
    def grpc(self) -> str:
        """`host:port`, for gRPC."""
        return f"{self._host}:{self.grpc_port}"

    def url(self, path: str) -> str:
        """An endpoint of the controller's port."""
        return f"http://{self._host}:{HTTP_PORT}{path}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True)
class Tls:
    """Speak TLS to the gRPC port; `ca` are the trusted CAs in PEM, the system's if it is empty."""

    ca: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """What `grpc.health.v1` said: a status by its name, or why there was none."""

    status: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, or why there was none. `document` is the body of a 200 where a JSON document was read."""

    url: str
    status: int = 0
    problem: str = ""
    document: object = None
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """The bearer token; `problem` says why a file that is there could not be read."""

    value: str = ""
    problem: str = ""

    def __repr__(self) -> str:
        return f"Token({'set' if self.value else 'none'})"


NO_TOKEN: Final = Token()


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """All that the server said. Without an address, `discovery` says why, and nobody was asked."""

    address: Address | None
    discovery: str = ""
    health: Health = Health()
    snapshot: Answer = Answer("")
    policy: Answer = Answer("")
    probe: Answer = Answer("")
    token_sent: bool = False


def parse_address(text: str) -> Address:
    """`host`, `host:grpcPort`, or an IPv6 address with or without brackets. Raises `EndpointError`."""
    given = text.strip()
    if given.startswith("["):
        host, bracket, rest = given[1:].partition("]")
        port = rest.removeprefix(":") if rest.startswith(":") else ""
        sound = bool(host and bracket) and (not rest or bool(port))
    elif given.count(":") > 1:
        host, port, sound = given, "", True
    else:
        host, colon, port = given.partition(":")
        sound = bool(host) and bool(port) == bool(colon)
    if not sound or any(char in host for char in "/ @?#") or (port and not _is_port(port)):
        raise EndpointError(f"{text!r} is no address of a server: write host or host:port, where port is gRPC's")
    return Address(host, int(port) if port else GRPC_PORT)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def read_token(path: Path) -> Token:
    """The token in a file. No file, or a blank one, means none."""
    try:
        return Token(path.read_text().strip())
    except FileNotFoundError:
        return NO_TOKEN
    except (OSError, UnicodeDecodeError) as error:
        return Token(problem=f"{path}: {getattr(error, 'strerror', None) or 'is not text'}")


async def discover(client: Client) -> Address:
    """The Service of the server: at its usual place, else the first of that name. Raises `KubeError`."""
    try:
        found = await client.get(Service, SERVICE)
    except NotFound:
        named = await client.list(Service, fields=f"metadata.name={SERVICE.name}")
        if not named:
            raise NotFound(f"no Service {SERVICE.name} in any namespace", status=404) from None
        found = min(named, key=lambda service: service.metadata.namespace)
    return Address(f"{found.metadata.name}.{found.metadata.namespace}.svc")


async def ask(address: Address, token: str, tls: Tls | None, seconds: float) -> ServerAnswers:
    """Ask the server everything at once; every question has `seconds` at most."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        health = group.create_task(_health(address, tls, seconds))
        snapshot = group.create_task(_snapshot(session, address.url("/snapshot"), token))
        policy = group.create_task(_head(session, address.url("/policy")))
        probe = group.create_task(_head(session, address.url("/probe")))
    return ServerAnswers(
        address,
        health=health.result(),
        snapshot=snapshot.result(),
        policy=policy.result(),
        probe=probe.result(),
        token_sent=bool(token),
    )


async def _health(address: Address, tls: Tls | None, seconds: float) -> Health:
    async with _channel(address, tls) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=seconds, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            return Health(problem=f"{error.code().name}: {error.details()}")
    return Health(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def _channel(address: Address, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address.grpc)
    return grpc.aio.secure_channel(address.grpc, grpc.ssl_channel_credentials((tls.ca or _system_cas()).encode()))


def _system_cas() -> str:
    """The CAs that this machine trusts, in PEM; the gRPC library would take its own instead."""
    context = ssl.create_default_context()
    return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in context.get_ca_certs(binary_form=True))


async def _snapshot(session: aiohttp.ClientSession, url: str, token: str) -> Answer:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                return Answer(url, answer.status)
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > LARGEST_SNAPSHOT:
                    return Answer(url, 200, unreadable=f"it is longer than {LARGEST_SNAPSHOT >> 20} MiB")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(url, problem=_why(error))
    try:
        return Answer(url, 200, document=json.loads(bytes(body)))
    except (ValueError, RecursionError):
        return Answer(url, 200, unreadable="it is no JSON")


async def _head(session: aiohttp.ClientSession, url: str) -> Answer:
    try:
        async with session.head(url, allow_redirects=False) as answer:
            return Answer(url, answer.status)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(url, problem=_why(error))


def _why(error: Exception) -> str:
    """Why no answer came. The text of an unusual error is left out: it may quote what was sent."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError | OSError):
        return str(error)
    return type(error).__name__


async def dial(host: str, port: int, seconds: float) -> str:
    """Open a TCP connection and close it; why that failed, empty if it did not."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection within {seconds:g} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    writer.close()
    return ""
