"""How much a replica is worth for a request: the arithmetic of spec 06 §6.6 and §6.7.

Scores are float32, as on the wire, and every step is rounded to it: clients compare scores across servers, and the
order of replicas must not depend on digits that the reply cannot carry. A product of two float32 values is exact in
Python's floats, so that rounding afterwards gives what float32 hardware gives. Rounding is storing in an `array("f")`,
all replicas at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, mul
from typing import Final, NamedTuple

from inferencecache.server.index.model import ReplicaScore
from inferencecache.server.index.tree import StatsRow

_UNSPECIFIED: Final = 0
_COLDEST_KNOWN: Final = 3

_by_id = attrgetter("replica_id")
_by_score = attrgetter("score")


class Moment(NamedTuple):
    """What freshness and bias depend on besides a replica's holds."""

    now_us: int
    ttl_us: int
    ttft_ms: int


class Found(NamedTuple):
    """What one replica holds of a request: tokens, the oldest instant, the coldest tier and the blocks of the run."""

    replica_id: str
    matched: int
    oldest_us: int
    tier: int
    run: int


class Rivals(NamedTuple):
    """Whom a match is compared with.

    Attributes:
        depths: the tokens of all that were found, in order; none if nobody holds less than anybody.
        number: how many were found.
        total: the replicas with any hold in the scope.
    """

    depths: Sequence[int]
    number: int
    total: int

    @classmethod
    def of(cls, found: Sequence[Found], total: int, *, by_depth: bool) -> Rivals:
        """With `by_depth`, only those that hold as many tokens are alternatives (chains); else all that were found."""
        return cls(sorted([each.matched for each in found]) if by_depth else (), len(found), total)


@dataclass(frozen=True, slots=True)
class Ranker:
    """The weights of the formulas. Zero switches a term off; a `tenant_hot_max_age_us` of zero, TENANT_HOT itself."""

    pressure_weight: float = 1.0
    slo_tight_ttft_ms: int = 200
    slo_tight_bias: float = 1.0
    tenant_hot_min_hit_rate: float = 0.1
    tenant_hot_max_age_us: int = 300_000_000

    def matches(
        self, found: Sequence[Found], moment: Moment, rivals: Rivals, stats: Mapping[str, StatsRow]
    ) -> Iterable[ReplicaScore]:
        """Scores of replicas that hold a prefix: of all that were found, or of some of them.

        Args:
            found: what each of them holds; not empty.
            moment: when and under which TTL and SLO.
            rivals: all that were found.
            stats: the model's, by replica.
        """
        now_us, ttl_us, ttft_ms = moment
        replica_ids, matched, oldest_us, tiers, runs = zip(*found, strict=True)
        freshness = fading([now_us - at_us for at_us in oldest_us], ttl_us)
        worth = product(array("f", matched), freshness)
        rows = [stats.get(replica_id) for replica_id in replica_ids]
        if any(rows):
            worth = product(
                worth,
                self._relief(
                    row.stats.pressure if row is not None and now_us - row.reported_us < ttl_us else 0.0 for row in rows
                ),
            )
        if 0 < ttft_ms < self.slo_tight_ttft_ms:
            worth = product(worth, self._bias(freshness))
        depths, number, total = rivals
        alternatives = [number - bisect_left(depths, tokens) for tokens in matched]
        worth = product(worth, distinguishing_power(alternatives, total))
        known = [tier if tier <= _COLDEST_KNOWN else _UNSPECIFIED for tier in tiers]
        return map(ReplicaScore, replica_ids, worth, matched, freshness, known, runs)

    def warm(
        self, rows: Iterable[tuple[str, StatsRow]], serving: Mapping[str, int], now_us: int, ttft_ms: int
    ) -> Iterable[ReplicaScore]:
        """Scores of those of the replicas that serve the scope and lately reported a good hit rate."""
        (least,) = array("f", (self.tenant_hot_min_hit_rate,))
        hot = [
            (replica_id, row)
            for replica_id, row in rows
            if now_us - row.reported_us < self.tenant_hot_max_age_us
            and row.stats.hit_rate >= least
            and replica_id in serving
        ]
        if not hot or self.tenant_hot_max_age_us <= 0:
            return ()
        rates = array("f", [row.stats.hit_rate for _, row in hot])
        recency = fading([now_us - row.reported_us for _, row in hot], self.tenant_hot_max_age_us)
        worth = product(product(rates, recency), self._relief(row.stats.pressure for _, row in hot))
        if 0 < ttft_ms < self.slo_tight_ttft_ms:
            worth = product(worth, self._bias(recency))
        return (
            ReplicaScore(replica_id, score, 0, rate, _UNSPECIFIED, 0)
            for (replica_id, _), score, rate in zip(hot, worth, rates, strict=True)
        )

    def _relief(self, pressures: Iterable[float]) -> array[float]:
        """The factor that is left of a score under pressure."""
        return array("f", [min(max(1 - self.pressure_weight * pressure, 0.0), 1.0) for pressure in pressures])

    def _bias(self, freshness: array[float]) -> array[float]:
        """The factor by which a tight TTFT raises fresh replicas."""
        return array("f", [1 + fresh * self.slo_tight_bias for fresh in freshness])


def product(left: array[float], right: array[float]) -> array[float]:
    """Element by element, in single precision."""
    return array("f", map(mul, left, right))


def fading(ages_us: Iterable[int], span_us: int) -> array[float]:
    """From 1 for what is new, or yet to come, down to 0 at the age of `span_us` (spec 06 §6.3)."""
    return array("f", [1 - age_us / span_us if age_us > 0 else 1.0 for age_us in ages_us])


def distinguishing_power(matching: Iterable[int], total: int) -> array[float]:
    """How much a match says about where to go when so many of `total` replicas have it (spec 06 §6.6)."""
    if total <= 1:
        return array("f", [1.0 for _ in matching])
    return array("f", [1 - number / total if number < total else 0.0 for number in matching])


def best_first(scores: Iterable[ReplicaScore]) -> list[ReplicaScore]:
    """By score descending, then id; code points of Python's strings order like the bytes of UTF-8."""
    ordered = sorted(scores, key=_by_id)
    ordered.sort(key=_by_score, reverse=True)
    return ordered
