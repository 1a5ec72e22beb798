"""A prefix cache of blocks, as engines keep it on their GPUs: what a prompt finds there, and what it leaves behind.

A block is named by a hash over its tokens, the block before it, and the adapter. Blocks are evicted when the cache is
full, least recently used first, and of one prompt the last first: a block is of no use without those before it.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from inferencecache.wire.events import BlockRemoved, BlockStored, Event

_NO_PARENT = 0


class Block(NamedTuple):
    """What a held block is: the prompt up to its end is what makes it."""

    prefix: tuple[int, ...]
    adapter: str


class Computed(NamedTuple):
    """What became of a prompt.

    Attributes:
        hit_tokens: tokens at its beginning whose blocks were there already.
        events: what changed, in order.
    """

    hit_tokens: int
    events: list[Event]


class BlockCache:
    """The blocks of one rank.

    Args:
        block_size: tokens per block.
        capacity: blocks that fit.
        medium: what events say that it is; None is not told, which means the GPU.
    """

    def __init__(self, block_size: int, capacity: int, medium: str | None = None) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self._medium = medium
        self._blocks: OrderedDict[int, Block] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> list[Block]:
        """What is held, in no particular order."""
        return list(self._blocks.values())

    def compute(self, tokens: Sequence[int], adapter: str = "") -> Computed:
        """Run a prompt: its full blocks are in the cache afterwards, as far as they fit."""
        hashes = block_hashes(tokens, self.block_size, adapter)
        hits = 0
        while hits < len(hashes) and hashes[hits] in self._blocks:
            hits += 1
        events: list[Event] = []
        if hits < len(hashes):
            events.append(self._stored(tokens, hashes, hits, adapter))
        for index in reversed(range(len(hashes))):
            self._blocks[hashes[index]] = Block(tuple(tokens[: (index + 1) * self.block_size]), adapter)
            self._blocks.move_to_end(hashes[index])
        evicted = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self.capacity)]
        if evicted:
            events.append(BlockRemoved(block_hashes=evicted, medium=self._medium))
        return Computed(hits * self.block_size, events)

    def clear(self) -> None:
        """Forget everything, as a restart does; nobody is told."""
        self._blocks.clear()

    def _stored(self, tokens: Sequence[int], hashes: Sequence[int], first: int, adapter: str) -> BlockStored:
        return BlockStored(
            block_hashes=list(hashes[first:]),
            parent_block_hash=hashes[first - 1] if first else None,
            token_ids=list(tokens[first * self.block_size : len(hashes) * self.block_size]),
            block_size=self.block_size,
            medium=self._medium,
            lora_name=adapter or None,
        )


def block_hashes(tokens: Sequence[int], block_size: int, adapter: str = "") -> list[int]:
    """The engine's own names of a prompt's full blocks: unsigned 64-bit integers, and nothing to do with the index."""
    parent = xxh3_64_intdigest(adapter.encode()) if adapter else _NO_PARENT
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = tokens[start : start + block_size]
        parent = xxh3_64_intdigest(struct.pack(f"<Q{block_size}I", parent, *block))
        hashes.append(parent)
    return hashes
