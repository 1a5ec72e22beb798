"""What goes when there is too much or it is too old (spec 06 §6.3, §6.4)."""

from __future__ import annotations

import math
import random
import tracemalloc

import msgspec
import pytest

from inferencecache.server.index import PrefixIndex, Report, Scope, Snapshot, Stats, index
from inferencecache.server.index.names import Node
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, chain, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE, SECOND

P = blocks("p0", "p1", "p2", "p3", "p4")

# The cap


def test_the_cap_evicts_the_oldest_holds_and_no_more_than_needed() -> None:
    filled = Filled(*(report("r", [name], ago=MINUTE * (5 - at)) for at, name in enumerate(P)), capacity=3)
    assert filled.has(*P) == P[2:]
    assert filled.evicted == [("team", "lru", "cap", 1)] * 2


def test_nothing_is_refused_at_the_cap_however_much_comes_at_once() -> None:
    filled = Filled(report("r", P[:2], ago=MINUTE), report("r", blocks(*range(500))), capacity=10)
    assert filled.has(*P[:2]) == []
    assert snapshot_of(filled.index).total_prefixes == 10
    assert sum(count for *_, count in filled.evicted) == 492


def test_a_capacity_of_zero_is_none() -> None:
    filled = Filled(report("r", blocks(*range(2000))), capacity=0)
    assert snapshot_of(filled.index).total_prefixes == 2000


def test_the_cap_counts_every_holder_of_a_key() -> None:
    filled = Filled(*(report(name, P[:1], ago=ago) for ago, name in enumerate("abc")), capacity=2)
    assert [filled.has(P[0], replica=name) for name in "abc"] == [P[:1], P[:1], []]


@pytest.mark.parametrize("seed", range(5))
def test_holds_of_one_instant_go_in_the_order_of_all_their_names(seed: int) -> None:
    names = [
        (tenant, model, scheme, adapter, prefix_hash, replica)
        for tenant in ("t1", "t2")
        for model in ("m1", "m2")
        for scheme in ("s1", "s2")
        for adapter in ("", "a")
        for prefix_hash in (b"h1", b"h2")
        for replica in ("r1", "r2")
    ]
    shuffled = random.Random(seed).sample(names, len(names))
    keep = 10 + seed
    filled = Filled(
        *(
            report(replica, [prefix_hash], adapter=adapter, scope=type(SCOPE)(tenant, model, scheme))
            for tenant, model, scheme, adapter, prefix_hash, replica in shuffled
        ),
        capacity=keep + 1,
    )
    filled.ingest(report("late", [b"late"], ago=-SECOND))
    left = {
        (one.tenant, one.model, one.hash_scheme, holds.adapter_id, prefix_hash, one.replica_id)
        for one in filled.index.dump()
        for holds in one.holds
        for prefix_hash in holds.hashes
    }
    assert left == {*names[-keep:], (*SCOPE, "", b"late", "late")}


def test_a_refreshed_hold_is_as_young_as_its_last_report() -> None:
    filled = Filled(*(report("r", [name], ago=MINUTE * (5 - at)) for at, name in enumerate(P[:3])), capacity=3)
    filled.ingest(report("r", P[:1]), report("r", P[3:4]))
    assert filled.has(*P) == [P[0], P[2], P[3]]


def test_a_hold_whose_time_went_back_is_as_old_as_that() -> None:
    filled = Filled(*(report("r", [name], ago=MINUTE * (5 - at)) for at, name in enumerate(P[:3])), capacity=3)
    filled.ingest(report("r", P[2:3], ago=10 * MINUTE), report("r", P[3:4]))
    assert filled.has(*P) == [P[0], P[1], P[3]]


def test_refreshing_the_same_holds_for_ever_takes_no_more_room() -> None:
    filled = Filled(capacity=0)
    for at in range(3000):
        filled.ingest(report("r", blocks(*range(at % 7, at % 7 + 40)), ago=-at))
    (lane,) = filled.index._tree.scope(SCOPE).partitions[""].lanes.values()  # type: ignore[union-attr]
    recency = lane.recency
    assert sum(map(len, recency._batches.values())) <= 2 * len(recency.stamps)
    assert len(recency._waiting) <= 2 * len(recency._batches) + 64


# Least frequently used


def lfu(*names: bytes, capacity: int = 3) -> Filled:
    """Holds a minute apart, the oldest first, of a tenant that counts uses."""
    filled = Filled(*(report("r", [name], ago=MINUTE * (9 - at)) for at, name in enumerate(names)), capacity=capacity)
    filled.rules.lfu.add("team")
    return filled


def test_a_delivered_answer_protects_an_old_hold_from_the_cap() -> None:
    filled = lfu(*P[:3])
    filled.use(exact(P[0]))
    filled.ingest(report("r", P[3:4]))
    assert filled.has(*P) == [P[0], P[2], P[3]]
    assert filled.evicted == [("team", "lfu", "cap", 1)]


def test_a_new_hold_goes_first_when_all_others_were_used() -> None:
    filled = lfu(*P[:3])
    for name in P[:3]:
        filled.use(exact(name))
    filled.ingest(report("r", P[3:4]))
    assert filled.has(*P) == P[:3]


def test_uses_survive_reports_of_the_hold_but_not_its_removal() -> None:
    filled = lfu(*P[:3])
    filled.use(exact(P[0]))
    filled.use(exact(P[1]))
    filled.ingest(report("r", P[:1], ago=20 * MINUTE))
    assert filled.evict("r", P[1]) == 1
    filled.ingest(report("r", P[1:2], ago=15 * MINUTE), report("r", P[3:4]))
    assert filled.has(*P) == [P[0], P[2], P[3]]


def test_a_change_of_algorithm_changes_the_victims_both_ways() -> None:
    filled = lfu(*P[:3])
    filled.use(exact(P[0]))
    filled.ingest(report("r", P[3:4]))
    filled.rules.lfu.clear()
    filled.ingest(report("r", P[4:5], ago=-SECOND))
    assert filled.has(*P) == P[2:]
    assert [algorithm for _, algorithm, _, _ in filled.evicted] == ["lfu", "lru"]
    filled.ingest(report("r", [b"new"], ago=-2 * SECOND))
    assert filled.has(*P, b"new") == [*P[3:], b"new"]


def test_uses_are_counted_for_lfu_tenants_only() -> None:
    filled = Filled(*(report("r", [name], ago=MINUTE * (9 - at)) for at, name in enumerate(P[:3])), capacity=3)
    filled.use(exact(P[0]))
    filled.rules.lfu.add("team")
    filled.ingest(report("r", P[3:4]))
    assert filled.has(*P) == P[1:4]


def test_every_block_of_a_run_is_used_and_what_the_run_did_not_reach_is_not() -> None:
    filled = lfu(*P[:4], capacity=4)
    filled.use(chain([*P[:2], b"?", P[2]]))
    filled.ingest(report("r", [b"n1", b"n2"]))
    assert filled.has(*P) == P[:2]


def test_replicas_that_were_not_delivered_are_not_credited() -> None:
    filled = Filled(report("a", P[:1], ago=2 * MINUTE), report("b", P[:1], ago=MINUTE), capacity=2)
    filled.rules.lfu.add("team")
    outcome = filled.index.match(exact(P[0]), NOW_US)
    filled.index.credit(exact(P[0]), [one for one in outcome.scores if one.replica_id == "a"])
    filled.ingest(report("c", P[1:2]))
    assert [filled.has(*P, replica=name) for name in "abc"] == [P[:1], [], P[1:2]]


def test_crediting_what_is_gone_counts_nothing() -> None:
    filled = lfu(*P[:3])
    answer = filled.index.match(exact(P[0]), NOW_US).scores
    assert filled.evict("r", P[0]) == 1
    filled.index.credit(exact(P[0]), answer)
    filled.ingest(report("r", P[:1], ago=20 * MINUTE), report("r", P[3:4]))
    assert filled.has(*P) == P[1:4]


def test_no_use_is_lost_however_many_there_are() -> None:
    filled = lfu(*P[:1])
    for _ in range(50 * 200):
        filled.use(exact(P[0]))
    (lane,) = filled.index._tree.scope(SCOPE).partitions[""].lanes.values()  # type: ignore[union-attr]
    assert lane.credits == {P[0]: 10_000}


# Quotas


def test_a_quota_evicts_the_keys_whose_newest_holder_is_oldest() -> None:
    filled = Filled()
    filled.rules.quotas["team"] = 2
    filled.ingest(
        report("a", P[:1], ago=9 * MINUTE),
        report("a", P[1:2], ago=5 * MINUTE),
        report("b", P[:1], ago=MINUTE),
        report("a", P[2:3], ago=3 * MINUTE),
    )
    assert [filled.has(*P, replica=name) for name in "ab"] == [[P[0], P[2]], P[:1]]
    assert filled.evicted == [("team", "lru", "over_entries", 1)]


def test_a_key_that_loses_its_newest_holder_is_as_old_as_the_next() -> None:
    filled = Filled(report("a", P[:1], ago=9 * MINUTE), report("b", P[:1]), report("a", P[1:3], ago=MINUTE))
    filled.rules.quotas["team"] = 2
    filled.ingest(report("a", [b"first"], ago=10 * MINUTE))
    assert filled.has(*P, b"first", replica="a") == [P[0], P[2]]
    assert filled.evict("b", P[0]) == 1
    filled.ingest(report("a", P[3:4]))
    assert filled.has(*P, replica="a") == P[2:4]


def test_a_key_counts_once_against_the_quota_and_goes_with_all_its_holders() -> None:
    filled = Filled(*(report(name, P[:1], ago=MINUTE) for name in "abc"))
    filled.rules.quotas["team"] = 1
    filled.ingest(report("a", stats=HALF))
    assert filled.evicted == []
    filled.ingest(report("a", P[1:2]))
    assert [filled.has(*P, replica=name) for name in "abc"] == [P[1:2], [], []]
    assert filled.evicted == [("team", "lru", "over_entries", 1)]


def test_a_quota_concerns_its_tenant_alone() -> None:
    other = SCOPE._replace(tenant="other")
    filled = Filled(report("r", P, ago=20 * MINUTE, scope=other), report("r", P))
    filled.rules.quotas["team"] = 1
    filled.ingest(report("r", stats=HALF))
    assert (len(filled.has(*P)), len(filled.has(*P, scope=other))) == (1, 5)


def test_a_lowered_quota_takes_effect_at_the_tenants_next_report_and_not_before() -> None:
    """Trap 12."""
    filled = Filled(report("r", P))
    filled.rules.quotas["team"] = 2
    assert filled.sweep() == 0
    filled.ingest(report("r", P, scope=SCOPE._replace(tenant="other")))
    assert len(filled.has(*P)) == 5
    filled.ingest(report("r", stats=HALF))
    assert len(filled.has(*P)) == 2


@pytest.mark.parametrize("quota", [0, -5])
def test_a_quota_of_nothing_evicts_everything(quota: int) -> None:
    filled = Filled()
    filled.rules.quotas["team"] = quota
    filled.ingest(report("r", P), report("s", P))
    assert snapshot_of(filled.index).total_prefixes == 0
    assert filled.index.serving(SCOPE) == []


def test_no_quota_is_no_limit_even_after_there_was_one() -> None:
    filled = Filled()
    filled.rules.quotas["team"] = 2
    filled.ingest(report("r", P))
    del filled.rules.quotas["team"]
    filled.ingest(report("r", blocks(*range(100))))
    assert snapshot_of(filled.index).total_prefixes == 102
    filled.rules.quotas["team"] = 50
    filled.ingest(report("r", stats=HALF))
    assert snapshot_of(filled.index).total_prefixes == 50


def test_a_quota_lowered_very_far_is_reached_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = Filled(report("r", blocks(*range(101))))
    filled.rules.quotas["team"] = 100
    filled.ingest(report("r", stats=HALF))
    monkeypatch.setattr(index, "QUOTA_SLICE", 10)
    filled.rules.quotas["team"] = 5
    left = []
    for at in range(10):
        filled.ingest(report("r", [f"new{at}".encode()], ago=-at))
        left.append(snapshot_of(filled.index).total_prefixes)
    assert left == [91, 82, 73, 64, 55, 46, 37, 28, 19, 10]


def test_a_slice_counts_what_all_holders_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = Filled(*(report(name, blocks(*range(101))) for name in "abc"))
    filled.rules.quotas["team"] = 100
    filled.ingest(report("a", stats=HALF))
    monkeypatch.setattr(index, "QUOTA_SLICE", 9)
    filled.rules.quotas["team"] = 5
    filled.ingest(report("a", stats=HALF))
    assert snapshot_of(filled.index).total_prefixes == 97
    filled.ingest(report("a", blocks("x", "y")))
    assert snapshot_of(filled.index).total_prefixes == 95


def test_a_report_larger_than_a_slice_does_not_outrun_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "QUOTA_SLICE", 10)
    filled = Filled()
    filled.rules.quotas["team"] = 5
    filled.ingest(report("r", blocks(*range(500))))
    assert snapshot_of(filled.index).total_prefixes == 5


@pytest.mark.parametrize("seed", range(5))
def test_keys_of_one_instant_go_in_the_order_of_all_their_names(seed: int) -> None:
    names = [
        (model, scheme, adapter, prefix_hash)
        for model in ("m1", "m2")
        for scheme in ("s1", "s2")
        for adapter in ("", "a")
        for prefix_hash in (b"h1", b"h2", b"h3")
    ]
    filled = Filled(
        *(
            report(f"r{at % 3}", [prefix_hash], adapter=adapter, scope=type(SCOPE)("team", model, scheme))
            for at, (model, scheme, adapter, prefix_hash) in enumerate(random.Random(seed).sample(names, len(names)))
        )
    )
    filled.rules.quotas["team"] = 7
    filled.ingest(report("r0", stats=HALF))
    left = {
        (one.model, one.hash_scheme, holds.adapter_id, prefix_hash)
        for one in filled.index.dump()
        for holds in one.holds
        for prefix_hash in holds.hashes
    }
    assert left == set(names[-7:])


def test_the_quota_is_kept_before_the_cap() -> None:
    other = SCOPE._replace(tenant="other")
    filled = Filled(report("r", P[:3], ago=20 * MINUTE, scope=other), capacity=5)
    filled.rules.quotas["team"] = 2
    filled.ingest(report("r", P))
    assert filled.has(*P, scope=other) == P[:3]
    assert filled.evicted == [("team", "lru", "over_entries", 3)]


# Names

MADE_UP = {
    "tenants": lambda name: report("r", P[:1], scope=Scope(name, "m", "vllm"), stats=HALF),
    "models": lambda name: report("r", P[:1], scope=Scope("t", name, "vllm"), stats=HALF),
    "hash schemes": lambda name: report("r", P[:1], scope=Scope("t", "m", name)),
    "adapters": lambda name: report("r", P[:1], adapter=name, scope=Scope("t", "m", "vllm")),
    "replicas": lambda name: report(name, P[:1], scope=Scope("t", "m", "vllm")),
    "replicas with stats alone": lambda name: report(name, scope=Scope("t", "m", "vllm"), stats=HALF),
    "everything": lambda name: report(name, P[:1], adapter=name, scope=Scope(name, name, name), stats=HALF),
}


@pytest.mark.parametrize("of", MADE_UP)
def test_made_up_names_take_no_more_memory_than_they_may_and_spare_who_is_alive(of: str) -> None:
    filled = Filled(report("r", P, ago=MINUTE), name_bytes=50_000)
    for number in range(300):
        filled.ingest(MADE_UP[of](f"{number}"))
        if number % 5 == 0:
            filled.ingest(report("r", [b"%d" % number]))
        assert filled.index.name_bytes <= 50_000
    assert filled.has(*P) == P
    assert {reason for _, _, reason, _ in filled.evicted} <= {"names"}
    assert filled.index.name_bytes > 40_000
    while filled.index.unsettled:
        filled.index.settle(1000)
    assert snapshot_of(filled.index).total_prefixes <= 50_000 // Node.LANE + len(P) + 60


@pytest.mark.parametrize("character", ["x", "ж", "\N{SNOWFLAKE}", "\N{SLICE OF PIZZA}"])
@pytest.mark.parametrize("of", MADE_UP)
def test_names_take_no_more_memory_than_they_are_counted_for(of: str, character: str) -> None:
    def own(name: str) -> str:
        """As it comes from a message, and as it is once it has been put into an answer."""
        copy = name.encode().decode()
        msgspec.json.encode(copy)
        return copy

    made = [MADE_UP[of](f"{number:04}".ljust(64, character)) for number in range(500)]
    index = Filled().index
    tracemalloc.start()
    try:
        for one in made:
            holds = [part._replace(adapter_id=own(part.adapter_id)) for part in one.holds]
            index.ingest(Report(*map(own, one[:4]), one.timestamp_us, holds, one.stats), NOW_US)
        del holds
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < index.name_bytes + 250 * len(made)


def test_the_replica_that_was_silent_for_longest_goes_with_all_its_holds_and_is_told_of() -> None:
    filled = Filled(*(report(name, P[:2]) for name in "abc"))
    filled.index = PrefixIndex(
        filled.rules, name_bytes=filled.index.name_bytes, on_eviction=lambda told: filled.evicted.append(tuple(told))
    )
    filled.ingest(*(report(name, P[:2]) for name in "abc"), report("a", P[2:3], ago=20 * MINUTE), report("d", P[:2]))
    assert [filled.has(*P, replica=name) for name in "abcd"] == [P[:3], [], P[:2], P[:2]]
    assert filled.evicted == [("team", "lru", "names", 2)]


def test_a_sign_of_life_keeps_stats_and_they_come_back_with_the_next_report() -> None:
    room = Filled(*(report(name, stats=HALF) for name in "abc")).index.name_bytes
    filled = Filled(*(report(name, stats=HALF) for name in "abc"), name_bytes=room)
    filled.touch("a", NOW_US)
    filled.ingest(report("d", stats=HALF))
    assert [row.replica_id for row in snapshot_of(filled.index).replicas] == ["a", "c", "d"]
    filled.ingest(report("b", stats=HALF))
    assert [row.replica_id for row in snapshot_of(filled.index).replicas] == ["a", "b", "d"]


def test_a_name_that_takes_more_than_all_may_is_not_kept() -> None:
    filled = Filled(report("r", P, stats=HALF), name_bytes=1000)
    assert filled.index.name_bytes == 0
    assert snapshot_of(filled.index) == Snapshot([], [], 0)


# Age


def test_a_sweep_removes_what_has_reached_its_tenants_ttl_and_tells_under_which_algorithm() -> None:
    other = SCOPE._replace(tenant="other")
    filled = Filled(
        report("r", P[:1], ago=10 * MINUTE),
        report("r", P[1:2], ago=10 * MINUTE - 1),
        report("r", P[:1], ago=10 * MINUTE, scope=other),
        report("r", P[1:2], ago=30 * MINUTE, scope=other),
    )
    filled.rules.ttls["team"] = 10 * MINUTE
    filled.rules.lfu.add("other")
    assert filled.sweep() == 2
    assert (filled.has(*P), filled.has(*P, scope=other)) == (P[1:2], P[:1])
    assert sorted(filled.evicted) == [("other", "lfu", "ttl", 1), ("team", "lru", "ttl", 1)]


def test_a_sweep_can_be_taken_in_slices_of_any_size() -> None:
    filled = Filled(*(report(name, blocks(*range(3000)), ago=40 * MINUTE) for name in "abc"))
    slices = []
    for swept in filled.index.sweep(NOW_US, 700):
        slices.append(swept)
        filled.ingest(report("a", [str(len(slices)).encode()]))
    assert max(slices) <= 700
    assert snapshot_of(filled.index).total_prefixes == len(slices)


def test_a_sweep_that_was_broken_off_misses_nothing_the_next_time() -> None:
    scopes = [SCOPE._replace(tenant=name) for name in "abc"]
    filled = Filled(*(report("r", P[:1], ago=40 * MINUTE, scope=scope) for scope in scopes))
    assert next(filled.index.sweep(NOW_US, 1)) == 1
    filled.ingest(*(report("r", P[1:2], ago=40 * MINUTE, scope=scope) for scope in scopes))
    assert filled.sweep() == 5
    assert snapshot_of(filled.index).tenants == []


def test_a_sweep_looks_at_a_bounded_number_of_replicas_in_one_go() -> None:
    names = [f"r{number}" for number in range(3500)]
    filled = Filled(*(report(name, P[:1], ago=(number % 2) * 40 * MINUTE) for number, name in enumerate(names)))
    assert list(filled.index.sweep(NOW_US, 10_000)) == [500, 500, 500, 250]
    assert filled.index.serving(SCOPE) == sorted(names[::2])


def test_what_goes_while_a_sweep_waits_is_not_swept() -> None:
    filled = Filled(*(report(name, P, ago=40 * MINUTE) for name in "abc"))
    turns = filled.index.sweep(NOW_US, 2)
    assert next(turns) == 2
    filled.clear("b")
    filled.clear("c")
    filled.ingest(report("c", P))
    assert sum(turns) == len(P) - 2
    assert filled.index.serving(SCOPE) == ["c"]


def test_a_lookup_leaves_a_hold_as_old_as_it_was() -> None:
    filled = Filled(report("r", P[:1], ago=29 * MINUTE))
    assert filled.exact(P[0])[0] == "PREFIX_MATCH"
    assert filled.sweep(NOW_US + MINUTE) == 1


def test_holds_that_were_stepped_over_age_like_others() -> None:
    filled = lfu(*P[:3])
    filled.use(exact(P[0]))
    filled.ingest(report("r", P[3:4]))
    assert filled.has(*P) == [P[0], P[2], P[3]]
    assert filled.sweep(NOW_US + 21 * MINUTE) == 1
    assert filled.has(*P) == P[2:4]


def test_stats_live_for_the_ttl_after_the_last_sign_of_life() -> None:
    filled = Filled(
        report("r", [b"p"]), report("r", stats=HALF, ago=40 * MINUTE), report("s", stats=HALF, ago=40 * MINUTE)
    )
    filled.touch("r", NOW_US - MINUTE)
    assert filled.sweep() == 0
    assert [name for name, _ in filled.index.cache_state("team", "model")[0]] == ["r"]
    filled.touch("r", NOW_US - 31 * MINUTE)
    assert filled.sweep() == 0
    assert filled.index.cache_state("team", "model")[0] == []


def test_pressure_speaks_for_the_ttl_after_its_report_whatever_signs_of_life_follow() -> None:
    filled = Filled(
        report("old", stats=HALF, ago=30 * MINUTE),
        report("young", stats=HALF, ago=30 * MINUTE - 1),
    )
    filled.touch("old", NOW_US)
    assert filled.index.pressures("team", "model", NOW_US) == {"young": HALF.pressure}
    assert filled.index.pressures("team", "another", NOW_US) == {}


# Rates that are no numbers


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
def test_a_rate_that_is_no_number_counts_as_zero(rate: float) -> None:
    filled = Filled(report("r", [b"p"], stats=Stats(1, rate, rate)))
    assert filled.index.cache_state("team", "model")[0] == [("r", Stats(1, 0.0, 0.0))]
    assert filled.exact(b"p")[1][0].score == 64.0


def test_a_rate_beyond_all_bounds_does_not_end_a_lookup() -> None:
    filled = Filled(report("r", [b"p"], stats=Stats(1, 3e38, 0.0)))
    assert filled.exact(b"?", ttft_ms=100)[1][0].score == math.inf
