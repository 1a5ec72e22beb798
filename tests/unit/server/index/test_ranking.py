"""The arithmetic of scores (spec 06 §6.6, §6.7)."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.index import Ranker, Stats
from inferencecache.server.index.ranking import distinguishing_power, fading, product
from tests.unit.server.index.reports import HALF, Filled, blocks, exact, report
from tests.unit.server.index.rules import MINUTE

P = blocks("p")


@pytest.mark.parametrize(
    ("matching", "total", "power"),
    [(1, 1, 1.0), (0, 0, 1.0), (3, 3, 0.0), (1, 3, 2 / 3), (2, 3, 1 / 3), (5, 3, 0.0), (1, -1, 1.0), (1, 2, 0.5)],
)
def test_a_match_says_the_more_about_a_route_the_fewer_have_it(matching: int, total: int, power: float) -> None:
    assert distinguishing_power([matching], total) == array("f", [power])


@given(st.integers(-(2**40), 2**60), st.integers(1, 2**50))
def test_freshness_is_never_outside_zero_and_one_within_the_ttl(age: int, ttl: int) -> None:
    if age < ttl:
        (freshness,) = fading([age], ttl)
        assert 0.0 < freshness <= 1.0


def test_a_product_is_rounded_to_single_precision_and_beyond_its_range_infinite() -> None:
    left = array("f", [0.1, 3e38, -3e38, 1 / 3])
    right = array("f", [0.2, 2.0, 2.0, 3.0])
    assert list(product(left, right)) == [float.fromhex("0x1.47ae16p-6"), math.inf, -math.inf, 1.0]


@pytest.mark.parametrize(
    ("ranker", "score"),
    [
        (Ranker(), 64.0),
        (Ranker(pressure_weight=0.0), 128.0),
        (Ranker(pressure_weight=0.5), 96.0),
        (Ranker(slo_tight_ttft_ms=0), 32.0),
        (Ranker(slo_tight_bias=0.0), 32.0),
        (Ranker(slo_tight_bias=3.0), 128.0),
    ],
)
def test_each_weight_of_zero_switches_its_term_off(ranker: Ranker, score: float) -> None:
    filled = Filled(report("r", P, stats=Stats(0, 0.5, 0.5)), ranker=ranker)
    assert filled.ask(exact(P[0], ttft_ms=100))[1][0].score == score


@pytest.mark.parametrize(
    ("ranker", "hot"),
    [
        (Ranker(), True),
        (Ranker(tenant_hot_max_age_us=0), False),
        (Ranker(tenant_hot_max_age_us=-1), False),
        (Ranker(tenant_hot_max_age_us=MINUTE), False),
        (Ranker(tenant_hot_min_hit_rate=0.5), True),
        (Ranker(tenant_hot_min_hit_rate=0.6), False),
    ],
)
def test_how_warm_a_replica_must_be_can_be_set_and_an_age_of_zero_switches_it_off(ranker: Ranker, hot: bool) -> None:
    filled = Filled(report("r", P), report("r", stats=HALF, ago=MINUTE), ranker=ranker)
    assert filled.exact(b"?")[0] == ("TENANT_HOT" if hot else "NONE")
