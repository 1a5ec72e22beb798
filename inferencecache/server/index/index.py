"""The prefix index: what replicas report goes in, and where a request should go comes out (spec 06 §6).

It belongs to one thread and has no clock, so everything is decided by what it was told and asked. Limits are kept at
the end of every ingest: the tenant's quota of distinct keys first, then the memory that names take, then the cap on all
holds. Age is enforced by lookups at once and cleared away by `sweep`.

No operation looks at more of the index than it is about: counts are kept as things change, removals go through the
partitions of one model, and evictions take their victims from ordered structures. What has to do more does it in
slices: a sweep and a dump when asked for the next one, and what an operation puts off when told to `settle`. Put off
are bringing a tenant to its quota that is far over it, and freeing a large replica that was cleared: no answer names it
any more, but until then the counts of distinct keys have its keys in them.

The reserved tenant is invisible to everyone else: it neither counts nor is counted.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final

from inferencecache.server.index import matching, names, views
from inferencecache.server.index.key_orders import KeyOrders
from inferencecache.server.index.model import (
    RESERVED_TENANT,
    Code,
    Eviction,
    EvictionReason,
    Holds,
    Outcome,
    Query,
    ReplicaScore,
    Report,
    Scope,
    Snapshot,
    Stats,
    TenantRules,
)
from inferencecache.server.index.oldest_first import OldestFirst
from inferencecache.server.index.partition import Change, Lane, Partition, Remains
from inferencecache.server.index.ranking import Found, Moment, Ranker, Rivals, best_first
from inferencecache.server.index.recency import Recency
from inferencecache.server.index.tree import ModelNode, ScopeNode, Tree
from inferencecache.server.index.turns import SLICE, in_turns

MAX_AHEAD_US: Final = 5_000_000

QUOTA_SLICE: Final = 2048
"""Holds a single ingest looks at or removes at most for a quota, about, unless it brought more keys itself."""
CLEARED_AT_ONCE: Final = 2048
"""Holds of a cleared replica that need not wait until the index settles."""

_T1: Final = 1
_T3: Final = 3
_COLDER: Final = 4  # than any tier that has a name
_MAX_COUNTS: Final = 1 << 16
_REMEMBERED_MODELS: Final = 1000
_SWEPT_LANES: Final = 1000
"""Replicas that a sweep looks at in one go."""
_STEPS_PER_CREDIT: Final = 64
_LANES_PER_HOLD: Final = 16
"""Replicas that can be asked whether they hold a key in the time in which one hold is removed."""


def _ignore(_: Eviction) -> None:
    pass


class PrefixIndex:
    """Replicas' holds, matched, ranked and limited.

    Args:
        rules: asked about a tenant whenever its TTL, algorithm or quota matters; nothing is remembered.
        capacity: holds to keep at most, 0 for any number.
        name_bytes: what the names may take that producers bring (see `names`).
        on_eviction: told once per operation, tenant and reason what was evicted.
        ranker: the weights of the scores.
    """

    def __init__(
        self,
        rules: TenantRules,
        *,
        capacity: int = 1_000_000,
        name_bytes: int = names.MOST_BYTES,
        on_eviction: Callable[[Eviction], None] = _ignore,
        ranker: Ranker | None = None,
    ) -> None:
        self._rules = rules
        self._capacity = capacity
        self._name_bytes = name_bytes
        self._on_eviction = on_eviction
        self._ranker = ranker or Ranker()
        self._tree = Tree()
        self._holds = 0
        self._keys_by_model: dict[str, int] = {}
        self._cap_order: OldestFirst[Lane] = OldestFirst()
        self._stepped_over: dict[str, set[Lane]] = {}
        # Taken from its end, where a dict would have to step over all that was deleted there before.
        self._departed: OrderedDict[Remains, None] = OrderedDict()
        self._discarded: list[Recency] = []
        self._over_quota: dict[str, None] = {}
        self._token_counts: dict[int, int] = {}

    def ingest(self, report: Report, now_us: int) -> None:
        """Take in what a replica reported, then hold its tenant to its quota and everybody to the other limits.

        A later report of a hold takes the place of the earlier one, even with an earlier time. Times are at most 5 s
        ahead of `now_us`. Prefixes of a report without a hash scheme, and prefixes without a hash, are left out.
        """
        at_us = min(report.timestamp_us, now_us + MAX_AHEAD_US)
        usable = [holds for holds in report.holds if holds.hashes] if report.hash_scheme else []
        if usable or report.stats is not None:
            model = self._tree.grow_model(report.tenant, report.model)
            for holds in usable:
                self._put(model, report.hash_scheme, report.replica_id, holds, at_us)
            if report.stats is not None:
                self._tree.put_stats(model, report.replica_id, _sound(report.stats), at_us)
            self._tree.shrink_model(model)
        brought = sum(len(holds.hashes) for holds in usable)
        if report.tenant != RESERVED_TENANT:
            self._keep_to_quota(report.tenant, QUOTA_SLICE, brought)
            self._keep_names_short()
        self._keep_to_capacity()
        # Else who reports and clears all the time would fill the memory faster than it is freed.
        self._free(brought)

    def evict(self, *, tenant: str, model: str, replica_id: str, prefix_hash: bytes, adapter_id: str) -> int:
        """Drop a replica's holds of one prefix under all hash schemes; returns how many there were.

        Without an adapter id the prefix is dropped for all adapters, and with one for that adapter only (spec 06 §3.5).
        """
        node = self._tree.model(tenant, model)
        if node is None:
            return 0
        removed = 0
        for scope in list(node.scopes.values()):
            chosen = list(scope.partitions) if not adapter_id else [adapter_id]
            for partition in filter(None, map(scope.partitions.get, chosen)):
                lane = partition.lanes.get(replica_id)
                if lane is not None:
                    removed += self._remove(lane, (prefix_hash,))
        return removed

    def touch(self, *, tenant: str, model: str, replica_id: str, event_us: int) -> None:
        """Note a sign of life: it keeps a replica's stats row, if there is one, and refreshes nothing else."""
        node = self._tree.model(tenant, model)
        row = None if node is None else node.stats.get(replica_id)
        if row is not None:
            row.seen_us = event_us
            self._tree.names.hear(row)

    def clear(self, *, tenant: str, model: str, replica_id: str) -> None:
        """Drop all of a replica's holds of one model, under all schemes and adapters, and its stats."""
        node = self._tree.model(tenant, model)
        if node is None:
            return
        row = node.stats.get(replica_id)
        for partition in node.partitions():
            lane = partition.lanes.get(replica_id)
            if lane is not None:
                self._depart(lane)
        self._free(CLEARED_AT_ONCE)
        if row is not None:
            self._tree.drop_stats(row)
            self._tree.shrink_model(node)

    @property
    def name_bytes(self) -> int:
        """The memory that names take, in bytes."""
        return self._tree.names.size

    @property
    def unsettled(self) -> bool:
        """Whether something was put off that `settle` has to do."""
        return bool(self._departed or self._discarded or self._over_quota)

    def settle(self, most: int) -> None:
        """Do some of what was put off, about as much as `most` holds need."""
        done = self._free(most)
        for tenant in list(self._over_quota):
            if done < most:
                done += self._keep_to_quota(tenant, most - done)

    def match(self, query: Query, now_us: int) -> Outcome:
        """Answer a routing question (spec 06 §6.5), at once.

        A question by chain is never answered with TENANT_HOT, nor by its `exact` hash: a caller that knows the chain
        learns where it is, or that it is nowhere.
        """
        asked = self._asked(query, now_us)
        if isinstance(asked, Outcome):
            return asked
        scope, partition, moment = asked
        found: list[Found] = []
        if partition is not None:
            if query.chain:
                found = matching.chain(partition, query.chain, query.chain_counts, moment)
            else:
                found = matching.exact(partition.lanes.items(), query.exact, moment)
        stats = scope.model.stats
        if found:
            rivals = Rivals.of(found, len(scope.serving), by_depth=bool(query.chain))
            return Outcome(Code.PREFIX_MATCH, best_first(self._ranker.matches(found, moment, rivals, stats)))
        warm = () if query.chain else self._ranker.warm(stats.items(), scope.serving, now_us, query.ttft_ms)
        return self._without_match(query, best_first(warm))

    def takes_turns(self, query: Query) -> bool:
        """Whether there is so much to compare, or so many replicas, that it should be asked `match_in_turns`."""
        scope = self._tree.scope(query.scope)
        if scope is None:
            return False
        partition = scope.partitions.get(query.adapter_id)
        holders = 0 if partition is None else len(partition.lanes)
        candidates = holders if query.chain else max(holders, len(scope.model.stats))
        return candidates > SLICE or len(query.chain) * holders > matching.TURN

    def match_in_turns(self, query: Query, now_us: int) -> Generator[None, None, Outcome]:
        """As `match`; yields every few milliseconds, and the index may change meanwhile.

        Putting those that were found in order is one step, of 6 ms for 5,000 replicas.
        """
        asked = self._asked(query, now_us)
        if isinstance(asked, Outcome):
            return asked
        scope, partition, moment = asked
        found: list[Found] = []
        if partition is not None:
            if query.chain:
                found = yield from matching.chain_in_turns(partition, query.chain, query.chain_counts, moment)
            else:
                lanes = list(partition.lanes.items())
                found = yield from in_turns(lanes, lambda some: matching.exact(some, query.exact, moment))
        stats = scope.model.stats
        if found:
            rivals = Rivals.of(found, len(scope.serving), by_depth=bool(query.chain))
            scores = yield from in_turns(found, lambda some: self._ranker.matches(some, moment, rivals, stats))
            return Outcome(Code.PREFIX_MATCH, best_first(scores))
        warm: list[ReplicaScore] = []
        if not query.chain:
            warm = yield from in_turns(
                list(stats.items()), lambda some: self._ranker.warm(some, scope.serving, now_us, query.ttft_ms)
            )
        return self._without_match(query, best_first(warm))

    def _asked(self, query: Query, now_us: int) -> tuple[ScopeNode, Partition | None, Moment] | Outcome:
        """Where to look and as of when; or the answer, if there is nothing to look at."""
        chained = query.chain or query.chain_counts
        if not all(query.scope) or (chained and len(query.chain) != len(query.chain_counts)):
            return Outcome(Code.NONE, [])
        scope = self._tree.scope(query.scope)
        if scope is None:
            return self._without_match(query, [])
        moment = Moment(now_us, self._rules.ttl_us(query.scope.tenant), query.ttft_ms)
        return scope, scope.partitions.get(query.adapter_id), moment

    def _without_match(self, query: Query, warm: list[ReplicaScore]) -> Outcome:
        return Outcome(Code.TENANT_HOT, warm) if warm else Outcome(self._classify(query.scope), [])

    def credit(self, query: Query, delivered: Sequence[ReplicaScore]) -> None:
        """Count one use of every hold behind a delivered PREFIX_MATCH; for LFU tenants, else nothing is counted."""
        for _ in self.credit_in_turns(query, delivered):
            pass

    def credit_in_turns(self, query: Query, delivered: Sequence[ReplicaScore]) -> Iterator[None]:
        """As `credit`; yields every few milliseconds, and the index may change meanwhile."""
        if not self._rules.is_lfu(query.scope.tenant):
            return
        scope = self._tree.scope(query.scope)
        partition = None if scope is None else scope.partitions.get(query.adapter_id)
        if partition is None:
            return
        asked = query.chain or (query.exact,)
        work = 0
        for score in delivered:
            for start in range(0, score.run, matching.TURN):
                if work >= matching.TURN:
                    work = 0
                    yield
                lane = partition.lanes.get(score.replica_id)
                if lane is not None:
                    used = set(asked[start : min(start + matching.TURN, score.run)])
                    lane.credits.update(used & lane.recency.stamps.keys())
                    work += matching.REPLICA + len(used)
        # Otherwise all that was ever used would be stepped over at once when the cap is next exceeded.
        self._oldest_unused(most=_STEPS_PER_CREDIT)

    def serving(self, scope: Scope) -> list[str]:
        """The replicas with at least one hold in `scope`, sorted."""
        node = self._tree.scope(scope)
        return [] if node is None else sorted(node.serving)

    def cache_state(self, tenant: str, model: str) -> tuple[list[tuple[str, Stats]], int]:
        """The stats of a model's replicas, sorted by id, and its distinct keys over all schemes and adapters."""
        node = self._tree.model(tenant, model)
        if node is None:
            return [], 0
        return [(replica_id, node.stats[replica_id].stats) for replica_id in sorted(node.stats)], node.keys

    def pressures(self, tenant: str, model: str, now_us: int) -> dict[str, float]:
        """How pressed a model's replicas are, by id; a report older than the tenant's TTL says nothing any more."""
        node, ttl_us = self._tree.model(tenant, model), self._rules.ttl_us(tenant)
        rows = {} if node is None else node.stats
        return {replica_id: row.stats.pressure for replica_id, row in rows.items() if now_us - row.reported_us < ttl_us}

    def snapshot(self) -> Generator[None, None, Snapshot]:
        """The index in numbers, without the reserved tenant: the cost follows the number of lanes, not of holds.

        Yields every few milliseconds, and the index may change meanwhile.
        """
        return views.snapshot(self._tree)

    def entries_by_model(self) -> Mapping[str, int]:
        """Distinct keys by model over all tenants but the reserved one; 0 for models that once had some, as long as no
        more than a thousand are known: producers choose the names."""
        return self._keys_by_model

    def sweep(self, now_us: int, most: int) -> Iterator[int]:
        """Remove holds older than their tenant's TTL, and stats rows without a sign of life as long.

        Gives how many holds were removed since it did so last: at most `most`, and after a few milliseconds at the
        latest, so that other work can be done. The index may change meanwhile.
        """
        for tenant in list(self._tree.tenants.values()):
            limit_us = now_us - self._rules.ttl_us(tenant.name)
            for model in list(tenant.models.values()):
                yield from self._sweep_model(model, limit_us, most)

    def dump(self) -> Iterator[Report]:
        """Everything lookups depend on, as reports of up to 1,024 holds, for an index that starts empty.

        May be taken in slices while this index changes: what was there throughout is in it, as it was when its turn
        came. Credits and signs of life are not in it.
        """
        return views.dump(self._tree)

    def _put(self, model: ModelNode, hash_scheme: str, replica_id: str, holds: Holds, at_us: int) -> None:
        # Counts recur; one object for each saves more than half of what a key costs besides its hash.
        if len(self._token_counts) > _MAX_COUNTS:
            self._token_counts.clear()
        counts = map(self._token_counts.setdefault, holds.token_counts, holds.token_counts)
        token_counts = dict(zip(holds.hashes, counts, strict=True))
        token_counts.pop(b"", None)
        if not token_counts:
            return
        lane = self._tree.grow_lane(model, hash_scheme, holds.adapter_id, replica_id)
        tier = holds.tier or _T1
        change = lane.partition.put(lane, token_counts, at_us, tier if _T1 <= tier <= _T3 else _COLDER)
        self._count(lane.partition, replica_id, change)
        if model.tenant.name != RESERVED_TENANT:
            self._cap_order.offer(lane, at_us)

    def _remove(self, lane: Lane, hashes: Iterable[bytes]) -> int:
        """Drop some of a lane's holds; returns how many."""
        partition = lane.partition
        change = partition.remove(lane, hashes)
        self._count(partition, lane.replica_id, change)
        if not lane.recency.stamps:
            self._forget(lane)
        return -change.holds

    def _depart(self, lane: Lane) -> None:
        """Drop all of a lane's holds, which are freed later."""
        holds = len(lane.recency.stamps)
        self._departed[lane.partition.depart(lane)] = None
        self._count(lane.partition, lane.replica_id, Change(-holds, 0))
        self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        """Remember nothing of a lane that has left its partition, nor of the partition with its last lane."""
        partition = lane.partition
        self._cap_order.withdraw(lane)
        self._stepped_over.get(partition.tenant, set()).discard(lane)
        self._tree.leave(lane)
        if not partition.lanes:
            # There are keys left if all who hold them have departed.
            self._count(partition, lane.replica_id, Change(0, -len(partition.keys)))
            self._discarded += self._tree.shrink(partition)

    def _free(self, most: int, tenant: str | None = None) -> int:
        """Free about `most` holds of replicas that have departed, of all tenants or one; returns how many they were.

        The last ones first, as a replica of a few holds need not wait for one of a million.
        """
        freed = 0
        while freed < most and (remains := self._next_departed(tenant)) is not None:
            change = remains.free(most - freed)
            freed -= change.holds
            if not change.holds:
                del self._departed[remains]
            elif not remains.partition.abandoned:
                self._count(remains.partition, remains.replica_id, Change(0, change.keys))
        while freed < most and self._discarded and tenant is None:
            taken = self._discarded[-1].take(most - freed)
            freed += len(taken)
            if not taken:
                self._discarded.pop()
        return freed

    def _next_departed(self, tenant: str | None) -> Remains | None:
        for remains in reversed(self._departed):
            if tenant is None or (remains.partition.tenant == tenant and not remains.partition.abandoned):
                return remains
        return None

    def _count(self, partition: Partition, replica_id: str, change: Change) -> None:
        self._tree.count(partition, replica_id, change)
        if partition.tenant != RESERVED_TENANT:
            self._holds += change.holds
            model = partition.scope.model.name
            keys = self._keys_by_model.get(model, 0) + change.keys
            if keys or len(self._keys_by_model) <= _REMEMBERED_MODELS:
                self._keys_by_model[model] = keys
            else:
                self._keys_by_model.pop(model, None)

    def _classify(self, scope: Scope) -> Code:
        """Why nothing was found: the outermost name that nobody has reported (spec 06 §6.9)."""
        if not self._holds:
            return Code.NONE
        tenant = self._tree.tenants.get(scope.tenant)
        if tenant is None or not tenant.keys:
            return Code.UNKNOWN_TENANT
        model = tenant.models.get(scope.model)
        if model is None or not model.keys:
            return Code.UNKNOWN_MODEL
        return Code.NONE if scope.hash_scheme in model.scopes else Code.UNKNOWN_HASH_SCHEME

    def _keep_to_quota(self, name: str, most: int, brought: int = 0) -> int:
        """Evict a tenant's keys over its quota, those first whose newest holder is oldest (spec 06 §6.4).

        Looks at about `most` holds, or evicts twice as many keys as were `brought`; a quota that takes more is reached
        as the index settles, and over the next ingests. Returns how many holds it looked at.
        """
        self._over_quota.pop(name, None)
        tenant = self._tree.tenants.get(name)
        if tenant is None:
            return 0
        quota = self._rules.max_entries(name)
        if quota is None:
            self._discarded += tenant.forget_key_orders()
            return 0
        allowed = max(quota, 0)
        if tenant.keys <= allowed:
            return 0
        # Keys that only departed replicas had are counted still, and must not cost the tenant any others.
        orders = tenant.order_keys()
        most = max(most, 2 * brought)
        work = self._free(most, name)
        if self._next_departed(name) is None:
            work += orders.merge(most - work)
            if orders.made:
                work += self._evict_keys(name, orders, tenant.keys - allowed, most, brought)
        if tenant.keys > allowed:
            self._over_quota[name] = None
        return work

    def _evict_keys(self, tenant: str, orders: KeyOrders, excess: int, most: int, brought: int) -> int:
        victims: dict[Partition, set[bytes]] = {}
        evicted = holds = 0
        while evicted < excess and (holds < most or evicted < 2 * brought) and (victim := orders.oldest()):
            order, prefix_hash = victim
            order.recency.discard(prefix_hash)
            partition = order.partition
            victims.setdefault(partition, set()).add(prefix_hash)
            holds += 1 + partition.shared.get(prefix_hash, 0) + len(partition.lanes) // _LANES_PER_HOLD
            evicted += 1
        for partition, hashes in victims.items():
            for lane in list(partition.lanes.values()):
                if held := lane.recency.stamps.keys() & hashes:  # goes through the smaller of both
                    self._remove(lane, held)
        self._tell(EvictionReason.OVER_ENTRIES, tenant, evicted)
        return holds

    def _keep_names_short(self) -> None:
        """Give up what bears the names that were not heard of for longest, as far as all take too much memory."""
        evicted: Counter[str] = Counter()
        while self._tree.names.size > self._name_bytes and (bearer := self._tree.names.longest_silent()):
            if isinstance(bearer, Lane):
                evicted[bearer.partition.tenant] += len(bearer.recency.stamps)
                self._depart(bearer)
            else:
                self._tree.drop_stats(bearer)
                self._tree.shrink_model(bearer.model)
        for tenant, count in evicted.items():
            self._tell(EvictionReason.NAMES, tenant, count)

    def _keep_to_capacity(self) -> None:
        """Evict holds over the cap: by use where the tenant counts it, then the oldest (spec 06 §6.4).

        A hold in use never goes, for there is always one that is not: what an ingest brings over the cap is new.
        """
        excess = self._holds - self._capacity
        if self._capacity <= 0 or excess <= 0:
            return
        self._release_stepped_over()
        evicted: Counter[str] = Counter()
        while excess and (victim := self._oldest_unused()):
            lane, prefix_hash = victim
            together = not lane.credits and self._cap_order.leads_alone()
            count = self._remove(lane, lane.recency.oldest_together(excess) if together else (prefix_hash,))
            evicted[lane.partition.tenant] += count
            excess -= count
        for tenant, count in evicted.items():
            self._tell(EvictionReason.CAP, tenant, count)

    def _oldest_unused(self, most: int | None = None) -> tuple[Lane, bytes] | None:
        """The next victim of the cap, after stepping over what LFU tenants use; `None` after `most` such steps."""
        steps = 0
        while victim := self._cap_order.oldest():
            lane, prefix_hash = victim
            if prefix_hash not in lane.credits or not self._rules.is_lfu(lane.partition.tenant):
                return victim
            if steps == most:
                return None
            lane.recency.keep_oldest()
            self._stepped_over.setdefault(lane.partition.tenant, set()).add(lane)
            steps += 1
        return None

    def _release_stepped_over(self) -> None:
        """Make holds victims again whose tenant no longer counts uses."""
        for tenant in [tenant for tenant in self._stepped_over if not self._rules.is_lfu(tenant)]:
            for lane in self._stepped_over.pop(tenant):
                if (oldest_us := lane.recency.release_kept()) is not None:
                    self._cap_order.offer(lane, oldest_us)

    def _sweep_model(self, model: ModelNode, limit_us: int, most: int) -> Iterator[int]:
        for row in [row for row in model.stats.values() if row.seen_us <= limit_us]:
            self._tree.drop_stats(row)
        looked_at = removed = 0
        for partition in model.partitions():
            for lane in list(partition.lanes.values()):
                looked_at += 1
                while expired := lane.recency.until(limit_us, most - removed):
                    removed += self._remove(lane, expired)
                    if removed == most:
                        self._tell(EvictionReason.TTL, model.tenant.name, removed)
                        yield removed
                        looked_at = removed = 0
                if looked_at >= _SWEPT_LANES:
                    self._tell(EvictionReason.TTL, model.tenant.name, removed)
                    yield removed
                    looked_at = removed = 0
        self._tree.shrink_model(model)
        self._tell(EvictionReason.TTL, model.tenant.name, removed)
        yield removed

    def _tell(self, reason: EvictionReason, tenant: str, count: int) -> None:
        if count:
            self._on_eviction(Eviction(tenant, "lfu" if self._rules.is_lfu(tenant) else "lru", reason, count))


def _sound(stats: Stats) -> Stats:
    """Rates as the wire has them; one that is no number is 0 (spec 06 §6.2)."""
    hit_rate, pressure = array("f", [rate if math.isfinite(rate) else 0.0 for rate in (stats.hit_rate, stats.pressure)])
    return stats._replace(hit_rate=hit_rate, pressure=pressure)
