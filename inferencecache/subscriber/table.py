"""A table of fixed-width records by 64-bit key, for the hundred thousands of blocks that an engine keeps.

The sidecar may use 128 MiB, the interpreter and its libraries take half of that, and each block has to be known twice,
by the engine's name and by our own. A dict spends some 250 bytes on a record: the boxed numbers, the tuple around them,
and a share of the free places that a dict keeps when old entries go and new ones come. Here a record costs what it is
wide, and half as much again.

Records lie side by side in buckets, which are byte strings, and are found by searching one for the key's bytes. The
number of buckets is fixed: nothing is ever rehashed, so no block's arrival takes long. A bucket is short up to some
hundred thousand records, and beyond, searching it is still done in C. As the search is most of what a step costs, there
are buckets enough to have three of a hundred thousand records each.

Keys are digests, hence spread evenly already, and choose their bucket as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

FEW: Final = 16_381
MANY: Final = 32_749
"""Numbers of buckets; primes, so that keys that are multiples of something spread, too."""
_KEY_BYTES: Final = 8

Record = tuple[int, ...]

_pack_key = struct.Struct("<Q").pack


class Table:
    """Records of unsigned numbers by key.

    Args:
        layout: one letter of the `struct` module per number of a record: `H`, `I` and `Q` are 16, 32 and 64 bits wide.
        buckets: how many; a third of the records is a good number.

    Attributes:
        size: the number of records.
    """

    __slots__ = ("_buckets", "_count", "_entries", "_pack", "_unpack", "_width", "size")

    def __init__(self, layout: str, buckets: int = MANY) -> None:
        entry = struct.Struct(f"<Q{layout}")
        self._pack = entry.pack
        self._entries = entry.iter_unpack
        self._unpack = struct.Struct(f"<{layout}").unpack_from
        self._width = entry.size
        self._buckets = [b""] * buckets
        self._count = buckets
        self.size = 0

    def __iter__(self) -> Iterator[Record]:
        """The entries, each a key and its record, in no order; the table must not change meanwhile."""
        for bucket in filter(None, self._buckets):
            yield from self._entries(bucket)

    def get(self, key: int) -> Record | None:
        """The record of a key, or None."""
        bucket = self._buckets[key % self._count]
        wanted = _pack_key(key)
        start = bucket.find(wanted)
        if start > 0 and start % self._width:
            start = self._find(bucket, wanted)
        return None if start < 0 else self._unpack(bucket, start + _KEY_BYTES)

    def add(self, keys: Sequence[int], *columns: Iterable[int]) -> set[int]:
        """Add many records, given as columns, but for those whose key has one already, be it from this call.

        Returns:
            The places of the keys that had one.
        """
        buckets, count = self._buckets, self._count
        there: set[int] = set()
        for place, key, packed in zip(range(len(keys)), keys, map(self._pack, keys, *columns), strict=True):
            index = key % count
            bucket = buckets[index]
            if not bucket:
                buckets[index] = packed
            # Of the ways to search bytes, this one takes half the time of the others: it parses no arguments.
            elif bucket.partition(packed[:_KEY_BYTES])[1] and self._find(bucket, packed[:_KEY_BYTES]) >= 0:
                there.add(place)
            else:
                buckets[index] = bucket + packed
        self.size += len(keys) - len(there)
        return there

    def setdefault(self, *entry: int) -> Record | None:
        """Add an entry, which is a key and its record, if the key has none; otherwise the answer is the one it has."""
        index = entry[0] % self._count
        bucket = self._buckets[index]
        packed = self._pack(*entry)
        if bucket:
            start = bucket.find(packed[:_KEY_BYTES])
            if start > 0 and start % self._width:
                start = self._find(bucket, packed[:_KEY_BYTES])
            if start >= 0:
                return self._unpack(bucket, start + _KEY_BYTES)
        self._buckets[index] = bucket + packed
        self.size += 1
        return None

    def replace(self, *entry: int) -> None:
        """Change the record of a key that has one."""
        index = entry[0] % self._count
        bucket = self._buckets[index]
        packed = self._pack(*entry)
        start = self._find(bucket, packed[:_KEY_BYTES])
        self._buckets[index] = bucket[:start] + packed + bucket[start + self._width :]

    def remove(self, key: int) -> None:
        """Remove the record of a key that has one."""
        index = key % self._count
        bucket = self._buckets[index]
        start = self._find(bucket, _pack_key(key))
        self._buckets[index] = bucket[:start] + bucket[start + self._width :]
        self.size -= 1

    def _find(self, bucket: bytes, key: bytes) -> int:
        """Where a key's record begins, or -1. Equal bytes inside a record, or across two, are no key."""
        start = bucket.find(key)
        while start > 0 and start % self._width:
            start = bucket.find(key, start + 1)
        return start
