"""The blocks of one rank of an engine, by the engine's hashes: those that are held, and some that were until lately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inferencecache.subscriber.table import FEW, MANY, Record, Table

REMEMBERED: Final = 4_096
"""Removed blocks that may still be continued."""

_BLOCK: Final = "QIHQ"
"""Of a block: its prefix hash, cumulative tokens, adapter, and media."""

PREFIX, TOKENS, ADAPTER, MEDIA = range(4)


class Rank:
    """One rank's blocks.

    Args:
        remembered: how many removed ones may still be continued; at least the last so many, at most twice as many.

    Attributes:
        blocks: those that are held.
    """

    __slots__ = ("_buckets", "_earlier", "_lately", "_remembered", "blocks", "newest")

    def __init__(self, remembered: int) -> None:
        self.blocks = Table(_BLOCK)
        self.newest: tuple[int, Record] | None = None
        """The block that was stored last, which the next one mostly continues; its media are not kept up to date."""
        self._buckets = FEW if remembered <= REMEMBERED else MANY
        self._lately = Table(_BLOCK, self._buckets)
        self._earlier = Table(_BLOCK, self._buckets)
        self._remembered = remembered

    @property
    def entries(self) -> int:
        """Blocks that are held or remembered."""
        return self.blocks.size + self._lately.size + self._earlier.size

    def known(self, block_hash: int) -> Record | None:
        """What a hash stands for, if it is held or was lately; its media may be those of another time."""
        if self.newest is not None and self.newest[0] == block_hash:
            return self.newest[1]
        return self.blocks.get(block_hash) or self._lately.get(block_hash) or self._earlier.get(block_hash)

    def forget(self, block_hash: int, held: Record, left: int) -> None:
        """A block was removed from its last medium; `left` is kept in place of its media."""
        self.blocks.remove(block_hash)
        prefix, tokens, adapter, _ = held
        if self._lately.setdefault(block_hash, prefix, tokens, adapter, left) is not None:
            self._lately.replace(block_hash, prefix, tokens, adapter, left)
        if self._lately.size >= self._remembered:
            self._lately, self._earlier = Table(_BLOCK, self._buckets), self._lately

    def removed(self) -> Iterator[Record]:
        """The removed blocks that are remembered, each as it was removed last."""
        for block_hash, *record in self._earlier:
            if self._lately.get(block_hash) is None:
                yield tuple(record)
        for _, *record in self._lately:
            yield tuple(record)
