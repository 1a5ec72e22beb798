"""Short ways to say what replicas report and gateways ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferencecache.server.index import Holds, PrefixIndex, Query, Report, Scope, Snapshot, Stats
from tests.unit.server.index.rules import SECOND, Rules

NOW_US = 1_700_000_000 * SECOND
SCOPE = Scope("team", "model", "vllm")
HALF = Stats(cache_memory_bytes=1, hit_rate=0.5, pressure=0.0)


def blocks(*names: int | str) -> list[bytes]:
    """The hashes of blocks by name."""
    return [str(name).encode() for name in names]


def snapshot_of(index: PrefixIndex) -> Snapshot:
    """The index in numbers, while nothing else happens."""
    turns = index.snapshot()
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


def report(
    replica: str,
    hashes: Sequence[bytes] = (),
    *,
    ago: int = 0,
    tokens: Sequence[int] | int = 64,
    tier: int = 1,
    adapter: str = "",
    scope: Scope = SCOPE,
    stats: Stats | None = None,
) -> Report:
    """A report of `ago` µs before `NOW_US`; `tokens` is a count per hash, or that of each block of a chain."""
    counts = [tokens * (depth + 1) for depth in range(len(hashes))] if isinstance(tokens, int) else tokens
    return Report(replica, *scope, NOW_US - ago, [Holds(adapter, tier, hashes, counts)], stats)


class Filled:
    """An index with the reports it was made of, its rules, and what it evicted."""

    def __init__(self, *reports: Report, **settings: Any) -> None:
        self.rules = Rules()
        self.evicted: list[tuple[str, str, str, int]] = []
        self.index = PrefixIndex(
            self.rules, on_eviction=lambda eviction: self.evicted.append(tuple(eviction)), **settings
        )
        self.ingest(*reports)

    def ingest(self, *reports: Report, now_us: int = NOW_US) -> None:
        for one in reports:
            self.index.ingest(one, now_us)

    def evict(self, replica: str, prefix_hash: bytes, adapter: str = "") -> int:
        return self.index.evict(
            tenant=SCOPE.tenant, model=SCOPE.model, replica_id=replica, prefix_hash=prefix_hash, adapter_id=adapter
        )

    def clear(self, replica: str) -> None:
        self.index.clear(tenant=SCOPE.tenant, model=SCOPE.model, replica_id=replica)

    def sweep(self, now_us: int = NOW_US) -> int:
        return sum(self.index.sweep(now_us, 100))

    def touch(self, replica: str, event_us: int) -> None:
        self.index.touch(tenant=SCOPE.tenant, model=SCOPE.model, replica_id=replica, event_us=event_us)

    def chain(self, hashes: Sequence[bytes], **how: Any) -> tuple[str, list[Any]]:
        """The code and the scores for a chain."""
        return self.ask(chain(hashes, **how))

    def exact(self, prefix_hash: bytes, **how: Any) -> tuple[str, list[Any]]:
        """The code and the scores for one hash."""
        return self.ask(exact(prefix_hash, **how))

    def ask(self, query: Query, now_us: int = NOW_US) -> tuple[str, list[Any]]:
        outcome = self.index.match(query, now_us)
        return outcome.code.value, outcome.scores

    def use(self, query: Query) -> None:
        """A lookup whose whole answer was delivered."""
        self.index.credit(query, self.index.match(query, NOW_US).scores)

    def has(self, *hashes: bytes, replica: str = "r", scope: Scope = SCOPE) -> list[bytes]:
        """Those of `hashes` that `replica` holds, for any adapter."""
        held = {
            prefix_hash
            for one in self.index.dump()
            for holds in one.holds
            for prefix_hash in holds.hashes
            if one.replica_id == replica and Scope(*one[1:4]) == scope
        }
        return [prefix_hash for prefix_hash in hashes if prefix_hash in held]


def chain(
    hashes: Sequence[bytes],
    *,
    tokens: Sequence[int] | int = 64,
    scope: Scope = SCOPE,
    adapter: str = "",
    ttft_ms: int = 0,
    prefix_hash: bytes = b"",
) -> Query:
    """A question by chain."""
    counts = [tokens] * len(hashes) if isinstance(tokens, int) else tokens
    return Query(scope, adapter, hashes, counts, prefix_hash, ttft_ms)


def exact(prefix_hash: bytes, *, scope: Scope = SCOPE, adapter: str = "", ttft_ms: int = 0) -> Query:
    """A question by one hash."""
    return Query(scope, adapter, [], [], prefix_hash, ttft_ms)
