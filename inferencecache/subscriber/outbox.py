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

from inferencecache.subscriber.chain import Add, Clear, Delta
from inferencecache.subscriber.tiers import Tier

PARCEL: Final = 4_096
"""Entries of one parcel; as many pending ones are sent without waiting for the window to end."""
CAPACITY: Final = 32_768
SAME_TIME_US: Final = 100_000
"""Moves to a slower tier that are at most this far apart are told as of the first."""

_SAME_TIME: Final = range(SAME_TIME_US + 1)
_T1: Final = Tier.T1

Key = int | tuple[int, str]
"""A prefix hash, and the adapter if it is not the base model: pairs would take a third more memory."""


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
        """The number of the last parcel with a key; but not the first one's keys, as no other that takes more is before
        it, and mostly there is no other.
        """
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
        places, parcels = self._places, self._parcels
        for delta in deltas:
            if isinstance(delta, Clear):
                self._forget()
                parcels.append(Clearing(timestamp_us))
                self._count = 1
                continue
            key: Key = (delta.prefix_hash, delta.adapter) if delta.adapter else delta.prefix_hash
            parcel: Additions | Evictions
            if isinstance(delta, Add):
                additions = self._held if delta.tier is _T1 else self._slower
                if (
                    additions is None
                    or len(additions.entries) >= PARCEL
                    or (additions is not parcels[-1] and places.get(key, -1) > additions.number)
                    or (additions is self._slower and timestamp_us - additions.timestamp_us not in _SAME_TIME)
                ):
                    additions = self._begin_additions(delta.tier, timestamp_us)
                elif timestamp_us > 0 and additions is self._held:
                    additions.timestamp_us = timestamp_us
                self._count += key not in additions.entries
                additions.entries[key] = delta
                parcel = additions
            else:
                evictions = self._gone
                if (
                    evictions is None
                    or len(evictions.entries) >= PARCEL
                    or (evictions is not parcels[-1] and places.get(key, -1) > evictions.number)
                ):
                    evictions = self._begin_evictions()
                self._count += key not in evictions.entries
                evictions.entries[key] = timestamp_us
                parcel = evictions
            if parcel is not parcels[0]:
                places[key] = parcel.number
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
        if self._places:
            for key in parcel.entries:
                if self._places.get(key) == parcel.number:
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

    def _begin_additions(self, tier: Tier, timestamp_us: int) -> Additions:
        """A new last parcel for additions of that tier."""
        parcel = Additions(next(self._numbers), timestamp_us, {})
        if tier is _T1:
            self._held = parcel
        else:
            self._slower = parcel
        self._parcels.append(parcel)
        return parcel

    def _begin_evictions(self) -> Evictions:
        """A new last parcel for evictions."""
        parcel = self._gone = Evictions(next(self._numbers), {})
        self._parcels.append(parcel)
        return parcel
