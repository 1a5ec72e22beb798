"""Which of a set of prefixes was seen longest ago, without touching the others.

Every prefix maps to a **stamp**, one integer that says all a hold has to say:

    seen (µs) << 24 | batch number << 4 | kept << 3 | tier

Prefixes reported together share one stamp object and form one **batch**: their hashes, largest first. So a refresh
costs a dict write per prefix and one tuple for all of them, whatever the size of the set. A hash in a batch counts
only while its prefix still has the batch's stamp; how many do not is counted per batch, and a batch that is half dead
is filtered. Memory therefore follows the live prefixes, and a walk from the oldest on never wades through remains.

Batches wait in a heap by stamp. Those of the oldest instant form the **front**, a heap by hash, because ties in time
are broken by hash (spec 06 §6.4). A batch takes 1,024 hashes at most, so that no step is long even when a million
prefixes were seen at one instant.

**Kept** batches hold what a walk was told to step over (`keep_oldest`): they still age out, but are not offered again.

Stamps are integers and batches are tuples, except where the front takes from them, because Python's cyclic garbage
collector does not look into dicts and tuples of such things. It would otherwise stop the process to look at millions.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final

from inferencecache.server.index.sequences import Sequences

BATCH: Final = 1024

_SEEN_SHIFT: Final = 24
_KEPT: Final = 1 << 3
_NEXT_BATCH: Final = 1 << 4
_TIER: Final = 7
_SAME_BATCHES: Final = ~((1 << _SEEN_SHIFT) - _NEXT_BATCH)  # all of a stamp but its batch number
_SLACK: Final = 64  # outlived heap entries, beyond one per batch, before the heap is rebuilt


def seen_us(stamp: int) -> int:
    """The instant of a stamp, in microseconds since 1970."""
    return stamp >> _SEEN_SHIFT


def first_stamp(at_us: int) -> int:
    """A stamp that is later than all of earlier instants, and not later than any of `at_us`."""
    return at_us << _SEEN_SHIFT


def tier_of(stamp: int) -> int:
    """The tier (1 to 7) of a stamp."""
    return stamp & _TIER


class Recency:
    """Prefixes by when they were last seen. `stamps` may be read by anyone and written by nobody else.

    `sequences` are kept in step with them where chains are looked for.
    """

    __slots__ = ("_batches", "_dead", "_filling", "_front", "_kept", "_newest", "_waiting", "sequences", "stamps")

    def __init__(self, sequences: Sequences | None = None) -> None:
        self.stamps: dict[bytes, int] = {}
        self.sequences = sequences
        self._batches: dict[int, tuple[bytes, ...] | list[bytes]] = {}
        self._dead: dict[int, int] = {}
        self._waiting: list[int] = []
        self._front: list[tuple[bytes, int]] = []
        self._kept: list[int] = []
        self._filling: int | None = None
        self._newest: int | None = None

    def put(self, hashes: list[bytes], at_us: int, tier: int) -> list[int | None]:
        """Mark `hashes` (distinct) as seen at `at_us` in `tier` (1 to 7), earlier or later than before alike.

        Returns the stamps they had, `None` for those that are new.
        """
        if 0 < len(hashes) <= BATCH:
            return self._put(hashes, at_us, tier)
        before: list[int | None] = []
        for start in range(0, len(hashes), BATCH):
            before += self._put(hashes[start : start + BATCH], at_us, tier)
        return before

    def discard(self, prefix_hash: bytes) -> int | None:
        """Forget one prefix; returns the stamp it had, if it was there."""
        stamp = self.stamps.pop(prefix_hash, None)
        if stamp is not None:
            self._bury(stamp, 1)
            if self.sequences is not None:
                self.sequences.cut(stamp, prefix_hash)
        return stamp

    def oldest(self) -> tuple[int, bytes] | None:
        """When the prefix was seen that was seen longest ago, and its hash; the smallest hash of equals; none kept."""
        while self._front or self._open_front():
            prefix_hash, stamp = self._front[0]
            batch = self._batches.get(stamp)
            if batch is None:
                heappop(self._front)
            elif batch[-1] != prefix_hash:  # filtered or added to since
                heapreplace(self._front, (batch[-1], stamp))
            elif self.stamps.get(prefix_hash) == stamp:
                return stamp >> _SEEN_SHIFT, prefix_hash
            else:
                self._opened(stamp).pop()
                self._dead[stamp] -= 1
        return None

    def oldest_together(self, most: int) -> list[bytes]:
        """Some of the prefixes that `oldest` would name from here on if each were discarded, at least the one it has.

        They were seen at one instant; there are at most `most` (1 or more).
        """
        if len(self._front) > 1:
            return [self._front[0][0]]
        ((_, stamp),) = self._front
        live = (prefix_hash for prefix_hash in reversed(self._batches[stamp]) if self.stamps.get(prefix_hash) == stamp)
        return list(islice(live, most))

    def keep_oldest(self) -> None:
        """Step over the prefix that `oldest` has just named: it is not offered again until seen or released."""
        prefix_hash, stamp = self._front[0]
        kept = stamp | _KEPT
        if kept in self._dead:
            self._filter(kept)
        self.stamps[prefix_hash] = kept
        if kept not in self._batches:
            self._batches[kept] = []
            heappush(self._kept, kept)
        self._opened(kept).append(prefix_hash)
        batch = self._opened(stamp)
        batch.pop()
        if self.sequences is not None:
            self.sequences.cut(stamp, prefix_hash)
        if len(batch) == self._dead.get(stamp, 0):
            self._drop(stamp)

    def release_kept(self) -> int | None:
        """Offer again what was stepped over; returns when the oldest of it was seen, `None` if there was nothing."""
        oldest = None
        for kept in sorted(set(self._kept)):
            if live := self._live(kept):
                self.put(live, kept >> _SEEN_SHIFT, kept & _TIER)
                oldest = kept >> _SEEN_SHIFT if oldest is None else oldest
        self._kept.clear()
        return oldest

    def until(self, limit_us: int, most: int) -> list[bytes]:
        """At most `most` of the prefixes last seen at `limit_us` or before, kept or not; empty when there are none."""
        self._close_front()
        for heap in (self._waiting, self._kept):
            while heap and heap[0] >> _SEEN_SHIFT <= limit_us:
                if live := self._live(heap[0]):
                    return live[-most:]
                heappop(heap)
        return []

    def newest_us(self) -> int | None:
        """When the prefix was seen that was seen last; `None` when there are no prefixes."""
        if self._newest not in self._batches:
            self._newest = max(self._batches, default=None)
        return None if self._newest is None else self._newest >> _SEEN_SHIFT

    def walk(self) -> Iterator[list[tuple[bytes, int]]]:
        """All prefixes with their stamps, in groups of less than twice `BATCH`, while others come and go.

        What is there throughout is met, as it is when its turn comes, and hardly ever twice.
        """
        groups = {stamp: tuple(batch) for stamp, batch in self._batches.items()}
        for stamp, group in groups.items():
            met = []
            for prefix_hash in group:
                now = self.stamps.get(prefix_hash)
                # Where it has moved, another group has it, unless it did so since the beginning.
                if now == stamp or (now is not None and self._batches[now] is not groups.get(now)):
                    met.append((prefix_hash, now))
            yield met

    def take(self, most: int) -> dict[bytes, int]:
        """Remove about `most` prefixes, at least one if there is any, and return their stamps.

        For a recency that is at its end: after this, nothing but its `stamps` and `take` is of use. Freeing all of it
        at once would take too long.
        """
        taken: dict[bytes, int] = {}
        stamps = self.stamps
        passed = 0
        while self._batches and passed < most:
            stamp, batch = self._batches.popitem()
            passed += len(batch)
            taken.update((prefix_hash, stamp) for prefix_hash in batch if stamps.get(prefix_hash) == stamp)
            self._dead.pop(stamp, None)
            if self.sequences is not None:
                self.sequences.drop(stamp)
        deque(map(stamps.__delitem__, taken), maxlen=0)
        del self._waiting[-2 * passed :]
        del self._kept[-2 * passed :]
        del self._front[-2 * passed :]
        return taken

    def _put(self, hashes: list[bytes], at_us: int, tier: int) -> list[int | None]:
        stamp = self._batch_with_room(at_us << _SEEN_SHIFT | tier)
        before = list(map(self.stamps.get, hashes))
        self.stamps.update(dict.fromkeys(hashes, stamp))
        batch = self._batches.get(stamp)
        added = hashes
        if batch is None:
            self._batches[stamp] = batch = tuple(sorted(hashes, reverse=True))
            self._enqueue(stamp, batch[-1])
        else:
            added = [prefix_hash for prefix_hash, old in zip(hashes, before, strict=True) if old != stamp]
            self._batches[stamp] = batch = tuple(sorted((*batch, *added), reverse=True))
            if self._front and self._front[0][1] >> _SEEN_SHIFT == at_us:
                heappush(self._front, (batch[-1], stamp))
        if self.sequences is not None:
            self.sequences.add(stamp, added)
        if self._newest is None or stamp > self._newest:
            self._newest = stamp
        for old, count in Counter(before).items() if any(before) else ():
            if old is not None and old != stamp:
                self._bury(old, count)
                if self.sequences is not None:
                    self.sequences.drop(old)
        return before

    def _batch_with_room(self, first: int) -> int:
        """The stamp of a batch like `first` that may take more: a new one, or one whose refs all count."""
        filling = self._filling
        stamp = filling if filling is not None and not (filling ^ first) & _SAME_BATCHES else first
        while (batch := self._batches.get(stamp)) is not None:
            if len(batch) < BATCH:
                # A dead ref would come to life beside a new one when its prefix gets this very stamp again.
                if stamp in self._dead:
                    self._filter(stamp)
                break
            stamp += _NEXT_BATCH
        self._filling = stamp
        return stamp

    def _enqueue(self, stamp: int, smallest: bytes) -> None:
        if self._front:
            front_us = self._front[0][1] >> _SEEN_SHIFT
            if stamp >> _SEEN_SHIFT == front_us:
                heappush(self._front, (smallest, stamp))
                return
            if stamp >> _SEEN_SHIFT < front_us:
                self._close_front()
        heappush(self._waiting, stamp)

    def _open_front(self) -> bool:
        """Bring the batches of the oldest instant to the front; false when nothing waits."""
        while self._waiting:
            stamp = heappop(self._waiting)
            if self._front and stamp >> _SEEN_SHIFT != self._front[0][1] >> _SEEN_SHIFT:
                heappush(self._waiting, stamp)
                break
            if batch := self._batches.get(stamp):
                heappush(self._front, (batch[-1], stamp))
        return bool(self._front)

    def _close_front(self) -> None:
        for _, stamp in self._front:
            heappush(self._waiting, stamp)
        self._front.clear()

    def _opened(self, stamp: int) -> list[bytes]:
        """A batch as a list, for as long as it is taken from."""
        batch = self._batches[stamp]
        if isinstance(batch, tuple):
            self._batches[stamp] = batch = list(batch)
        return batch

    def _live(self, stamp: int) -> list[bytes]:
        stamps = self.stamps
        return [prefix_hash for prefix_hash in self._batches.get(stamp, ()) if stamps.get(prefix_hash) == stamp]

    def _bury(self, stamp: int, count: int) -> None:
        """Note that `count` refs of a batch no longer count, after their prefixes have left its stamp."""
        dead = self._dead.get(stamp, 0) + count
        size = len(self._batches[stamp])
        if dead == size:
            self._drop(stamp)
        else:
            self._dead[stamp] = dead
            if 2 * dead > size:
                self._filter(stamp)

    def _filter(self, stamp: int) -> None:
        self._batches[stamp] = tuple(self._live(stamp))
        del self._dead[stamp]

    def _drop(self, stamp: int) -> None:
        del self._batches[stamp]
        self._dead.pop(stamp, None)
        if len(self._waiting) > 2 * len(self._batches) + _SLACK:
            self._waiting = [stamp for stamp in self._batches if not stamp & _KEPT]
            heapify(self._waiting)
            self._front.clear()
        if len(self._kept) > 2 * len(self._batches) + _SLACK:
            self._kept = [stamp for stamp in self._batches if stamp & _KEPT]
            heapify(self._kept)
