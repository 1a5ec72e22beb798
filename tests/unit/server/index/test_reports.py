"""What reports and events do to the index (spec 06 §3.4, §3.5, §6.2)."""

from __future__ import annotations

import pytest

from inferencecache.server.index import Holds, Report, Stats
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE

P = blocks("p0", "p1", "p2")
SGLANG = SCOPE._replace(hash_scheme="sglang")


def test_reporting_the_same_again_changes_nothing() -> None:
    once = Filled(report("r", P, stats=HALF))
    twice = Filled(report("r", P, stats=HALF), report("r", P, stats=HALF))
    assert snapshot_of(twice.index) == snapshot_of(once.index)
    assert twice.chain(P) == once.chain(P)


def test_what_a_report_does_not_name_stays() -> None:
    filled = Filled(report("r", P[:2]), report("r", P[2:]), report("r"))
    assert filled.has(*P) == P


def test_of_two_entries_for_one_prefix_in_a_report_the_last_counts() -> None:
    holds = [Holds("", 1, [P[0], P[0]], [10, 20]), Holds("", 2, [P[0]], [30])]
    filled = Filled(Report("r", *SCOPE, NOW_US, holds, None))
    _, (score,) = filled.exact(P[0])
    assert (score.matched_tokens, score.tier) == (30, 2)
    assert snapshot_of(filled.index).replicas[0].prefix_count == 1


def test_a_report_without_a_scheme_brings_stats_only() -> None:
    filled = Filled(report("r", P, scope=SCOPE._replace(hash_scheme=""), stats=HALF))
    assert filled.index.cache_state("team", "model") == ([("r", HALF)], 0)


def test_a_report_of_nothing_leaves_no_trace() -> None:
    filled = Filled(report("r"), report("r", [b""]))
    assert snapshot_of(filled.index) == snapshot_of(Filled().index)
    assert not filled.index._tree.tenants


def test_names_may_be_empty_except_that_lookups_ask_for_none() -> None:
    filled = Filled(report("", P, scope=SCOPE._replace(tenant="", model="")))
    assert filled.index.cache_state("", "") == ([], 3)
    assert snapshot_of(filled.index).tenants[0].tenant == ""


@pytest.mark.parametrize(
    ("adapter", "removed", "left"),
    [("", 3, []), ("x", 1, ["", "sglang"]), ("unseen", 0, ["", "x", "sglang"])],
)
def test_an_eviction_removes_under_all_schemes_and_for_all_adapters_or_the_one_it_names(
    adapter: str, removed: int, left: list[str]
) -> None:
    """Trap 9: a producer that knows adapters but names none means all of them."""
    filled = Filled(report("r", P[:1]), report("r", P[:1], adapter="x"), report("r", P[:1], scope=SGLANG))
    assert filled.evict("r", P[0], adapter) == removed
    found = {
        "": filled.exact(P[0])[0],
        "x": filled.exact(P[0], adapter="x")[0],
        "sglang": filled.exact(P[0], scope=SGLANG)[0],
    }
    assert [name for name, code in found.items() if code == "PREFIX_MATCH"] == left


def test_an_eviction_concerns_one_prefix_of_one_replica_of_one_model() -> None:
    other = SCOPE._replace(model="other")
    filled = Filled(report("r", P), report("s", P), report("r", P, scope=other))
    assert filled.evict("r", P[1]) == 1
    assert filled.has(*P) == [P[0], P[2]]
    assert filled.has(*P, replica="s") == filled.has(*P, scope=other) == P


def test_an_eviction_of_what_is_not_held_removes_nothing() -> None:
    filled = Filled(report("r", P))
    assert [filled.evict("r", b"?"), filled.evict("?", P[0]), filled.evict("r", b"")] == [0, 0, 0]
    assert Filled().evict("r", P[0]) == 0


def test_a_clear_takes_all_holds_and_the_stats_of_one_replica_of_one_model() -> None:
    other = SCOPE._replace(model="other")
    filled = Filled(
        report("r", P, stats=HALF),
        report("r", P[:1], adapter="x"),
        report("r", P[:1], scope=SGLANG),
        report("r", P, scope=other, stats=HALF),
        report("s", P[:2], stats=HALF),
    )
    filled.clear("r")
    assert filled.index.cache_state("team", "model") == ([("s", HALF)], 2)
    assert filled.index.serving(SCOPE) == ["s"]
    assert filled.index.serving(SGLANG) == []
    assert filled.has(*P, scope=other) == P
    assert filled.chain(P)[1][0].matched_tokens == 128


def test_a_clear_of_the_last_replica_leaves_no_trace() -> None:
    filled = Filled(report("r", P, stats=HALF))
    filled.clear("r")
    filled.clear("r")
    assert not filled.index._tree.tenants
    assert filled.exact(P[0]) == ("NONE", [])
    filled.ingest(report("r", P[:1]))
    assert filled.exact(P[0])[0] == "PREFIX_MATCH"


def test_a_sign_of_life_moves_only_the_time_of_a_stats_row_even_backwards() -> None:
    filled = Filled(report("r", P, stats=HALF))
    for event_us in (NOW_US + MINUTE, NOW_US - MINUTE):
        filled.touch("r", event_us)
        (row,) = snapshot_of(filled.index).replicas
        assert (row.last_update_us, row.last_event_us) == (event_us, NOW_US)


def test_a_sign_of_life_of_a_replica_without_stats_is_nothing() -> None:
    filled = Filled(report("r", P))
    filled.touch("r", NOW_US)
    filled.touch("?", NOW_US)
    Filled().touch("r", NOW_US)
    assert snapshot_of(filled.index).replicas[0].last_update_us is None


def test_stats_are_those_of_the_last_report() -> None:
    filled = Filled(report("r", stats=HALF), report("r", stats=Stats(7, 0.25, 0.75, 6, 10), ago=MINUTE))
    assert filled.index.cache_state("team", "model") == ([("r", Stats(7, 0.25, 0.75, 6, 10))], 0)


def test_the_state_of_a_model_counts_keys_over_schemes_and_adapters_and_sorts_replicas() -> None:
    filled = Filled(
        report("b", P, stats=HALF),
        report("a", P, stats=HALF),
        report("a", P[:1], adapter="x"),
        report("c", P[:2], scope=SGLANG),
    )
    assert filled.index.cache_state("team", "model") == ([("a", HALF), ("b", HALF)], 6)
    assert filled.index.cache_state("team", "?") == filled.index.cache_state("?", "model") == ([], 0)


def test_tokens_reported_differently_later_count_for_the_reporter_alone() -> None:
    filled = Filled(report("a", P[:1], tokens=[10]), report("b", P[:1], tokens=[10]))
    filled.ingest(report("a", P[:1], tokens=[99]))
    assert {one.replica_id: one.matched_tokens for one in filled.ask(exact(P[0]))[1]} == {"a": 99, "b": 10}
    filled.ingest(report("a", P[:1], tokens=[10]))
    assert {one.matched_tokens for one in filled.ask(exact(P[0]))[1]} == {10}
