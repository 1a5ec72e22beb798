"""Which replicas a question finds, in which order, and what it is told when there are none (spec 06 §6.5–§6.9)."""

from __future__ import annotations

import struct
from itertools import permutations

import pytest

from inferencecache.server.index import Query, Scope, Stats
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, chain, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE, SECOND

B = blocks("b0", "b1", "b2", "b3", "b4")


def stats(hit_rate: float = 0.8, pressure: float = 0.0) -> Stats:
    return Stats(0, hit_rate, pressure)


def float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


@pytest.fixture
def worked() -> Filled:
    """The example of §6.6."""
    return Filled(
        report("A", B[:3], ago=MINUTE, stats=stats(pressure=0.25)),
        report("B", B[:2], ago=2 * MINUTE, tier=2, stats=stats()),
        report("C", B[:1], ago=4 * MINUTE, stats=stats()),
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (chain(B), [("A", 92.8, 192, 1, 3), ("B", 39.822224, 128, 2, 2), ("C", 0.0, 64, 1, 1)]),
        (chain(B, ttft_ms=100), [("A", 182.50668, 192, 1, 3), ("B", 76.98964, 128, 2, 2), ("C", 0.0, 64, 1, 1)]),
        (exact(b"b1"), [("B", 39.822224, 128, 2, 1), ("A", 30.933332, 128, 1, 1)]),
    ],
)
def test_the_worked_check_holds_to_the_last_digit_of_single_precision(
    worked: Filled, query: Query, expected: list[tuple[str, float, int, int, int]]
) -> None:
    code, scores = worked.ask(query)
    assert code == "PREFIX_MATCH"
    told = [(one.replica_id, one.score, one.matched_tokens, one.tier, one.run) for one in scores]
    assert told == [(name, float32(score), tokens, tier, run) for name, score, tokens, tier, run in expected]


def test_the_worked_check_for_a_prefix_nobody_holds_names_the_warm_replicas(worked: Filled) -> None:
    code, scores = worked.exact(b"?")
    assert code == "TENANT_HOT"
    told = [(one.replica_id, round(one.score, 6), one.matched_tokens, one.tier, one.run) for one in scores]
    assert told == [("A", 0.48, 0, 0, 0), ("B", 0.48, 0, 0, 0), ("C", 0.16, 0, 0, 0)]
    assert {one.hit_probability for one in scores} == {float32(0.8)}


# Chains


@pytest.mark.parametrize(
    ("held", "matched"),
    [
        (B, 5),
        (B[:3], 3),
        ([B[0], B[2], B[3]], 1),
        ([B[0], B[1], B[3], B[4]], 2),
        (B[1:], None),
        ([], None),
    ],
)
def test_a_chain_matches_its_longest_leading_run(held: list[bytes], matched: int | None) -> None:
    filled = Filled(report("r", [*held, b"other"]))
    code, scores = filled.chain(B)
    if matched is None:
        assert (code, scores) == ("NONE", [])
    else:
        assert (code, scores[0].matched_tokens, scores[0].run) == ("PREFIX_MATCH", 64 * matched, matched)


def test_a_replica_that_dropped_out_of_a_chain_does_not_come_back() -> None:
    filled = Filled(report("gap", [B[0], B[2]]), report("whole", B[:3]))
    assert [(one.replica_id, one.run) for one in filled.chain(B[:3])[1]] == [("whole", 3), ("gap", 1)]


def test_a_chain_is_as_fresh_as_its_oldest_block() -> None:
    filled = Filled(report("r", B[:1], ago=3 * MINUTE), report("r", B[1:2], ago=15 * MINUTE), report("r", B[2:3]))
    _, (score,) = filled.chain(B[:3])
    assert score.hit_probability == 0.5


@pytest.mark.parametrize(("stale", "run"), [(0, None), (1, 1), (2, 2)])
def test_a_stale_block_ends_the_run(stale: int, run: int | None) -> None:
    filled = Filled(report("r", B[:3]), report("r", [B[stale]], ago=30 * MINUTE))
    code, scores = filled.chain(B[:3])
    assert [one.run for one in scores] == ([] if run is None else [run])
    assert code == ("NONE" if run is None else "PREFIX_MATCH")


@pytest.mark.parametrize(
    ("tiers", "coldest"), [((1, 1), 1), ((2, 1), 2), ((1, 3), 3), ((1, 99), 0), ((-1, 2), 0), ((0, 0), 1)]
)
def test_a_chain_is_as_cold_as_its_coldest_block_and_an_unknown_tier_is_never_taken_for_the_engines(
    tiers: tuple[int, int], coldest: int
) -> None:
    filled = Filled(report("r", B[:1], tier=tiers[0]), report("r", B[1:2], tier=tiers[1]))
    assert filled.chain(B[:2])[1][0].tier == coldest


def test_matched_tokens_of_a_chain_are_the_requests_own() -> None:
    filled = Filled(report("r", B[:2], tokens=64))
    assert filled.chain(B[:2], tokens=[10, 7])[1][0].matched_tokens == 17


@pytest.mark.parametrize("tokens", [[0, 0], [16, -16], [-1, -1]])
def test_a_run_without_tokens_is_no_match(tokens: list[int]) -> None:
    filled = Filled(report("r", B[:2]))
    assert filled.chain(B[:2], tokens=tokens) == ("NONE", [])


@pytest.mark.parametrize(("hashes", "tokens"), [(B[:2], [64]), (B[:1], [64, 64]), (B[:1], []), ([], [64])])
def test_a_chain_that_contradicts_itself_is_answered_with_nothing_at_all(
    hashes: list[bytes], tokens: list[int]
) -> None:
    filled = Filled(report("r", B[:2], stats=stats()))
    assert filled.ask(Query(SCOPE, "", hashes, tokens, B[0], 0)) == ("NONE", [])


def test_a_chain_that_misses_is_answered_neither_by_its_prefix_hash_nor_by_warm_replicas() -> None:
    filled = Filled(report("r", B[:2], stats=stats()))
    assert filled.chain([b"?"], prefix_hash=B[1]) == ("NONE", [])
    assert filled.exact(b"?")[0] == "TENANT_HOT"


def test_a_block_reported_alone_is_found_as_the_first_of_a_chain_only() -> None:
    filled = Filled(report("r", [b"alone"]))
    assert filled.chain([b"alone"])[0] == "PREFIX_MATCH"
    assert filled.chain([b"?", b"alone"]) == ("NONE", [])


def test_blocks_of_a_chain_are_found_one_by_one_with_the_tokens_up_to_their_end() -> None:
    filled = Filled(report("r", B[:3]))
    assert [filled.exact(block)[1][0].matched_tokens for block in B[:3]] == [64, 128, 192]


def test_what_is_stored_is_found_and_what_is_new_is_not() -> None:
    stored = blocks(*range(300))
    filled = Filled(report("r", stored))
    found = [name for name in range(600) if filled.exact(str(name).encode())[0] == "PREFIX_MATCH"]
    assert found == list(range(300))


# Single prefixes


def test_a_single_prefix_matches_by_the_tokens_each_replica_reported_for_it() -> None:
    filled = Filled(report("a", [b"p"], tokens=[100]), report("b", [b"p"], tokens=[70]), report("c", [b"other"]))
    assert {one.replica_id: one.matched_tokens for one in filled.exact(b"p")[1]} == {"a": 100, "b": 70}


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_the_tokens_of_a_replica_are_its_own_whoever_goes(order: tuple[str, ...]) -> None:
    tokens = {"a": 100, "b": 70, "c": 100}
    filled = Filled(*(report(name, [b"p"], tokens=[tokens[name]]) for name in order))
    assert filled.evict(order[0], b"p") == 1
    left = {name: tokens[name] for name in order[1:]}
    assert {one.replica_id: one.matched_tokens for one in filled.exact(b"p")[1]} == left


def test_a_prefix_of_no_tokens_still_names_its_holder() -> None:
    """Trap 6: the floors that would remove such a match are the tenant's, who may have switched them off."""
    filled = Filled(report("r", [b"p"], tokens=[0]))
    code, (score,) = filled.exact(b"p")
    assert (code, score.replica_id, score.score) == ("PREFIX_MATCH", "r", 0.0)


def test_a_prefix_without_a_hash_is_not_kept_so_that_an_empty_question_finds_nothing() -> None:
    """Trap 1."""
    filled = Filled(report("r", [b"", b"p"]))
    assert filled.exact(b"") == ("NONE", [])
    assert snapshot_of(filled.index).total_prefixes == 1


# Ranking


@pytest.mark.parametrize(
    ("holders", "others", "power"),
    [(1, 0, 1.0), (2, 0, 0.0), (3, 0, 0.0), (1, 2, 2 / 3), (2, 1, 1 / 3), (1, 1, 0.5)],
)
def test_a_match_is_worth_less_the_more_replicas_have_it(holders: int, others: int, power: float) -> None:
    filled = Filled(
        *(report(f"h{number}", [b"p"]) for number in range(holders)),
        *(report(f"o{number}", [b"q"]) for number in range(others)),
    )
    for ask in (exact(b"p"), chain([b"p"])):
        scores = filled.ask(ask)[1]
        assert [one.score for one in scores] == [float32(64 * float32(power))] * holders


def test_only_replicas_that_hold_as_much_of_a_chain_make_a_match_worth_less() -> None:
    filled = Filled(report("deep", B[:4]), report("same", B[:2]), report("shallow", B[:1]), report("none", [b"x"]))
    worth = {one.replica_id: one.score / one.matched_tokens for one in filled.chain(B)[1]}
    assert worth == pytest.approx({"deep": 3 / 4, "same": 2 / 4, "shallow": 1 / 4})


def test_a_replica_that_reported_nothing_is_no_alternative() -> None:
    """Trap 7: it may hold the prefix, for all that is known."""
    filled = Filled(report("a", [b"p"]), report("b", [b"p"]), report("c", stats=stats()))
    assert [one.score for one in filled.exact(b"p")[1]] == [0.0, 0.0]


def test_a_stale_replica_is_an_alternative_until_it_is_swept() -> None:
    """Trap 8: counting the fresh ones would take a look at every hold of the scope; a sweep comes every minute."""
    filled = Filled(report("fresh", [b"p"]), report("stale", [b"q"], ago=40 * MINUTE))
    assert filled.exact(b"p")[1][0].score == 32.0
    assert filled.index.serving(SCOPE) == ["fresh", "stale"]
    assert filled.sweep() == 1
    assert filled.exact(b"p")[1][0].score == 64.0
    assert filled.index.serving(SCOPE) == ["fresh"]


@pytest.mark.parametrize(("ttft_ms", "factor"), [(0, 1), (1, 2), (100, 2), (199, 2), (200, 1), (-1, 1)])
def test_a_tight_ttft_tilts_towards_fresh_holds(ttft_ms: int, factor: int) -> None:
    filled = Filled(report("r", [b"p"]))
    assert filled.exact(b"p", ttft_ms=ttft_ms)[1][0].score == 64.0 * factor


@pytest.mark.parametrize(("pressure", "factor"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (7.0, 0.0), (-3.0, 1.0)])
def test_pressure_lowers_a_score_down_to_nothing(pressure: float, factor: float) -> None:
    filled = Filled(report("r", [b"p"], stats=stats(pressure=pressure)))
    assert filled.exact(b"p")[1][0].score == 64.0 * factor


def test_pressure_counts_for_as_long_as_the_tenants_holds_do() -> None:
    """Trap 15: the tenant's TTL, whatever that of others."""
    filled = Filled(report("r", [b"p"]), report("r", stats=stats(pressure=0.5), ago=10 * MINUTE))
    assert filled.exact(b"p")[1][0].score == 32.0
    filled.rules.ttls["team"] = 10 * MINUTE
    assert filled.exact(b"p")[1][0].score == 64.0


@pytest.mark.parametrize(
    ("ago", "freshness"),
    [(-4 * SECOND, 1.0), (0, 1.0), (15 * MINUTE, 0.5), (30 * MINUTE - 1, 5.555556e-10), (30 * MINUTE, None)],
)
def test_a_hold_fades_from_its_report_to_the_end_of_the_ttl(ago: int, freshness: float | None) -> None:
    filled = Filled(report("r", [b"p"], ago=ago))
    assert [one.hit_probability for one in filled.exact(b"p")[1]] == (
        [] if freshness is None else pytest.approx([freshness], rel=1e-6)
    )


def test_a_report_from_the_future_is_taken_as_five_seconds_ahead() -> None:
    """Trap 5, decision D7: a wrong clock cannot make holds that outlive the TTL."""
    filled = Filled(report("r", [b"p"], ago=-60 * MINUTE))
    assert filled.index.match(exact(b"p"), NOW_US + 30 * MINUTE + 4 * SECOND).scores
    assert not filled.index.match(exact(b"p"), NOW_US + 30 * MINUTE + 5 * SECOND).scores


def test_the_last_report_of_a_hold_counts_even_if_its_time_is_earlier() -> None:
    """Trap 5: what a producer said last is what it knows; the time of it says how long to believe it."""
    filled = Filled(report("r", [b"p"]), report("r", [b"p"], ago=15 * MINUTE, tier=2, tokens=[9]))
    _, (score,) = filled.exact(b"p")
    assert (score.hit_probability, score.tier, score.matched_tokens) == (0.5, 2, 9)


def test_equal_scores_are_ordered_by_the_bytes_of_the_id() -> None:
    names = ["a", "B", "\u00e9", "\uffff", "\U0001f600", "Z9", ""]
    filled = Filled(*(report(name, [b"p"]) for name in names))
    assert [one.replica_id for one in filled.exact(b"p")[1]] == sorted(names, key=str.encode)


# Warm replicas


@pytest.mark.parametrize(
    ("row", "holds", "hot"),
    [
        (stats(0.5), SCOPE, True),
        (stats(0.1), SCOPE, True),
        (stats(0.0999), SCOPE, False),
        (stats(0.5), SCOPE._replace(hash_scheme="sglang"), False),
        (stats(0.5), SCOPE._replace(tenant="other"), False),
        (stats(0.5), SCOPE._replace(model="other"), False),
        (None, SCOPE, False),
    ],
)
def test_a_warm_replica_has_a_hit_rate_and_a_hold_in_the_scope(row: Stats | None, holds: Scope, hot: bool) -> None:
    filled = Filled(report("r", stats=row), report("r", [b"p"], scope=holds), report("someone", [b"q"]))
    assert filled.exact(b"?")[0] == ("TENANT_HOT" if hot else "NONE")


@pytest.mark.parametrize(
    ("ago", "score"), [(-4 * SECOND, 0.5), (0, 0.5), (MINUTE, 0.4), (5 * MINUTE - 1, 0.0), (5 * MINUTE, None)]
)
def test_a_warm_replica_cools_down_within_five_minutes_of_its_stats(ago: int, score: float | None) -> None:
    filled = Filled(report("r", [b"p"]), report("r", stats=HALF, ago=ago))
    scores = filled.exact(b"?")[1]
    assert [one.score for one in scores] == ([] if score is None else pytest.approx([score], abs=1e-8))


def test_the_pressure_of_a_warm_replica_counts_even_beyond_a_short_ttl() -> None:
    filled = Filled(report("r", [b"p"]), report("r", stats=stats(0.5, 0.5), ago=MINUTE))
    filled.rules.ttls["team"] = 30 * SECOND
    assert [one.score for one in filled.exact(b"?")[1]] == pytest.approx([0.2])


def test_a_tight_ttft_tilts_towards_replicas_that_reported_lately() -> None:
    filled = Filled(report("r", [b"p"], stats=HALF))
    assert filled.exact(b"?", ttft_ms=100)[1][0].score == 1.0


def test_no_replica_stays_warm_once_its_holds_are_swept() -> None:
    filled = Filled(report("r", [b"p"], ago=40 * MINUTE), report("r", stats=HALF), report("s", [b"q"]))
    assert filled.exact(b"?")[0] == "TENANT_HOT"
    assert filled.sweep() == 1
    assert filled.exact(b"?")[0] == "NONE"


def test_a_sign_of_life_does_not_make_stats_new() -> None:
    filled = Filled(report("r", [b"p"]), report("r", stats=HALF, ago=6 * MINUTE))
    filled.touch("r", NOW_US)
    assert filled.exact(b"?")[0] == "NONE"


# Scopes, adapters and the reasons for finding nothing


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        (SCOPE, "PREFIX_MATCH"),
        (Scope("?", "?", "?"), "UNKNOWN_TENANT"),
        (Scope("?", "model", "vllm"), "UNKNOWN_TENANT"),
        (Scope("team", "?", "?"), "UNKNOWN_MODEL"),
        (Scope("team", "model", "?"), "UNKNOWN_HASH_SCHEME"),
        (Scope("", "model", "vllm"), "NONE"),
        (Scope("team", "", "vllm"), "NONE"),
        (Scope("team", "model", ""), "NONE"),
    ],
)
@pytest.mark.parametrize("query", [exact(b"p"), chain([b"p"])])
def test_the_outermost_name_that_nobody_reported_is_the_reason(query: Query, scope: Scope, code: str) -> None:
    filled = Filled(report("r", [b"p"], stats=HALF))
    assert filled.ask(query._replace(scope=scope))[0] == code


def test_an_index_without_holds_knows_no_reason() -> None:
    filled = Filled(report("r", stats=HALF))
    assert filled.exact(b"p") == ("NONE", [])
    assert filled.ask(exact(b"p", scope=Scope("?", "?", "?"))) == ("NONE", [])


def test_stats_alone_make_neither_a_tenant_nor_a_model_known() -> None:
    filled = Filled(
        report("r", [b"p"]),
        report("r", stats=HALF, scope=SCOPE._replace(tenant="idle")),
        report("r", stats=HALF, scope=SCOPE._replace(model="idle")),
    )
    assert filled.exact(b"p", scope=SCOPE._replace(tenant="idle"))[0] == "UNKNOWN_TENANT"
    assert filled.exact(b"p", scope=SCOPE._replace(model="idle"))[0] == "UNKNOWN_MODEL"


def test_equal_bytes_under_another_scheme_are_another_prefix() -> None:
    other = SCOPE._replace(hash_scheme="sglang")
    filled = Filled(report("v", [b"p"]), report("s", [b"p"], scope=other))
    assert [one.replica_id for one in filled.exact(b"p")[1]] == ["v"]
    assert [one.replica_id for one in filled.exact(b"p", scope=other)[1]] == ["s"]
    assert (filled.index.serving(SCOPE), filled.index.serving(other)) == (["v"], ["s"])


def test_equal_tokens_under_another_adapter_are_another_prefix_of_the_same_scope() -> None:
    filled = Filled(report("plain", [b"p"]), report("tuned", [b"p"], adapter="lora"))
    assert [one.replica_id for one in filled.exact(b"p")[1]] == ["plain"]
    assert [one.replica_id for one in filled.exact(b"p", adapter="lora")[1]] == ["tuned"]
    assert filled.exact(b"p", adapter="unseen") == ("NONE", [])
    assert filled.index.serving(SCOPE) == ["plain", "tuned"]
    assert filled.exact(b"p")[1][0].score == 32.0


def test_the_replicas_of_a_scope_do_not_depend_on_the_order_of_their_reports() -> None:
    for order in permutations("abc"):
        assert Filled(*(report(name, [b"p"]) for name in order)).index.serving(SCOPE) == ["a", "b", "c"]
