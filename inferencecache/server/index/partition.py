"""The holds of one scope and adapter: who holds which prefix.

A partition has a **lane** per replica. A lane's recency says when, and in which tier, each prefix was last reported;
that one dict is what a chain is matched against, at the speed of a dict.

What lanes share is kept once. Token counts are noted per key, because equal hashes name equal prefixes; a replica
that reports another count than the others has it in its lane. Holders are counted only of keys that have more than
one. So a prefix that one replica holds costs two dict entries, one list slot and its bytes.

Credits are per hold, survive further reports of the prefix, and go with the hold (spec 06 §3.1 step 15, §6.2).

A partition of a tenant that had to be held to its quota also keeps the order of its **keys**: each by the instant of
its newest holder (spec 06 §6.4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from inferencecache.server.index.oldest_first import OldestFirst, Source
from inferencecache.server.index.recency import Recency, seen_us
from inferencecache.server.index.sequences import Sequences

if TYPE_CHECKING:
    from inferencecache.server.index.tree import ScopeNode

_NO_TIER: Final = 1  # where a recency is asked for instants only


class Change(NamedTuple):
    """By how much a partition grew: holds of one replica, and distinct keys."""

    holds: int
    keys: int


class Lane(Source):
    """One replica's holds in one partition."""

    __slots__ = ("credits", "partition", "replica_id", "token_counts")

    def __init__(self, partition: Partition, replica_id: str) -> None:
        super().__init__(partition.rank, replica_id, Recency(Sequences()))
        self.partition = partition
        self.replica_id = replica_id
        self.token_counts: dict[bytes, int] = {}
        self.credits: Counter[bytes] = Counter()

    def tokens(self, prefix_hash: bytes) -> int:
        """The tokens this replica reported for a prefix that it holds."""
        own = self.token_counts.get(prefix_hash)
        return self.partition.keys[prefix_hash] if own is None else own


class KeyOrder(Source):
    """A partition's keys, each by the instant of its newest holder; tells `queue` of keys that became older."""

    __slots__ = ("_partition", "_queue")

    def __init__(self, partition: Partition, queue: OldestFirst[KeyOrder]) -> None:
        super().__init__(partition.rank, "", Recency())
        self._partition = partition
        self._queue = queue
        lanes = list(partition.lanes.values())
        if len(lanes) == 1:
            self.recency = lanes[0].recency.copy()
        else:
            self._merge(lanes)
        if oldest := self.recency.oldest():
            queue.offer(self, oldest[0])

    @property
    def partition(self) -> Partition:
        """Whose keys these are."""
        return self._partition

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
        if later:
            self.recency.put(later, at_us, _NO_TIER)
            self._queue.offer(self, at_us)

    def lose(self, prefix_hash: bytes, stamp: int) -> None:
        """Take in that a hold with `stamp` has gone."""
        newest = self.recency.stamps.get(prefix_hash)
        if newest is not None and seen_us(newest) == seen_us(stamp):
            self._settle(prefix_hash)

    def _settle(self, prefix_hash: bytes) -> None:
        """Find the newest holder of a key again, after the one it had has gone or moved back."""
        stamps = [lane.recency.stamps.get(prefix_hash) for lane in self._partition.lanes.values()]
        instants = [seen_us(stamp) for stamp in stamps if stamp is not None]
        if instants:
            at_us = max(instants)
            self.recency.put([prefix_hash], at_us, _NO_TIER)
            self._queue.offer(self, at_us)
        else:
            self.recency.discard(prefix_hash)

    def _merge(self, lanes: list[Lane]) -> None:
        newest: dict[bytes, int] = {}
        for lane in lanes:
            for prefix_hash, stamp in lane.recency.stamps.items():
                if newest.get(prefix_hash, stamp) <= stamp:
                    newest[prefix_hash] = stamp
        by_instant: dict[int, list[bytes]] = {}
        for prefix_hash, stamp in newest.items():
            by_instant.setdefault(seen_us(stamp), []).append(prefix_hash)
        for at_us, hashes in by_instant.items():
            self.recency.put(hashes, at_us, _NO_TIER)


class Partition:
    """`keys` maps each prefix to its tokens; `shared` counts the further holders of those with more than one."""

    __slots__ = ("adapter_id", "key_order", "keys", "lanes", "rank", "scope", "shared")

    def __init__(self, scope: ScopeNode, adapter_id: str) -> None:
        self.scope = scope
        self.adapter_id = adapter_id
        self.rank = (scope.model.tenant.name, scope.model.name, scope.hash_scheme, adapter_id)
        self.lanes: dict[str, Lane] = {}
        self.keys: dict[bytes, int] = {}
        self.shared: dict[bytes, int] = {}
        self.key_order: KeyOrder | None = None

    @property
    def tenant(self) -> str:
        """The name of the tenant."""
        return self.rank[0]

    def put(self, lane: Lane, token_counts: dict[bytes, int], at_us: int, tier: int) -> Change:
        """Note that `lane` has reported these prefixes, with the tokens of each, at `at_us`."""
        keys, shared = self.keys, self.shared
        hashes = list(token_counts)
        before = lane.recency.put(hashes, at_us, tier)
        known = list(map(keys.get, hashes))
        fresh = known.count(None)
        if fresh == len(hashes):
            keys.update(token_counts)
            new = fresh
        else:
            new = 0
            for prefix_hash, tokens, usual, old in zip(hashes, token_counts.values(), known, before, strict=True):
                if usual is None:
                    keys[prefix_hash] = tokens
                    new += 1
                    continue
                if old is None:
                    shared[prefix_hash] = shared.get(prefix_hash, 0) + 1
                    new += 1
                if tokens == usual:
                    lane.token_counts.pop(prefix_hash, None)
                elif old is not None and prefix_hash not in shared:
                    keys[prefix_hash] = tokens
                    lane.token_counts.pop(prefix_hash, None)
                else:
                    lane.token_counts[prefix_hash] = tokens
        if self.key_order is not None:
            self.key_order.follow(hashes, before, at_us)
        return Change(new, fresh)

    def remove(self, lane: Lane, hashes: Iterable[bytes]) -> Change:
        """Drop one replica's holds of those `hashes` that it holds; a lane that is then empty leaves the partition."""
        holds = keys = 0
        for prefix_hash in hashes:
            stamp = lane.recency.discard(prefix_hash)
            if stamp is not None:
                lane.token_counts.pop(prefix_hash, None)
                lane.credits.pop(prefix_hash, None)
                holds += 1
                keys += self._lose(prefix_hash, stamp)
        if not lane.recency.stamps:
            del self.lanes[lane.replica_id]
        return Change(-holds, -keys)

    def remove_lane(self, lane: Lane) -> Change:
        """Drop all holds of one replica, and its lane."""
        del self.lanes[lane.replica_id]
        stamps = lane.recency.stamps
        lane.recency = Recency(Sequences())
        if self.key_order is not None:
            keys = sum(self._lose(prefix_hash, stamp) for prefix_hash, stamp in stamps.items())
            return Change(-len(stamps), -keys)
        elsewhere = self.shared.keys() & stamps.keys()
        for prefix_hash in elsewhere:
            self._lose(prefix_hash, stamps[prefix_hash])
        own = stamps.keys() - elsewhere if elsewhere else stamps.keys()
        deque(map(self.keys.__delitem__, own), maxlen=0)  # a replica has many, and an engine's restart clears them all
        return Change(-len(stamps), -len(own))

    def _lose(self, prefix_hash: bytes, stamp: int) -> bool:
        """Count one holder less, after it has gone; returns whether it was the last."""
        others = self.shared.get(prefix_hash)
        if others is None:
            del self.keys[prefix_hash]
        elif others == 1:
            del self.shared[prefix_hash]
        else:
            self.shared[prefix_hash] = others - 1
        if self.key_order is not None:
            self.key_order.lose(prefix_hash, stamp)
        return others is None
