"""Blocks of one kind, each the parent of the next, of as many events as tell of them.

Engines tell a prompt's blocks one by one, or some at a time, and half of what a block costs is what an event costs. So
what follows one event without a break is taken together with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import islice
from typing import Final

from inferencecache.subscriber.tiers import Medium
from inferencecache.wire.events import BlockStored, Event

MAX_TOKENS: Final = 2**31 - 1
"""Of a prefix, as the wire to the index can count no more."""


class BlockRun:
    """The blocks of an event, which are all plain, and of those that follow it.

    Args:
        first: the event.
        adapter: of all its blocks, as the chain numbers it.
        medium: where they are.
        prefix: hash of the prefix that they continue; None if they begin a prompt.
        before: tokens of that prefix.

    Attributes:
        names: the engine's hashes of the blocks, in order.
        tokens: of all of them, `size` each.
    """

    __slots__ = ("_first", "adapter", "before", "medium", "names", "prefix", "size", "tokens")

    def __init__(self, first: BlockStored, adapter: int, medium: Medium, prefix: int | None, before: int) -> None:
        self._first = first
        self.adapter = adapter
        self.medium = medium
        self.size = first.block_size
        self.prefix = prefix
        self.before = before
        self.names = first.block_hashes[:]
        self.tokens = (first.token_ids or [])[: self.size * len(self.names)]

    def take(self, events: Sequence[Event], start: int) -> int:
        """Take the blocks of events, from one on, as long as each continues the one before it, differs from it in
        nothing else, and has full blocks only.

        Returns:
            Of how many events.
        """
        kind, size, names, tokens = self._first.__class__, self.size, self.names, self.tokens
        like = copy(self._first)
        last, room = names[-1], MAX_TOKENS - self.before - len(tokens)
        for taken, event in enumerate(islice(events, start, None)):
            if event.__class__ is not kind:
                return taken
            like.block_hashes = more = event.block_hashes
            like.token_ids = their_tokens = event.token_ids
            like.parent_block_hash = last
            if like != event or not their_tokens:
                return taken
            room -= len(their_tokens)
            if len(their_tokens) != size * len(more) or room < 0:
                return taken
            names += more
            tokens += their_tokens
            last = more[-1]
        return len(events) - start
