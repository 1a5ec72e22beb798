"""One batch that is published again and again, and what an index should make of it (spec 08 §12).

Its tokens are consecutive numbers, so anybody can compute the same prefix hashes. All events are in one batch, so that
nobody hears a suffix without what it continues, and it is repeated, as a subscriber may come at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inferencecache.wire import fingerprint
from inferencecache.wire.events import BlockStored

FIRST_BLOCK_HASH: Final = 0xE000
MAX_TOKENS: Final = 2**24


@dataclass(frozen=True, kw_only=True)
class RepeatedBatch:
    """`num_blocks` blocks of `block_size` tokens from `start_token` on, told in `events` events.

    Raises:
        ValueError: there is no such batch.
    """

    block_size: int = 128
    num_blocks: int = 1
    events: int = 1
    start_token: int = 0
    omit_token_ids: bool = False
    medium: str | None = None

    def __post_init__(self) -> None:
        tokens = self.block_size * self.num_blocks
        if self.block_size <= 0:
            raise ValueError(f"--block-size={self.block_size}: needs a positive number")
        if self.num_blocks <= 0:
            raise ValueError(f"--num-blocks={self.num_blocks}: needs a positive number")
        if tokens > MAX_TOKENS:
            raise ValueError(f"--num-blocks={self.num_blocks}: makes {tokens} tokens; at most {MAX_TOKENS} can be")
        if self.start_token < 0 or self.start_token + tokens - 1 > fingerprint.MAX_TOKEN_ID:
            raise ValueError(
                f"--start-token={self.start_token}: the tokens must lie between 0 and {fingerprint.MAX_TOKEN_ID}"
            )
        if not 1 <= self.events <= self.num_blocks:
            raise ValueError(f"--events={self.events}: needs a number from 1 to the number of blocks")

    @property
    def tokens(self) -> range:
        """All tokens, in order."""
        return range(self.start_token, self.start_token + self.block_size * self.num_blocks)

    def stored(self) -> list[BlockStored]:
        """The events. Blocks are spread evenly; the first events have one more if that does not come out even."""
        made = []
        first = 0
        for number in range(self.events):
            last = first + self.num_blocks // self.events + (number < self.num_blocks % self.events)
            tokens = self.tokens[first * self.block_size : last * self.block_size]
            made.append(
                BlockStored(
                    block_hashes=[FIRST_BLOCK_HASH + block for block in range(first, last)],
                    parent_block_hash=FIRST_BLOCK_HASH + first - 1 if number else None,
                    token_ids=None if self.omit_token_ids else list(tokens),
                    block_size=self.block_size,
                    medium=self.medium,
                )
            )
            first = last
        return made

    def expectations(self) -> Iterator[str]:
        """Lines that say what a lookup should find, for scripts to read."""
        if self.omit_token_ids:
            yield "EXPECT nothing: the events have no token ids"
            return
        for index, prefix_hash in enumerate(fingerprint.prefix_hashes(self.tokens, self.block_size)):
            yield (
                f"EXPECT prefix_hash[{index}]={fingerprint.key(prefix_hash).hex()} "
                f"token_count={(index + 1) * self.block_size}"
            )
