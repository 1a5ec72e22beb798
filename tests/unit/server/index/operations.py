"""Random histories of an index and a model of it, compared after every step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from inferencecache.server.index import (
    Code,
    Holds,
    PrefixIndex,
    Query,
    ReplicaScore,
    Report,
    Scope,
    Stats,
    matching,
    sequences,
)
from tests.unit.server.index.model import RESERVED, Eviction, Key, NaiveIndex
from tests.unit.server.index.reports import snapshot_of
from tests.unit.server.index.rules import SECOND, Rules

TENANTS = ("", "a", "b", RESERVED)
MODELS = ("m", "n")
SCHEMES = ("", "vllm", "sglang")
ADAPTERS = ("", "x", "y")
REPLICAS = ("r1", "r2", "r3", "r4")
HASHES = (b"", *(bytes(divmod(number, 4)) for number in range(12)))
RATES = (0.0, 0.0625, float.fromhex("0x1.99999ap-4"), 0.5, 1.0, 1.5, -0.5)
TTL = 60 * SECOND


def compare_short_chains(patch: Callable[[object, str, int], None]) -> None:
    """Have the index compare at once (see `sequences`) what is much shorter than what would be worth it."""
    patch(sequences, "WIDTH", 2)
    patch(sequences, "SHORTEST", 2)
    patch(matching, "WIDTH", 2)
    patch(matching, "SHORTEST", 2)
    patch(matching, "LONG", 2)
    patch(matching, "STRETCH", 2)


class History:
    """An index and its model that have been told the same.

    Args:
        rng: decides what happens.
        capacity: the cap of both, small enough to be reached, or 0.
        puts_off: the index was made to put off much of its work, so it has to be told to settle, which happens now and
            then. Answers must be right at any time; numbers of keys, which quotas and `snapshot` go by, when it has.
    """

    def __init__(self, rng: random.Random, capacity: int, *, puts_off: bool = False) -> None:
        self.rng = rng
        self.puts_off = puts_off
        self.rules = Rules(ttl_us=TTL)
        self.told: list[Eviction] = []
        self.real = PrefixIndex(self.rules, capacity=capacity, on_eviction=self.told.append)
        self.model = NaiveIndex(self.rules, capacity)
        self.now_us = 1_700_000_000 * SECOND
        self.steps = 0

    def step(self) -> None:
        """Do one thing to both, and compare what they then say to a few questions, and of themselves."""
        operation = self.rng.choices(
            (self.report, self.evict, self.clear, self.touch, self.sweep, self.sweep_a_little, self.rule, self.use),
            (10, 5, 1, 1, 1, 1, 1, 5),
        )[0]
        operation()
        if self.rng.random() < 0.2:
            self.real.settle(1)
        self.now_us += self.rng.choice((0, 0, 1, SECOND, 5 * SECOND, -2 * SECOND))
        self.compare()

    def compare(self, questions: int = 2) -> None:
        """What was evicted, the answers to a few questions and, every few steps, all of the rest must be equal."""
        assert Counter(self.told) == Counter(self.model.evictions)
        self.told.clear()
        self.model.evictions.clear()
        self.steps += 1
        if self.steps % 4 == 0 and not self.real.unsettled:
            assert snapshot_of(self.real) == self.model.snapshot()
            assert dict(self.real.entries_by_model()) == self.model.entries_by_model()
            assert self.real.name_bytes == self.model.name_bytes()
        for _ in range(questions):
            query = self.query()
            assert self.real.match(query, self.now_us) == self.model.match(query, self.now_us), query
            scope = query.scope
            assert self.real.serving(scope) == self.model.serving(scope)
            stats, keys = self.real.cache_state(*scope[:2])
            expected, distinct = self.model.cache_state(*scope[:2])
            assert stats == expected
            assert keys >= distinct if self.real.unsettled else keys == distinct

    def report(self) -> None:
        rng = self.rng
        hashes = rng.choices(HASHES, k=rng.choice((0, 1, 2, 6)))
        if rng.random() < 0.5:
            # As an engine stores a prompt, and as a gateway asks for it.
            start = rng.randrange(len(HASHES))
            hashes = list(HASHES[start : start + len(hashes)])
        split = rng.randint(0, len(hashes))
        # Mostly what a prefix has everywhere, but nobody promises that.
        counts = [16 * (HASHES.index(item) + 1) if rng.random() < 0.9 else rng.choice((0, 5)) for item in hashes]
        adapter = self.adapter()
        report = Report(
            rng.choice(REPLICAS),
            self.tenant(),
            rng.choice(MODELS),
            self.scheme(),
            self.instant(),
            [
                Holds(adapter, rng.choice((0, 1, 1, 2, 3, 4, -1, 99)), hashes[:split], counts[:split]),
                Holds(self.adapter(), rng.choice((1, 2)), hashes[split:], counts[split:]),
            ],
            self.stats() if rng.random() < 0.3 else None,
        )
        self.real.ingest(report, self.now_us)
        self.model.ingest(report, self.now_us)
        if self.puts_off and report.tenant in self.rules.quotas:
            self.settle()

    def settle(self) -> None:
        """All that was put off."""
        while self.real.unsettled:
            self.real.settle(1)
        self.fold()

    def evict(self) -> None:
        where = dict(self.replica(), prefix_hash=self.rng.choice(HASHES), adapter_id=self.rng.choice(ADAPTERS))
        assert self.real.evict(**where) == self.model.evict(**where)

    def clear(self) -> None:
        where = self.replica()
        self.real.clear(**where)
        self.model.clear(**where)

    def touch(self) -> None:
        where, event_us = self.replica(), self.instant()
        self.real.touch(**where, event_us=event_us)
        self.model.touch(**where, event_us=event_us)

    def sweep(self) -> None:
        """In slices, to the end."""
        limit = self.rng.choice((1, 2, 5, 1000))
        slices = list(self.real.sweep(self.now_us, limit))
        assert max(slices, default=0) <= limit
        assert sum(slices) == self.model.sweep(self.now_us)
        self.fold()

    def sweep_a_little(self) -> None:
        """One slice: the model gives up what the index no longer has, and it must have been old enough."""
        next(self.real.sweep(self.now_us, self.rng.choice((1, 3))), None)
        self.told.clear()
        left = self.holds()
        for hold in list(self.model.holds):
            if hold[0].tenant != RESERVED and hold not in left:
                assert self.model.expired(hold, self.now_us)
                del self.model.holds[hold]
        for tenant, model, replica in list(self.model.stats):
            if tenant == RESERVED:
                continue
            if replica not in dict(self.real.cache_state(tenant, model)[0]):
                assert self.now_us - self.model.stats[tenant, model, replica].seen >= self.rules.ttl_us(tenant)
                del self.model.stats[tenant, model, replica]
        # The reserved tenant's holds are in no dump; have them gone on both sides.
        for model_name in MODELS:
            for replica_id in REPLICAS:
                self.real.clear(tenant=RESERVED, model=model_name, replica_id=replica_id)
                self.model.clear(tenant=RESERVED, model=model_name, replica_id=replica_id)

    def rule(self) -> None:
        """Another policy, for one tenant."""
        tenant = self.rng.choice(TENANTS[:3])
        self.rules.lfu ^= {tenant} if self.rng.random() < 0.5 else set()
        if self.rng.random() < 0.4:
            self.rules.quotas[tenant] = self.rng.choice((0, 2, 5, 9))
        else:
            self.rules.quotas.pop(tenant, None)
        self.rules.ttls[tenant] = self.rng.choice((TTL, TTL, TTL // 4))

    def use(self) -> None:
        """A lookup whose answer is delivered, or a part of it."""
        query = self.query()
        outcome = self.real.match(query, self.now_us)
        if outcome.code is Code.PREFIX_MATCH:
            delivered: list[ReplicaScore] = outcome.scores[: self.rng.choice((1, 4))]
            if self.rng.random() < 0.1:
                # What the answer was made of may be gone by the time it is delivered.
                self.evict()
            self.real.credit(query, delivered)
            self.model.credit(query, delivered)

    def holds(self) -> set[tuple[Key, str]]:
        """What the index has, by its own account."""
        return {
            (Key(report.tenant, report.model, report.hash_scheme, holds.adapter_id, prefix_hash), report.replica_id)
            for report in self.real.dump()
            for holds in report.holds
            for prefix_hash in holds.hashes
        }

    def fold(self) -> None:
        """Slices are told one by one; the model tells the sum."""
        totals: Counter[tuple[object, ...]] = Counter()
        for eviction in self.told:
            totals[eviction[:3]] += eviction.removed
        self.told[:] = [Eviction(*which, count) for which, count in totals.items()]  # type: ignore[arg-type]

    def query(self) -> Query:
        rng = self.rng
        start = rng.randrange(1, len(HASHES))
        blocks = list(HASHES[start : start + rng.choice((1, 2, 5))])
        if rng.random() < 0.1:
            rng.shuffle(blocks)
        counts = [rng.choice((16, 16, 16, 16, 0, -16)) if rng.random() < 0.1 else 16 for _ in blocks]
        if rng.random() < 0.05:
            counts = counts[1:]
        if rng.random() < 0.4:
            blocks, counts = [], []
        scope = Scope(self.tenant(), rng.choice(MODELS), self.scheme())
        return Query(scope, self.adapter(), blocks, counts, rng.choice(HASHES), rng.choice((0, 100, 200)))

    def replica(self) -> dict[str, str]:
        return {"tenant": self.tenant(), "model": self.rng.choice(MODELS), "replica_id": self.rng.choice(REPLICAS)}

    def tenant(self) -> str:
        return self.rng.choices(TENANTS, (1, 10, 6, 2))[0]

    def scheme(self) -> str:
        return self.rng.choices(SCHEMES, (1, 12, 4))[0]

    def adapter(self) -> str:
        return self.rng.choices(ADAPTERS, (8, 2, 1))[0]

    def instant(self) -> int:
        """Mostly now; else behind, long ago, equal to others, or ahead."""
        behind = self.rng.choice((0, 0, 0, 1, SECOND, 20 * SECOND, TTL, 10 * TTL, -3 * SECOND, -TTL))
        return (self.now_us - behind) // SECOND * SECOND if self.rng.random() < 0.5 else self.now_us - behind

    def stats(self) -> Stats:
        return Stats(self.rng.randrange(100), self.rng.choice(RATES), self.rng.choice(RATES), 6, 10)
