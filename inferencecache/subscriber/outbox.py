"""What a server has not been told yet, in an order in which it may be told (spec 08 §8).

Deltas are gathered into few large *parcels*, so that a busy engine costs few calls: additions of T1 in one, evictions
in one, and whatever moved to a slower tier at about one time in one, as it must not seem to have moved later. A delta
joins the last parcel of its sort, unless its key was touched by a later one: then it would overtake, and begins a new
parcel. So parcels are in order for each key, and within one parcel no key comes twice.

It is bounded. When more piles up than there is room for, all of it is thrown away, as the chain knows what is held: the
server gets that instead (`overflowed`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from inferencecache.subscriber.chain import Add, Clear, Delta, Evict
from inferencecache.subscriber.tiers import Tier

PARCEL: Final = 4_096
"""Entries of one parcel; as many pending ones are sent without waiting for the window to end."""
CAPACITY: Final = 32_768
SAME_TIME_US: Final = 100_000
"""Moves to a slower tier that are at most this far apart are told as of the first."""

_SAME_TIME: Final = range(SAME_TIME_US + 1)
_T1: Final = Tier.T1

Key = tuple[int, str]


class Additions(Struct, gc=False):
    """One update: prefixes that are held, all as of one time.

    Attributes:
        number: its place in the order of all parcels.
        timestamp_us: of its last batch for T1, of its first for slower tiers; 0: the server's clock.
        entries: by prefix hash and adapter.
    """

    number: int
    timestamp_us: int
    entries: dict[Key, Add]


class Evictions(Struct, gc=False):
    """Prefixes that are not held any more, each with the time of its batch; an event for each."""

    number: int
    entries: dict[Key, int]


class Clearing(Struct, gc=False):
    """All that was told before is void."""

    timestamp_us: int


Parcel = Additions | Evictions | Clearing


class Outbox:
    """The parcels for one server. `capacity` is the number of entries it has room for."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.overflowed = False
        self._capacity = capacity
        self._parcels: deque[Parcel] = deque()
        self._taken: Parcel | None = None
        self._places: dict[Key, int] = {}
        self._held: Additions | None = None
        self._slower: Additions | None = None
        self._gone: Evictions | None = None
        self._count = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Entries pending, a parcel that was taken included."""
        return self._count

    def put(self, deltas: Iterable[Delta], timestamp_us: int) -> None:
        """Add what one batch changed, in order. Does nothing after an overflow, until `reset`."""
        if self.overflowed:
            return
        places = self._places
        for delta in deltas:
            if isinstance(delta, Clear):
                self._forget()
                self._parcels.append(Clearing(timestamp_us))
                self._count = 1
                continue
            key = (delta.prefix_hash, delta.adapter)
            parcel: Additions | Evictions | None
            if isinstance(delta, Evict):
                parcel = self._gone
            elif delta.tier is _T1:
                parcel = self._held
            else:
                parcel = self._slower
            if (
                parcel is None
                or len(parcel.entries) >= PARCEL
                or places.get(key, -1) > parcel.number
                or (parcel is self._slower and timestamp_us - parcel.timestamp_us not in _SAME_TIME)
            ):
                parcel = self._begin(delta, timestamp_us)
            self._count += key not in parcel.entries
            places[key] = parcel.number
            if isinstance(parcel, Evictions):
                parcel.entries[key] = timestamp_us
            else:
                assert isinstance(delta, Add)
                parcel.entries[key] = delta
                if timestamp_us > 0 and parcel is self._held:
                    parcel.timestamp_us = timestamp_us
        if self._count > self._capacity:
            self._forget()
            self.overflowed = True

    def take(self) -> Parcel | None:
        """The next parcel, which stays pending until it is `delivered`; None if there is none."""
        if self._taken is None and self._parcels:
            self._taken = self._parcels.popleft()
            for sort in ("_held", "_slower", "_gone"):
                if getattr(self, sort) is self._taken:
                    setattr(self, sort, None)
        return self._taken

    def delivered(self, parcel: Parcel) -> None:
        """The server has acknowledged it. Nothing happens if it was thrown away meanwhile."""
        if parcel is not self._taken:
            return
        self._taken = None
        if isinstance(parcel, Clearing):
            self._count -= 1
            return
        self._count -= len(parcel.entries)
        for key in parcel.entries:
            if self._places[key] == parcel.number:
                del self._places[key]

    def reset(self) -> None:
        """Throw everything away: the server is being told all that is held."""
        self._forget()
        self.overflowed = False

    def _forget(self) -> None:
        self._parcels.clear()
        self._places.clear()
        self._taken = self._held = self._slower = self._gone = None
        self._count = 0

    def _begin(self, delta: Add | Evict, timestamp_us: int) -> Additions | Evictions:
        """A new last parcel of the sort that a delta needs."""
        number = next(self._numbers)
        parcel: Additions | Evictions
        if isinstance(delta, Evict):
            parcel = self._gone = Evictions(number, {})
        elif delta.tier is _T1:
            parcel = self._held = Additions(number, timestamp_us, {})
        else:
            parcel = self._slower = Additions(number, timestamp_us, {})
        self._parcels.append(parcel)
        return parcel
