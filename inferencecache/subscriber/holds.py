"""What the replica as a whole holds: a block is held as long as any rank holds it on any medium.

The index knows replicas, not ranks, and knows a block by its prefix hash and adapter, not by an engine's name for it.
So several blocks of several ranks, and sometimes several of one (spec 08 §15 fact 9), may be one hold. For each hold
it is counted how many blocks have it in each tier; it is as fast as the fastest of them.

Nearly all holds are of one block on the GPU. Of these only the key is kept, in a set, which takes a tenth of the time
of a table of counts, and not much more memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inferencecache.subscriber.table import FEW, Table
from inferencecache.subscriber.tiers import Tier

_COUNT_BITS: Final = 20
_T1_COUNT: Final = (1 << _COUNT_BITS) - 1
_T2_COUNT: Final = _T1_COUNT << _COUNT_BITS
_ONE_OF: Final = [
    (tiers & 1) + ((tiers >> 1 & 1) << _COUNT_BITS) + ((tiers >> 2 & 1) << 2 * _COUNT_BITS) for tiers in range(8)
]
_SOLE: Final = 1
"""The counts of one block in T1."""
_U64: Final = 2**64 - 1
_SPREAD: Final = 0x9E3779B97F4A7C15  # an odd number of many bits: partitions of equal prefixes get unrelated keys


class Holds:
    """Counts per prefix hash and adapter; adapters are small numbers here."""

    def __init__(self) -> None:
        self._sole: set[int] = set()
        """Holds of one block, which is in T1."""
        self._others = Table("Q", FEW)
        """The counts of all others."""

    def __len__(self) -> int:
        return len(self._sole) + self._others.size

    def best(self, prefix_hash: int, adapter: int) -> Tier | None:
        """The fastest tier in which the replica has this prefix, or None."""
        return _best(self._counts(_key(prefix_hash, adapter)))

    def gain(self, prefix_hashes: Sequence[int], adapter: int) -> bool:
        """Take note of new blocks in T1 all at once, unless one of the prefixes is held already.

        Returns:
            Whether that was done.
        """
        keys = [_key(prefix_hash, adapter) for prefix_hash in prefix_hashes] if adapter else prefix_hashes
        if self._others.size and any(self._others.get(key) for key in keys):
            return False
        if not self._sole.isdisjoint(keys):
            return False
        before = len(self._sole)
        self._sole.update(keys)
        if len(self._sole) < before + len(keys):  # one comes twice
            self._sole.difference_update(keys)
            return False
        return True

    def change(self, prefix_hash: int, adapter: int, before: int, after: int) -> tuple[Tier | None, Tier | None]:
        """Take note that one of the hold's blocks changed tiers.

        Args:
            prefix_hash: of the hold.
            adapter: of the hold.
            before: the tiers the block had, as bits (`tiers.tiers_in`); 0 if it is new.
            after: those it has now; 0 if it is gone.

        Returns:
            The hold's fastest tier before and after.
        """
        key = _key(prefix_hash, adapter) if adapter else prefix_hash
        known = self._counts(key)
        if not known and after == _SOLE:
            self._sole.add(key)
            return None, Tier.T1
        counts = known + _ONE_OF[after] - _ONE_OF[before]
        if known == _SOLE:
            self._sole.remove(key)
        elif known:
            self._others.remove(key)
        if counts == _SOLE:
            self._sole.add(key)
        elif counts:
            self._others.setdefault(key, counts)
        return _best(known), _best(counts)

    def _counts(self, key: int) -> int:
        if key in self._sole:
            return _SOLE
        found = self._others.get(key) if self._others.size else None
        return found[0] if found else 0


def _key(prefix_hash: int, adapter: int) -> int:
    return prefix_hash ^ (adapter * _SPREAD & _U64)


def _best(counts: int) -> Tier | None:
    if counts & _T1_COUNT:
        return Tier.T1
    if counts & _T2_COUNT:
        return Tier.T2
    return Tier.T3 if counts else None
