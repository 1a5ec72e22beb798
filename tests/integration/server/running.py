"""A whole server in this process, on ports of its own, and ways to call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc

from inferencecache.server.run import Ports, ServerSettings, serve
from inferencecache.server.sockets import BindAddress
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

CONTROLLERS = ("/snapshot", "/policy", "/probe", "/templates", "/topologies", "/dump")
LOCAL = BindAddress("127.0.0.1", 0)
SCHEME, TENANT, MODEL = "vllm", "team-a", "m"


@dataclass
class Running:
    """A server that serves; `stop` begins its end, and `ended` is done when it is over."""

    ports: Ports
    stop: asyncio.Event
    ended: asyncio.Task[None]

    def target(self) -> str:
        return f"127.0.0.1:{self.ports.grpc}"

    def url(self, path: str) -> str:
        port = self.ports.snapshot if path in CONTROLLERS else self.ports.http
        return f"http://127.0.0.1:{port}{path}"


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    """A server with these settings."""
    listening: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    told = ServerSettings(
        **{"grpc_bind_address": LOCAL, "http_bind_address": LOCAL, "snapshot_bind_address": LOCAL} | settings
    )
    async with asyncio.TaskGroup() as group:
        ended = group.create_task(serve(told, stop, listening))
        done, _ = await asyncio.wait((listening, ended), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        if listening not in done:
            await ended
        try:
            yield Running(listening.result(), stop, ended)
        finally:
            stop.set()


class Stub:
    """The RPCs over a grpcio channel, as a gateway or a producer in Python calls them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def method(self, name: str) -> Any:
        method = METHODS[name]
        shape = f"{'stream' if method.client_streams else 'unary'}_{'stream' if method.server_streams else 'unary'}"
        return getattr(self._channel, shape)(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def lookup(self, hashes: list[bytes], **fields: Any) -> pb.LookupRouteResponse:
        call = self.method("LookupRoute")
        reply: pb.LookupRouteResponse = await call(lookup(hashes, **fields), timeout=60)
        return reply


@asynccontextmanager
async def calling(server: Running) -> AsyncIterator[Stub]:
    """A plaintext channel to the server."""
    async with grpc.aio.insecure_channel(server.target()) as channel:
        yield Stub(channel)


def lookup(hashes: list[bytes], **fields: Any) -> pb.LookupRouteRequest:
    """A lookup of a chain of blocks with 64 tokens each."""
    return pb.LookupRouteRequest(
        **{"model_id": MODEL, "tenant_id": TENANT, "hash_scheme": SCHEME}
        | {"block_hashes": hashes, "block_token_counts": [64] * len(hashes)}
        | fields
    )


def update(replica: str, hashes: list[bytes], **fields: Any) -> pb.CacheStateUpdate:
    """A report of a chain of blocks with 64 tokens each."""
    entry = pb.PrefixEntry(block_hashes=hashes, block_token_counts=[64] * len(hashes))
    return pb.CacheStateUpdate(
        **{"replica_id": replica, "model_id": MODEL, "tenant_id": TENANT, "hash_scheme": SCHEME, "prefixes": [entry]}
        | fields
    )


async def get(url: str, **how: Any) -> tuple[int, str]:
    """Status and body of a GET."""
    return await request("GET", url, **how)


async def request(method: str, url: str, **how: Any) -> tuple[int, str]:
    """Status and body of any request."""
    async with aiohttp.ClientSession() as session, session.request(method, url, **how) as answer:
        return answer.status, await answer.text()
