"""Blocks that were reported together, in the order of the report, to be compared with a chain all at once.

A chain that is asked for was mostly reported as it is asked: an engine stores the blocks of a prompt in order. To probe
a large dict for each block is to wait for memory three times per block and replica; one comparison of the bytes of all
of them is a hundred times as fast. So beside the dict that is the truth there is, for each batch of a recency, a
*sequence*: the hashes of the batch one behind the other, as far as they still have its stamp.

A sequence is only ever a shortcut. A block that is in it has the sequence's stamp now; one that is not may have it all
the same. When a block leaves a batch, the longer part of the sequence beside it is kept: engines drop the end of a
prompt first. There is none for short batches, nor for hashes that are not as long as a fingerprint (spec 07), which
could be mistaken for others once they stand one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inferencecache.wire.route_request import Fingerprints

WIDTH: Final = 8
"""Bytes of a fingerprint."""
SHORTEST: Final = 16
"""Blocks of a sequence; fewer are not worth the memory."""

_WINDOW: Final = 512  # bytes that are compared as numbers
_MISALIGNED: Final = 4  # finds at no block's beginning, before a sequence is left alone: it takes chosen hashes


def pack(blocks: Sequence[bytes]) -> bytes:
    """The blocks one behind the other; empty if they are few, or not all as long as a fingerprint."""
    if isinstance(blocks, Fingerprints):
        return blocks.packed if len(blocks) >= SHORTEST else b""
    return b"".join(blocks) if len(blocks) >= SHORTEST and set(map(len, blocks)) == {WIDTH} else b""


class Sequences:
    """The sequences of one recency, by stamp."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, stamp: int, hashes: Sequence[bytes]) -> None:
        """Note that these were reported together and have this stamp."""
        if packed := pack(hashes):
            self._packed[stamp] = self._packed.get(stamp, b"") + packed

    def cut(self, stamp: int, prefix_hash: bytes) -> None:
        """Leave a block out that no longer has the stamp."""
        packed = self._packed.get(stamp)
        if packed is None:
            return
        # From the end: that is where engines begin, and then all but this block remains.
        at = packed.rfind(prefix_hash)
        for _ in range(_MISALIGNED):
            if at < 0 or not at % WIDTH:
                break
            at = packed.rfind(prefix_hash, 0, at + WIDTH - 1)
        if at < 0:
            return
        longer = b"" if at % WIDTH else max(packed[:at], packed[at + WIDTH :], key=len)
        if len(longer) < SHORTEST * WIDTH:
            del self._packed[stamp]
        else:
            self._packed[stamp] = longer

    def drop(self, stamp: int) -> None:
        """Forget a sequence, if there is one, as many of its blocks have another stamp."""
        self._packed.pop(stamp, None)

    def run(self, stamp: int, packed: bytes, at: int) -> int:
        """How many blocks of a chain, from its block `at` on, are known to have this stamp; 0 if none is."""
        sequence = self._packed.get(stamp)
        if sequence is None:
            return 0
        here = at * WIDTH
        start = sequence.find(packed[here : here + WIDTH])
        if start % WIDTH:
            start = _find_further(sequence, packed[here : here + WIDTH], start)
        if start < 0:
            return 0
        size = min(len(sequence) - start, len(packed) - here)
        if not sequence.startswith(packed[here : here + size], start):
            size = _common(sequence, start, packed, here)
        return size // WIDTH


def _find_further(sequence: bytes, block: bytes, start: int) -> int:
    """Where a block begins that is found at `start`, across two others; negative: nowhere, or it is hard to tell."""
    for _ in range(_MISALIGNED):
        if start < 0 or not start % WIDTH:
            return start
        start = sequence.find(block, start + 1)
    return -1


def _common(left: bytes, start: int, right: bytes, here: int) -> int:
    """How many bytes are the same from two places on, up to a difference that there is."""
    first = start
    while left.startswith(right[here : here + _WINDOW], start):
        start += _WINDOW
        here += _WINDOW
    mine = int.from_bytes(left[start : start + _WINDOW], "little")
    difference = mine ^ int.from_bytes(right[here : here + _WINDOW], "little")
    return start - first + ((difference & -difference).bit_length() - 1) // 8
