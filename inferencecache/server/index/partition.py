"""The holds of one scope and adapter: who holds which prefix.

A partition has a **lane** per replica. A lane's recency says when, and in which tier, each prefix was last reported;
that one dict is what a chain is matched against, at the speed of a dict.

What lanes share is kept once. Token counts are noted per key, because equal hashes name equal prefixes; a replica
that reports another count than the others has it in its lane. Holders are counted only of keys that have more than
one. So a prefix that one replica holds costs two dict entries, one list slot and its bytes.

Credits are per hold, survive further reports of the prefix, and go with the hold (spec 06 §3.1 step 15, §6.2).

A lane that is cleared **departs** as a whole: it leaves its partition at once, so that nobody finds it, and what it
held (`Remains`) is taken apart in steps. Until then `keys` and `shared` count it as a holder like others. A partition
whose last lane has left is **abandoned**: nobody asks it any more.

A partition of a tenant that had to be held to its quota also keeps the order of its keys (`key_orders`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from inferencecache.server.index.oldest_first import Source
from inferencecache.server.index.recency import Recency
from inferencecache.server.index.sequences import Sequences

if TYPE_CHECKING:
    from inferencecache.server.index.key_orders import KeyOrder
    from inferencecache.server.index.tree import ScopeNode


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

    def walk(self) -> Iterator[list[tuple[bytes, int]]]:
        """What the lane holds, in groups, while that changes (`Recency.walk`); ends when the lane departs."""
        recency = self.recency
        for group in recency.walk():
            if self.recency is not recency:
                return
            yield group


class Remains:
    """What a lane held that has left its partition."""

    __slots__ = ("_credits", "_recency", "_token_counts", "partition", "replica_id")

    def __init__(self, partition: Partition, lane: Lane) -> None:
        self.partition = partition
        self.replica_id = lane.replica_id
        self._recency = lane.recency
        self._token_counts = lane.token_counts
        self._credits = lane.credits

    def free(self, most: int) -> Change:
        """Give up about `most` holds; the change of the partition has no holds in it when nothing was left."""
        taken = self._recency.take(most)
        for remembered in filter(None, (self._token_counts, self._credits)):
            for prefix_hash in taken:
                remembered.pop(prefix_hash, None)
        return Change(-len(taken), -self.partition.lose(taken))


class Partition:
    """`keys` maps each prefix to its tokens; `shared` counts the further holders of those with more than one."""

    __slots__ = ("abandoned", "adapter_id", "key_order", "keys", "lanes", "rank", "scope", "shared")

    def __init__(self, scope: ScopeNode, adapter_id: str) -> None:
        self.scope = scope
        self.adapter_id = adapter_id
        self.rank = (scope.model.tenant.name, scope.model.name, scope.hash_scheme, adapter_id)
        self.lanes: dict[str, Lane] = {}
        self.keys: dict[bytes, int] = {}
        self.shared: dict[bytes, int] = {}
        self.key_order: KeyOrder | None = None
        self.abandoned = False

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

    def depart(self, lane: Lane) -> Remains:
        """Take a lane out with all it holds, which stays counted among `keys` and `shared` until it is freed."""
        del self.lanes[lane.replica_id]
        remains = Remains(self, lane)
        # Whoever is walking through the lane finds nothing more in it.
        lane.recency = Recency()
        lane.token_counts = {}
        lane.credits = Counter()
        return remains

    def lose(self, stamps: dict[bytes, int]) -> int:
        """Count one holder less of each of these prefixes, after it has gone; returns how many had no other."""
        if self.key_order is not None:
            return sum(self._lose(prefix_hash, stamp) for prefix_hash, stamp in stamps.items())
        elsewhere = self.shared.keys() & stamps.keys()
        for prefix_hash in elsewhere:
            self._lose(prefix_hash, stamps[prefix_hash])
        own = stamps.keys() - elsewhere if elsewhere else stamps.keys()
        deque(map(self.keys.__delitem__, own), maxlen=0)
        return len(own)

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
            if others is None:
                self.key_order.forget(prefix_hash)
            else:
                self.key_order.lose(prefix_hash, stamp)
        return others is None
