"""The engine: ranks with a cache and a publisher each, and what they have been through, for its metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from inferencecache.fakeengine.cache import BlockCache
from inferencecache.fakeengine.encoding import Encoding, encode
from inferencecache.fakeengine.publisher import Publisher
from inferencecache.wire.events import AllBlocksCleared, Event


class Counters(msgspec.Struct):
    """Of one rank, since the process began; tokens."""

    queries: int = 0
    hits: int = 0
    prompts: int = 0


class Completed(NamedTuple):
    """What became of a request: which rank took it, its tokens, and how many of them were in the cache."""

    rank: int
    prompt_tokens: int
    cached_tokens: int


class Rank:
    """One data-parallel rank.

    Args:
        number: from 0.
        publisher: its sockets.
        cache: its blocks.
        encoding: of its events.
        restart_after: batches, after which it is a new process; 0: never.
    """

    def __init__(
        self,
        number: int,
        publisher: Publisher,
        cache: BlockCache,
        *,
        encoding: Encoding = Encoding.ARRAY,
        restart_after: int = 0,
    ) -> None:
        self.number = number
        self.publisher = publisher
        self.cache = cache
        self.counters = Counters()
        self.running = 0
        self._encoding = encoding
        self._restart_after = restart_after

    async def compute(self, tokens: Sequence[int], adapter: str = "") -> Completed:
        """Run a prompt and tell what that changed."""
        computed = self.cache.compute(tokens, adapter)
        self.counters.prompts += 1
        self.counters.queries += len(tokens)
        self.counters.hits += computed.hit_tokens
        if computed.events:
            await self.publish(computed.events, ts=time.time())
        return Completed(self.number, len(tokens), computed.hit_tokens)

    async def clear(self) -> None:
        """Empty the cache and say so."""
        self.cache.clear()
        await self.publish([AllBlocksCleared()], ts=time.time())

    async def publish(self, events: Sequence[Event], *, ts: float, rank_on_wire: bool = True) -> None:
        """Send one batch."""
        rank = self.number if rank_on_wire else None
        await self.publish_bytes(encode(events, self._encoding, ts=ts, rank=rank))

    async def publish_bytes(self, payload: bytes) -> None:
        """Send one batch as it is; afterwards a restart, if one is due."""
        self.publisher.publish(payload)
        if self._restart_after and self.publisher.sequence >= self._restart_after:
            await self.restart()

    async def restart(self) -> None:
        """Be a new process: the cache is empty, and nobody is told."""
        self.cache.clear()
        await self.publisher.restart()


class Engine:
    """Ranks that take requests in turn."""

    def __init__(self, model: str, ranks: Sequence[Rank]) -> None:
        self.model = model
        self.ranks = ranks
        self._turn = 0

    async def complete(self, tokens: Sequence[int], rank: int | None = None, adapter: str = "") -> Completed:
        """Run a prompt on a rank, or on the one whose turn it is.

        Raises:
            IndexError: there is no such rank.
        """
        if rank is None:
            rank = self._turn
            self._turn = (self._turn + 1) % len(self.ranks)
        if rank < 0:
            raise IndexError(f"there is no rank {rank}")
        return await self.ranks[rank].compute(tokens, adapter)
