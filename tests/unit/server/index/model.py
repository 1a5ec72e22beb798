"""The index as spec 06 §6 describes it, by dicts and scans only, to be checked by eye and compared with the real one.

A hold is an entry of `holds`, under everything that identifies it; whatever is asked is found by looking at all of
them.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inferencecache.server.index import (
    Code,
    Eviction,
    EvictionReason,
    Outcome,
    Query,
    ReplicaRow,
    ReplicaScore,
    Report,
    Scope,
    Snapshot,
    Stats,
    TenantRow,
    TenantRules,
)
from inferencecache.server.index.names import Node

RESERVED = "inferencecache.io/probe"
FIVE_SECONDS = 5_000_000
FIVE_MINUTES = 300_000_000


class Key(NamedTuple):
    tenant: str
    model: str
    scheme: str
    adapter: str
    prefix_hash: bytes


@dataclass
class Hold:
    tokens: int
    seen: int
    tier: int
    uses: int = 0


@dataclass
class Row:
    stats: Stats
    reported: int
    seen: int


def f32(value: float) -> float:
    return ctypes.c_float(value).value


class NaiveIndex:
    def __init__(self, rules: TenantRules, capacity: int = 0) -> None:
        self.rules = rules
        self.capacity = capacity
        self.holds: dict[tuple[Key, str], Hold] = {}
        self.stats: dict[tuple[str, str, str], Row] = {}
        self.models_ever: set[str] = set()
        self.evictions: list[Eviction] = []

    # What changes it

    def ingest(self, report: Report, now_us: int) -> None:
        at = min(report.timestamp_us, now_us + FIVE_SECONDS)
        new = 0
        for adapter, tier, hashes, counts in report.holds:
            for prefix_hash, tokens in zip(hashes, counts, strict=True):
                if not report.hash_scheme or not prefix_hash:
                    continue
                key = Key(report.tenant, report.model, report.hash_scheme, adapter, prefix_hash)
                old = self.holds.get((key, report.replica_id))
                new += old is None
                stored = 1 if tier == 0 else tier if tier in (1, 2, 3) else 4
                self.holds[key, report.replica_id] = Hold(tokens, at, stored, old.uses if old else 0)
                if report.tenant != RESERVED:
                    self.models_ever.add(report.model)
        if report.stats is not None:
            self.stats[report.tenant, report.model, report.replica_id] = Row(report.stats, at, at)
        self.keep_to_quota(report.tenant)
        self.keep_to_capacity()

    def keep_to_quota(self, tenant: str) -> None:
        quota = self.rules.max_entries(tenant)
        if quota is None or tenant == RESERVED:
            return
        newest: dict[Key, int] = {}
        for (key, _), hold in self.holds.items():
            if key.tenant == tenant:
                newest[key] = max(hold.seen, newest.get(key, hold.seen))
        in_order = sorted(newest, key=lambda key: (newest[key], key))
        victims = set(in_order[: max(len(in_order) - quota, 0)])
        for hold in [hold for hold in self.holds if hold[0] in victims]:
            del self.holds[hold]
        self.tell(tenant, EvictionReason.OVER_ENTRIES, len(victims))

    def keep_to_capacity(self) -> None:
        counted = [hold for hold in self.holds if hold[0].tenant != RESERVED]
        if self.capacity == 0 or len(counted) <= self.capacity:
            return

        def order(hold: tuple[Key, str]) -> tuple[object, ...]:
            uses = self.holds[hold].uses if self.rules.is_lfu(hold[0].tenant) else 0
            return (uses, self.holds[hold].seen, *hold[0], hold[1])

        victims = sorted(counted, key=order)[: len(counted) - self.capacity]
        for hold in victims:
            del self.holds[hold]
        for tenant, count in Counter(key.tenant for key, _ in victims).items():
            self.tell(tenant, EvictionReason.CAP, count)

    def evict(self, *, tenant: str, model: str, replica_id: str, prefix_hash: bytes, adapter_id: str) -> int:
        gone = [
            (key, replica)
            for key, replica in self.holds
            if (key.tenant, key.model, key.prefix_hash, replica) == (tenant, model, prefix_hash, replica_id)
            and adapter_id in ("", key.adapter)
        ]
        for hold in gone:
            del self.holds[hold]
        return len(gone)

    def touch(self, *, tenant: str, model: str, replica_id: str, event_us: int) -> None:
        if row := self.stats.get((tenant, model, replica_id)):
            row.seen = event_us

    def clear(self, *, tenant: str, model: str, replica_id: str) -> None:
        for key, replica in list(self.holds):
            if (key.tenant, key.model, replica) == (tenant, model, replica_id):
                del self.holds[key, replica]
        self.stats.pop((tenant, model, replica_id), None)

    def credit(self, query: Query, delivered: Sequence[ReplicaScore]) -> None:
        if not self.rules.is_lfu(query.scope.tenant):
            return
        for score in delivered:
            used = set(query.chain[: score.run]) if query.chain else {query.exact}
            for prefix_hash in used:
                if hold := self.holds.get((Key(*query.scope, query.adapter_id, prefix_hash), score.replica_id)):
                    hold.uses += 1

    def sweep(self, now_us: int) -> int:
        gone = [hold for hold in self.holds if self.expired(hold, now_us)]
        for hold in gone:
            del self.holds[hold]
        for tenant, count in Counter(key.tenant for key, _ in gone).items():
            self.tell(tenant, EvictionReason.TTL, count)
        for row in list(self.stats):
            if now_us - self.stats[row].seen >= self.rules.ttl_us(row[0]):
                del self.stats[row]
        return len(gone)

    def expired(self, hold: tuple[Key, str], now_us: int) -> bool:
        return now_us - self.holds[hold].seen >= self.rules.ttl_us(hold[0].tenant)

    def tell(self, tenant: str, reason: EvictionReason, count: int) -> None:
        if count:
            self.evictions.append(Eviction(tenant, "lfu" if self.rules.is_lfu(tenant) else "lru", reason, count))

    # What can be asked

    def match(self, query: Query, now_us: int) -> Outcome:
        by_chain = bool(query.chain) or bool(query.chain_counts)
        if "" in query.scope or (by_chain and len(query.chain) != len(query.chain_counts)):
            return Outcome(Code.NONE, [])
        if by_chain:
            if scores := self.ranked(self.chain(query, now_us), query, now_us, depth_aware=True):
                return Outcome(Code.PREFIX_MATCH, scores)
            return Outcome(self.classify(query.scope), [])
        if scores := self.ranked(self.exact(query, now_us), query, now_us, depth_aware=False):
            return Outcome(Code.PREFIX_MATCH, scores)
        if scores := self.warm(query, now_us):
            return Outcome(Code.TENANT_HOT, scores)
        return Outcome(self.classify(query.scope), [])

    def fresh(self, query: Query, prefix_hash: bytes, replica: str, now_us: int) -> Hold | None:
        hold = (Key(*query.scope, query.adapter_id, prefix_hash), replica)
        return self.holds[hold] if hold in self.holds and not self.expired(hold, now_us) else None

    def chain(self, query: Query, now_us: int) -> dict[str, tuple[int, list[Hold]]]:
        found = {}
        for replica in self.serving(query.scope):
            run: list[Hold] = []
            for block in query.chain:
                hold = self.fresh(query, block, replica, now_us)
                if hold is None:
                    break
                run.append(hold)
            matched = sum(query.chain_counts[: len(run)])
            if matched > 0:
                found[replica] = (matched, run)
        return found

    def exact(self, query: Query, now_us: int) -> dict[str, tuple[int, list[Hold]]]:
        found = {}
        for replica in self.serving(query.scope):
            if hold := self.fresh(query, query.exact, replica, now_us):
                found[replica] = (hold.tokens, [hold])
        return found

    def ranked(
        self, found: dict[str, tuple[int, list[Hold]]], query: Query, now_us: int, *, depth_aware: bool
    ) -> list[ReplicaScore]:
        ttl = self.rules.ttl_us(query.scope.tenant)
        total = len(self.serving(query.scope))
        scores = []
        for replica, (matched, run) in found.items():
            age = now_us - min(hold.seen for hold in run)
            freshness = 1.0 if age <= 0 else f32(1 - age / ttl)
            row = self.stats.get((query.scope.tenant, query.scope.model, replica))
            pressure = row.stats.pressure if row and now_us - row.reported < ttl else 0.0
            bias = f32(1 + freshness) if 0 < query.ttft_ms < 200 else 1.0
            matching = len([1 for depth, _ in found.values() if depth >= matched or not depth_aware])
            power = 1.0 if total <= 1 else 0.0 if matching >= total else f32(1 - matching / total)
            score = f32(f32(f32(f32(matched * freshness) * pressure_factor(pressure)) * bias) * power)
            tier = max(hold.tier for hold in run)
            scores.append(ReplicaScore(replica, score, matched, freshness, 0 if tier > 3 else tier, len(run)))
        return sorted(scores, key=lambda score: (-score.score, score.replica_id))

    def warm(self, query: Query, now_us: int) -> list[ReplicaScore]:
        scores = []
        for (tenant, model, replica), row in self.stats.items():
            age = now_us - row.reported
            if (tenant, model) != query.scope[:2] or replica not in self.serving(query.scope):
                continue
            if age < FIVE_MINUTES and row.stats.hit_rate >= f32(0.1):
                recency = 1.0 if age <= 0 else f32(1 - age / FIVE_MINUTES)
                bias = f32(1 + recency) if 0 < query.ttft_ms < 200 else 1.0
                score = f32(f32(f32(row.stats.hit_rate * recency) * pressure_factor(row.stats.pressure)) * bias)
                scores.append(ReplicaScore(replica, score, 0, row.stats.hit_rate, 0, 0))
        return sorted(scores, key=lambda score: (-score.score, score.replica_id))

    def classify(self, scope: Scope) -> Code:
        visible = [key for key, _ in self.holds if key.tenant != RESERVED]
        if not visible:
            return Code.NONE
        if not [key for key, _ in self.holds if key.tenant == scope.tenant]:
            return Code.UNKNOWN_TENANT
        if not [key for key, _ in self.holds if key[:2] == scope[:2]]:
            return Code.UNKNOWN_MODEL
        return Code.NONE if self.serving(scope) else Code.UNKNOWN_HASH_SCHEME

    def serving(self, scope: Scope) -> list[str]:
        return sorted({replica for key, replica in self.holds if key[:3] == scope})

    def cache_state(self, tenant: str, model: str) -> tuple[list[tuple[str, Stats]], int]:
        rows = [(at[2], row.stats) for at, row in self.stats.items() if at[:2] == (tenant, model)]
        return sorted(rows), len({key for key, _ in self.holds if key[:2] == (tenant, model)})

    def entries_by_model(self) -> dict[str, int]:
        keys = {key for key, _ in self.holds if key.tenant != RESERVED}
        return {model: len([key for key in keys if key.model == model]) for model in self.models_ever}

    def snapshot(self) -> Snapshot:
        names = {key.tenant for key, _ in self.holds} | {tenant for tenant, _, _ in self.stats}
        replicas: list[ReplicaRow] = []
        tenants: list[TenantRow] = []
        for tenant in sorted(names - {RESERVED}):
            held = {(key, replica): hold for (key, replica), hold in self.holds.items() if key.tenant == tenant}
            reported = {at[1:]: row for at, row in self.stats.items() if at[0] == tenant}
            rows = []
            for replica in sorted({replica for _, replica in held} | {replica for _, replica in reported}):
                of_models = {model: row for (model, name), row in reported.items() if name == replica}
                seen = [hold.seen for (_, name), hold in held.items() if name == replica]
                newest = min(of_models.items(), key=lambda item: (-item[1].seen, item[0]), default=(None, None))[1]
                rows.append(
                    ReplicaRow(
                        tenant,
                        replica,
                        newest.stats if newest else None,
                        newest.seen if newest else None,
                        len(seen),
                        max(seen, default=None),
                    )
                )
            replicas += rows
            rates = [row.stats.hit_rate for row in rows if row.stats]
            tenants.append(TenantRow(tenant, len({key for key, _ in held}), sum(rates) / len(rates) if rates else None))
        return Snapshot(replicas, tenants, sum(row.index_entries for row in tenants))

    def name_bytes(self) -> int:
        paths = {(*key[:4], replica)[:depth] for key, replica in self.holds for depth in range(1, 6)}
        paths |= {row[:depth] for row in self.stats for depth in (1, 2)}
        costs = (Node.TENANT, Node.MODEL, Node.SCOPE, Node.PARTITION, Node.LANE)
        rows = sum(Node.STATS + len(replica) for _, _, replica in self.stats)
        return rows + sum(costs[len(path) - 1] + len(path[-1]) for path in paths)


def pressure_factor(pressure: float) -> float:
    return f32(min(max(1 - pressure, 0.0), 1.0))
