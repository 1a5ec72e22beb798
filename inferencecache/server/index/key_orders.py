"""The order in which a tenant's keys go when there are more than its quota: those first whose newest holder is oldest
(spec 06 §6.4).

Most tenants never reach a quota, so the order is kept from the first time on that one does. By then there may be
millions of holds, so it is made in steps (`merge`) while the index changes. A partition's order names, at any time, the
newest of those holders of a key that it has met; of what is reported meanwhile it is told, and when the newest holder
of a key goes, it looks at all others. So once every hold that was there at the beginning has been met, it is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from inferencecache.server.index.oldest_first import OldestFirst, Source
from inferencecache.server.index.partition import Partition
from inferencecache.server.index.recency import Recency, seen_us

_HOLDS_PER_PARTITION: Final = 16
_NO_TIER: Final = 1  # a recency of keys is asked for instants only


class KeyOrder(Source):
    """A partition's keys, each by the instant of its newest holder; tells `queue` of keys that became older."""

    __slots__ = ("_older", "_partition", "_queue", "made")

    def __init__(self, partition: Partition, queue: OldestFirst[KeyOrder]) -> None:
        super().__init__(partition.rank, "", Recency())
        self._partition = partition
        self._queue = queue
        self._older = chain.from_iterable(lane.walk() for lane in list(partition.lanes.values()))
        self.made = False

    @property
    def partition(self) -> Partition:
        """Whose keys these are."""
        return self._partition

    def merge(self, most: int) -> int:
        """Meet about `most` of the holds that are older than this order; returns how many."""
        met = 0
        while met < most and not self.made:
            group = next(self._older, None)
            if group is None:
                self.made = True
            else:
                self._meet(group)
                met += len(group)
        return met

    def follow(self, hashes: list[bytes], before: list[int | None], at_us: int) -> None:
        """Take in that one replica, which last reported `hashes` at `before`, has just reported them at `at_us`."""
        known = self.recency.stamps
        later: list[bytes] = []
        for prefix_hash, old in zip(hashes, before, strict=True):
            newest = known.get(prefix_hash)
            if newest is None or seen_us(newest) < at_us:
                later.append(prefix_hash)
            elif old is not None and seen_us(old) == seen_us(newest) != at_us:
                self._settle(prefix_hash)
        self._put(later, at_us)

    def forget(self, prefix_hash: bytes) -> None:
        """Take in that the last hold of a key has gone: there is nobody else to be asked for it."""
        self.recency.discard(prefix_hash)

    def lose(self, prefix_hash: bytes, stamp: int) -> None:
        """Take in that a hold with `stamp` has gone, and that the key has others."""
        newest = self.recency.stamps.get(prefix_hash)
        if newest is not None and seen_us(newest) == seen_us(stamp):
            self._settle(prefix_hash)

    def _meet(self, held: list[tuple[bytes, int]]) -> None:
        known = self.recency.stamps
        later: dict[int, list[bytes]] = {}
        for prefix_hash, stamp in held:
            at_us, newest = seen_us(stamp), known.get(prefix_hash)
            if newest is None or seen_us(newest) < at_us:
                later.setdefault(at_us, []).append(prefix_hash)
        for at_us, together in later.items():
            self._put(together, at_us)

    def _settle(self, prefix_hash: bytes) -> None:
        """Find the newest holder of a key again, after the one it had has gone or moved back."""
        lanes = self._partition.lanes.values()
        stamps = [stamp for lane in lanes if (stamp := lane.recency.stamps.get(prefix_hash)) is not None]
        if stamps:
            self._put([prefix_hash], seen_us(max(stamps)))
        else:
            self.recency.discard(prefix_hash)

    def _put(self, hashes: list[bytes], at_us: int) -> None:
        if hashes:
            self.recency.put(hashes, at_us, _NO_TIER)
            self._queue.offer(self, at_us)


class KeyOrders:
    """The orders of all of a tenant's partitions, as one."""

    def __init__(self, partitions: Iterator[Partition]) -> None:
        """`partitions` gives those that are there already, when they are asked for: there may be thousands."""
        self._queue: OldestFirst[KeyOrder] = OldestFirst()
        self._coming = partitions
        self._merging: KeyOrder | None = None
        self.made = False

    def add(self, partition: Partition) -> KeyOrder:
        """Keep the order of one more partition."""
        order = partition.key_order = KeyOrder(partition, self._queue)
        return order

    def remove(self, partition: Partition) -> list[Recency]:
        """Keep a partition's order no longer; returns what is left to be freed."""
        order, partition.key_order = partition.key_order, None
        if order is None:
            return []
        self._queue.withdraw(order)
        recency, order.recency = order.recency, Recency()
        return [recency]

    def merge(self, most: int) -> int:
        """Go on with making the orders, by about `most` holds; returns how many they were. `made` says when it is done,
        and `oldest` can be asked."""
        met = 0
        while met < most and not self.made:
            if self._merging is None:
                met += self._begin()
            else:
                met += self._merging.merge(most - met)
                if self._merging.made:
                    self._merging = None
        return met

    def _begin(self) -> int:
        """Begin with the next partition that has no order yet; returns how many holds could be met meanwhile."""
        partition = next(self._coming, None)
        if partition is None:
            self.made = True
            return 0
        if partition.key_order is None and not partition.abandoned:
            self._merging = self.add(partition)
        return _HOLDS_PER_PARTITION

    def oldest(self) -> tuple[KeyOrder, bytes] | None:
        """The next key to go, and the order it is in; None when there are no keys."""
        return self._queue.oldest()
