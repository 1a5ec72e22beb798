"""What stands around a lookup in tests: a caller, clocks that obey, and an index that answers as told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferencecache.server.clock import Clock
from inferencecache.server.index import Code, Outcome, Query, ReplicaScore, Scope

NOW_US = 1_700_000_000_000_000


@dataclass
class Caller:
    """A `Call`; by default one that waits forever and stays."""

    deadline: float | None = None
    cancelled: bool = False
    metadata: dict[str, str] = field(default_factory=dict)


class Clocks:
    """Two clocks that stand still until told to move."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.us = NOW_US
        self.clock = Clock(monotonic=lambda: self.seconds, wall_us=lambda: self.us)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.us += round(seconds * 1_000_000)


@dataclass
class ScriptedIndex:
    """Stands in for the index where a test is about what happens around it."""

    outcome: Outcome = field(default_factory=lambda: Outcome(Code.NONE, []))
    replicas: list[str] = field(default_factory=list)
    while_matching: Callable[[], None] = lambda: None
    queries: list[Query] = field(default_factory=list)
    credited: list[tuple[Query, list[ReplicaScore]]] = field(default_factory=list)

    def takes_turns(self, _query: Query) -> bool:
        return False

    def match(self, query: Query, now_us: int) -> Outcome:
        self.queries.append(query)
        self.while_matching()
        return self.outcome

    def credit(self, query: Query, delivered: Sequence[ReplicaScore]) -> None:
        self.credited.append((query, list(delivered)))

    def serving(self, scope: Scope) -> list[str]:
        return self.replicas


def score(replica_id: str, value: float = 50.0, tokens: int = 128, tier: int = 1) -> ReplicaScore:
    """A prefix match of one replica."""
    return ReplicaScore(replica_id, value, tokens, 1.0, tier, 2)
