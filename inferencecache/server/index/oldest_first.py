"""Which of many recencies has the prefix that was seen longest ago, without asking each of them.

A heap with one entry per source that is never later than what the source really has. A source that forgets or
refreshes prefixes only moves back, so an entry that turns out too early is corrected when it comes to the top; a
source that gains something earlier must say so (`offer`).

Ties in time are broken by the source's `rank`, then the hash, then its `tail` (spec 06 §6.4).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final, Generic, TypeVar

from inferencecache.server.index.recency import Recency

_SLACK: Final = 64  # outlived entries, beyond one per source, before the heap is rebuilt
_BEFORE_ANY_HASH: Final = b""


class Source:
    """Something with a recency, in one queue at most."""

    __slots__ = ("_entry", "rank", "recency", "tail")

    def __init__(self, rank: tuple[str, ...], tail: str, recency: Recency) -> None:
        self.rank = rank
        self.tail = tail
        self.recency = recency
        self._entry: tuple[int, tuple[str, ...], bytes, str, int, Any] | None = None


S = TypeVar("S", bound=Source)


class OldestFirst(Generic[S]):
    """Sources by their oldest prefix."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, tuple[str, ...], bytes, str, int, S]] = []
        self._sources = 0
        self._number = count()  # sources do not compare

    def offer(self, source: S, at_us: int) -> None:
        """Note that `source` now has something seen at `at_us`."""
        entry = source._entry
        if entry is None:
            self._sources += 1
        elif (entry[0], entry[2]) <= (at_us, _BEFORE_ANY_HASH):
            return
        heappush(self._heap, self._entry_of(source, at_us, _BEFORE_ANY_HASH))
        self._tidy()

    def withdraw(self, source: S) -> None:
        """Forget `source`, if it is known."""
        if source._entry is not None:
            source._entry = None
            self._sources -= 1
            self._tidy()

    def oldest(self) -> tuple[S, bytes] | None:
        """The source of the oldest prefix of all, and its hash; `None` when there are no prefixes."""
        heap = self._heap
        while heap:
            top = heap[0]
            source = top[-1]
            if source._entry is not top:
                heappop(heap)
                continue
            actual = source.recency.oldest()
            if actual is None:
                heappop(heap)
                source._entry = None
                self._sources -= 1
                continue
            at_us, prefix_hash = actual
            if at_us == top[0] and prefix_hash == top[2]:
                return source, prefix_hash
            heapreplace(heap, self._entry_of(source, at_us, prefix_hash))
        return None

    def leads_alone(self) -> bool:
        """Whether nothing of another source was seen at the instant of what `oldest` has just named."""
        return all(entry[0] > self._heap[0][0] for entry in self._heap[1:3])

    def _entry_of(self, source: S, at_us: int, prefix_hash: bytes) -> tuple[int, tuple[str, ...], bytes, str, int, S]:
        entry = (at_us, source.rank, prefix_hash, source.tail, next(self._number), source)
        source._entry = entry
        return entry

    def _tidy(self) -> None:
        if len(self._heap) > 2 * self._sources + _SLACK:
            self._heap = [entry for entry in self._heap if entry[-1]._entry is entry]
            heapify(self._heap)
