"""How much a replica is worth for a request: the arithmetic of spec 06 §6.6 and §6.7.

Scores are float32, as on the wire, and every step is rounded to it: clients compare scores across servers, and the
order of replicas must not depend on digits that the reply cannot carry. A product of two float32 values is exact in
Python's floats, so that rounding afterwards gives what float32 hardware gives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple

from inferencecache.server.index.model import ReplicaScore
from inferencecache.server.index.tree import StatsRow

_UNSPECIFIED: Final = 0
_COLDEST_KNOWN: Final = 3

_float32 = Struct("f")
_pack = _float32.pack
_unpack = _float32.unpack
_by_id = attrgetter("replica_id")
_by_score = attrgetter("score")


def float32(value: float) -> float:
    """`value` in single precision; infinite beyond its range."""
    try:
        rounded: float = _unpack(_pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


@dataclass(frozen=True, slots=True)
class Ranker:
    """The weights of the formulas. Zero switches a term off; a `tenant_hot_max_age_us` of zero, TENANT_HOT itself."""

    pressure_weight: float = 1.0
    slo_tight_ttft_ms: int = 200
    slo_tight_bias: float = 1.0
    tenant_hot_min_hit_rate: float = 0.1
    tenant_hot_max_age_us: int = 300_000_000

    def matches(
        self, found: Sequence[Found], *, moment: Moment, total: int, by_depth: bool, stats: Mapping[str, StatsRow]
    ) -> list[ReplicaScore]:
        """Scores of the replicas that hold a prefix, best first.

        Args:
            found: what each of them holds.
            moment: when and under which TTL and SLO.
            total: the replicas with any hold in the scope.
            by_depth: count as alternatives to a replica only those that hold as many tokens (chains), not all found.
            stats: the model's, by replica.
        """
        # Without depths, nobody holds less than anybody, and all found are alternatives to each.
        depths = sorted([match.matched for match in found]) if by_depth else []
        scores = []
        for replica_id, matched, oldest_us, tier, run in found:
            freshness = moment.freshness(oldest_us)
            row = stats.get(replica_id)
            score = float32(float32(matched) * freshness)
            if row is not None and moment.now_us - row.reported_us < moment.ttl_us:
                score = float32(score * self._pressure_factor(row))
            if 0 < moment.ttft_ms < self.slo_tight_ttft_ms:
                score = float32(score * float32(1 + freshness * self.slo_tight_bias))
            alternatives = len(found) - bisect_left(depths, matched)
            score = float32(score * distinguishing_power(alternatives, total))
            known = tier if tier <= _COLDEST_KNOWN else _UNSPECIFIED
            scores.append(ReplicaScore(replica_id, score, matched, freshness, known, run))
        return _best_first(scores)

    def warm(
        self, stats: Mapping[str, StatsRow], serving: Mapping[str, int], now_us: int, ttft_ms: int
    ) -> list[ReplicaScore]:
        """Scores of the replicas that serve the scope and lately reported a good hit rate, best first."""
        scores: list[ReplicaScore] = []
        max_age_us = self.tenant_hot_max_age_us
        if max_age_us <= 0:
            return scores
        for replica_id, row in stats.items():
            age_us = now_us - row.reported_us
            hit_rate = row.stats.hit_rate
            if age_us >= max_age_us or hit_rate < float32(self.tenant_hot_min_hit_rate) or replica_id not in serving:
                continue
            recency = float32(min(1 - age_us / max_age_us, 1.0))
            score = float32(float32(hit_rate * recency) * self._pressure_factor(row))
            if 0 < ttft_ms < self.slo_tight_ttft_ms:
                score = float32(score * float32(1 + recency * self.slo_tight_bias))
            scores.append(ReplicaScore(replica_id, score, 0, hit_rate, _UNSPECIFIED, 0))
        return _best_first(scores)

    def _pressure_factor(self, row: StatsRow) -> float:
        return float32(min(max(1 - self.pressure_weight * row.stats.pressure, 0.0), 1.0))


class Moment(NamedTuple):
    """What freshness and bias depend on besides a replica's holds."""

    now_us: int
    ttl_us: int
    ttft_ms: int

    def freshness(self, seen_us: int) -> float:
        """From 1 for what was just seen, or will be, down to 0 at the end of the TTL (spec 06 §6.3)."""
        return float32(min(1 - (self.now_us - seen_us) / self.ttl_us, 1.0))


class Found(NamedTuple):
    """What one replica holds of a request: tokens, the oldest instant, the coldest tier and the blocks of the run."""

    replica_id: str
    matched: int
    oldest_us: int
    tier: int
    run: int


def distinguishing_power(matching: int, total: int) -> float:
    """How much a match says about where to go when `matching` of `total` replicas have it (spec 06 §6.6)."""
    if total <= 1:
        return 1.0
    if matching >= total:
        return 0.0
    return float32(1 - matching / total)


def _best_first(scores: list[ReplicaScore]) -> list[ReplicaScore]:
    """By score descending, then id; code points of Python's strings order like the bytes of UTF-8."""
    scores.sort(key=_by_id)
    scores.sort(key=_by_score, reverse=True)
    return scores
