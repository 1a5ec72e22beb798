"""An engine, a sidecar and a server, on real sockets in this process, and what the index should say of the engine.

What it should say is worked out from the engine's own cache, by a way that shares nothing with the sidecar's: for each
block that the cache holds, the fingerprint of its whole prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import aiohttp

from inferencecache.fakeengine.encoding import Encoding
from inferencecache.fakeengine.engine import Engine
from inferencecache.fakeengine.repeated import RepeatedBatch
from inferencecache.fakeengine.run import FakeEngineSettings
from inferencecache.fakeengine.run import running as engine_running
from inferencecache.server.warm import read
from inferencecache.subscriber.delivery import Backoff
from inferencecache.subscriber.messages import Identity
from inferencecache.subscriber.run import Subscriber, SubscriberSettings
from inferencecache.subscriber.servers import Target
from inferencecache.wire import fingerprint
from tests.integration.server.running import MODEL, SCHEME, TENANT, Running

REPLICA = "engine-0"
BLOCK_SIZE = 4
T = TypeVar("T")


class Hold(NamedTuple):
    """One prefix of a replica, as the index has it."""

    prefix_hash: bytes
    adapter: str
    token_count: int
    tier: int


def held_by(engine: Engine, tier: int = 1) -> set[Hold]:
    """What an index should say of an engine."""
    holds = set()
    for rank in engine.ranks:
        for block in rank.cache.blocks():
            prefix_hash = fingerprint.prefix_hashes(block.prefix, rank.cache.block_size)[-1]
            holds.add(Hold(fingerprint.key(prefix_hash), block.adapter, len(block.prefix), tier))
    return holds


async def known_to(dump_url: str, replica: str = REPLICA) -> set[Hold]:
    """What an index says of a replica."""
    async with aiohttp.ClientSession() as session, session.get(dump_url) as answer:
        assert answer.status == 200
        return {
            Hold(entry_hash, entry.adapter_id or update.adapter_id, count, entry.tier)
            async for update in read(answer.content.iter_any())
            if update.replica_id == replica
            for entry in update.prefixes
            for entry_hash, count in _blocks(entry)
        }


def _blocks(entry: Any) -> list[tuple[bytes, int]]:
    if not entry.block_hashes:
        return [(entry.prefix_hash, entry.token_count)]
    counts, total = [], 0
    for count in entry.block_token_counts:
        total += count
        counts.append(total)
    return list(zip(entry.block_hashes, counts, strict=True))


async def agreed(engine: Engine, dump_url: str, within: float = 60.0) -> set[Hold]:
    """Wait until the index says of the engine what is so, hash by hash; what that is."""
    expected = held_by(engine)
    deadline = asyncio.get_running_loop().time() + within
    while (known := await known_to(dump_url)) != expected:
        assert asyncio.get_running_loop().time() < deadline, (
            f"the index lacks {len(expected - known)} and has {len(known - expected)} too many of {len(expected)} holds"
        )
        await asyncio.sleep(0.02)
    return known


async def eventually(look: Callable[[], T | None], within: float = 60.0) -> T:
    """What `look` finds, once that is not nothing."""
    deadline = asyncio.get_running_loop().time() + within
    while asyncio.get_running_loop().time() < deadline:
        if found := look():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing was found within {within:g} s")


def engine_settings(**settings: Any) -> FakeEngineSettings:
    """An engine on a port of its own that publishes what requests store."""
    defaults: dict[str, Any] = {
        "bind": "tcp://127.0.0.1:*",
        "repeat": False,
        "batch": RepeatedBatch(block_size=BLOCK_SIZE),
        "encoding": Encoding.MAP,
    }
    return FakeEngineSettings(**defaults | settings)


def sidecar_settings(engine: Engine, *servers: str, **settings: Any) -> SubscriberSettings:
    """A sidecar of that engine, in a hurry."""
    publisher = engine.ranks[0].publisher
    defaults: dict[str, Any] = {
        "identity": Identity(REPLICA, MODEL, TENANT, SCHEME),
        "servers": [Target(host, int(port)) for host, _, port in (each.rpartition(":") for each in servers)],
        "engine_endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint,
        "window": 0.01,
        "redial": 0.05,
        "backoff": Backoff(first=0.02, longest=0.2),
        "health": None,
        "stats_interval": 3600.0,
    }
    return SubscriberSettings(**defaults | settings)


@dataclass
class Sidecar:
    """A sidecar at work."""

    engine: Engine
    subscriber: Subscriber
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def connected(self) -> None:
        """Wait until it hears what the engine publishes, on all ranks."""
        await eventually(lambda: all(rank.publisher.listeners for rank in self.engine.ranks))
        await eventually(lambda: all(source.connected for source in self.subscriber.sources))

    async def end(self) -> None:
        """Stop it and wait for its last words."""
        self.stop.set()
        await self.task

    async def kill(self) -> None:
        """End it without last words."""
        self.task.cancel()
        await asyncio.wait((self.task,))


@asynccontextmanager
async def sidecar(engine: Engine, *servers: str, **fields: Any) -> AsyncIterator[Sidecar]:
    """A sidecar of that engine, until the end of the context."""
    settings = sidecar_settings(engine, *servers, **fields)
    subscriber = Subscriber(settings)
    stop = asyncio.Event()
    task = asyncio.create_task(subscriber.run(stop))
    try:
        yield Sidecar(engine, subscriber, stop, task)
    finally:
        stop.set()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


@dataclass
class World:
    """An engine, a server, and a sidecar between them."""

    engine: Engine
    server: Running
    sidecar: Sidecar

    async def agreed(self) -> set[Hold]:
        """Wait until the server's index says of the engine what is so."""
        return await agreed(self.engine, self.server.url("/dump"))


@asynccontextmanager
async def world(
    server: Running, engine: FakeEngineSettings | None = None, **sidecar_fields: Any
) -> AsyncIterator[World]:
    """An engine and a sidecar that hears it, beside a server."""
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(engine_running(engine or engine_settings()))
        at_work = await stack.enter_async_context(sidecar(made, server.target(), **sidecar_fields))
        await at_work.connected()
        yield World(made, server, at_work)
