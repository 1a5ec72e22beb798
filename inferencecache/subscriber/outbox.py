"""What a server has not been told yet, in an order in which it may be told (spec 08 §8).

Deltas are gathered into few large *parcels*, so that a busy engine costs few calls: additions of T1 in one, evictions
in one, and what moved to a slower tier at about one time in one, as it must not seem to have moved later. A delta
joins the last parcel of its sort, unless its key was touched by a later one: then it would overtake, and begins a new
parcel. So parcels are in order for each key, and within one parcel no key comes twice.

It is bounded. When more piles up than there is room for, all of it is thrown away, as the chain knows what is held: the
server gets that instead. The same is done when the chain says that everything has to be told anew (`void`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from inferencecache.subscriber.chain import Add, Adds, Clear, Delta, Renew
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
    """One update: prefixes that are held in one tier, all as of one time.

    Attributes:
        number: its place in the order of all parcels.
        tier: of all of them.
        timestamp_us: of its last batch for T1, of its first for slower tiers; 0: the server's clock.
        entries: the cumulative tokens, by prefix hash and adapter.
    """

    number: int
    tier: Tier
    timestamp_us: int
    entries: dict[Key, int]


class Evictions(Struct, gc=False):
    """Prefixes that are not held any more, each with the time of its batch; an event for each."""

    number: int
    entries: dict[Key, int]


class Clearing(Struct, gc=False):
    """All that was told before is void."""

    timestamp_us: int


Parcel = Additions | Evictions | Clearing


class Outbox:
    """The parcels for one server. `capacity` is the number of entries it has room for.

    Attributes:
        void: nothing is kept until the `reset`, as the server has to be told all that is held.
        overflows: times that this was for want of room.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.void = False
        self.overflows = 0
        self._capacity = capacity
        self._parcels: deque[Parcel] = deque()
        self._taken: Parcel | None = None
        self._places: dict[Key, int] = {}
        """The number of the last parcel with a key; but not of keys that came while no parcel before theirs took more,
        which is how nearly all come. What is added for an adapter counts as the base model's too, whose eviction is of
        all of them.
        """
        self._additions: dict[Tier, Additions] = {}
        """Of each tier, the parcel that takes more; next to it that of evictions."""
        self._gone: Evictions | None = None
        self._count = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Entries pending, a parcel that was taken included."""
        return self._count

    @property
    def parcels(self) -> int:
        """Parcels pending, one that was taken included."""
        return len(self._parcels) + (self._taken is not None)

    def put(self, deltas: Iterable[Delta], timestamp_us: int) -> None:
        """Add what one batch changed, in order, unless it is void."""
        if self.void:
            return
        for delta in deltas:
            if isinstance(delta, Adds):
                keys: Sequence[Key] = delta.prefix_hashes
                if delta.adapter:
                    keys = [(prefix_hash, delta.adapter) for prefix_hash in delta.prefix_hashes]
                for start in range(0, len(keys), PARCEL):
                    part = slice(start, start + PARCEL)
                    self._add(keys[part], delta.token_counts[part], delta.tier, timestamp_us)
            elif isinstance(delta, Clear):
                self._forget()
                self._parcels.append(Clearing(timestamp_us))
                self._count = 1
            elif isinstance(delta, Renew):
                self._forget()
                self.void = True
                return
            else:
                key = (delta.prefix_hash, delta.adapter) if delta.adapter else delta.prefix_hash
                if isinstance(delta, Add):
                    self._add((key,), (delta.token_count,), delta.tier, timestamp_us)
                else:
                    self._evict(key, timestamp_us)
        if self._count > self._capacity:
            self._forget()
            self.void = True
            self.overflows += 1

    def _add(self, keys: Sequence[Key], token_counts: Sequence[int], tier: Tier, timestamp_us: int) -> None:
        """At most `PARCEL` additions of one tier."""
        parcel = self._additions.get(tier)
        if (
            parcel is None
            or len(parcel.entries) + len(keys) > PARCEL
            or self._would_overtake(parcel, keys)
            or (tier is not _T1 and timestamp_us - parcel.timestamp_us not in _SAME_TIME)
        ):
            parcel = self._additions[tier] = Additions(next(self._numbers), tier, timestamp_us, {})
            self._parcels.append(parcel)
        elif timestamp_us > 0 and tier is _T1:
            parcel.timestamp_us = timestamp_us
        before = len(parcel.entries)
        parcel.entries.update(zip(keys, token_counts, strict=True))
        self._count += len(parcel.entries) - before
        if self._may_be_overtaken(parcel):
            self._places.update(dict.fromkeys(_touched(keys), parcel.number))

    def _evict(self, key: Key, timestamp_us: int) -> None:
        parcel = self._gone
        if parcel is None or len(parcel.entries) >= PARCEL or self._would_overtake(parcel, (key,)):
            parcel = self._gone = Evictions(next(self._numbers), {})
            self._parcels.append(parcel)
        self._count += key not in parcel.entries
        parcel.entries[key] = timestamp_us
        if self._may_be_overtaken(parcel):
            self._places[key] = parcel.number

    def _may_be_overtaken(self, parcel: Additions | Evictions) -> bool:
        """Whether a parcel before this one takes more."""
        if parcel is self._parcels[0]:
            return False
        number = parcel.number
        if self._gone is not None and self._gone.number < number:
            return True
        return any(taking.number < number for taking in self._additions.values())

    def _would_overtake(self, parcel: Additions | Evictions, keys: Iterable[Key]) -> bool:
        """Whether a later parcel than this one has one of the keys, or the base model's, whose eviction is of all."""
        places, number = self._places, parcel.number
        return parcel is not self._parcels[-1] and any(places.get(key, -1) > number for key in _touched(keys))

    def take(self) -> Parcel | None:
        """The next parcel, which stays pending until it is `delivered`; None if there is none."""
        if self._taken is None and self._parcels:
            self._taken = self._parcels.popleft()
            self._closed(self._taken)
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
            for key in _touched(parcel.entries):
                if self._places.get(key) == parcel.number:
                    del self._places[key]

    def reset(self) -> None:
        """Throw everything away: the server is being told all that is held."""
        self._forget()
        self.void = False

    def _forget(self) -> None:
        self._parcels.clear()
        self._places.clear()
        self._additions.clear()
        self._taken = self._gone = None
        self._count = 0

    def _closed(self, parcel: Parcel) -> None:
        """It takes nothing more."""
        if parcel is self._gone:
            self._gone = None
        elif isinstance(parcel, Additions) and self._additions.get(parcel.tier) is parcel:
            del self._additions[parcel.tier]


def _touched(keys: Iterable[Key]) -> Iterator[Key]:
    """The keys, and those of the base model's holds of the same prefixes."""
    for key in keys:
        yield key
        if isinstance(key, tuple):
            yield key[0]
