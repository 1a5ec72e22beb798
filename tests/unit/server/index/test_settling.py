"""What would take long is done in steps, and nobody can tell from an answer that some of it is still to be done."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from inferencecache.server.index import Stats, index, recency
from inferencecache.server.index.key_orders import KeyOrder
from tests.unit.server.index.operations import RESERVED, TENANTS, History
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, chain, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE, SECOND

MANY = blocks(*range(5000))
STEP = 100


def settled(filled: Filled) -> Filled:
    while filled.index.unsettled:
        filled.index.settle(STEP)
    return filled


def keys(filled: Filled) -> int:
    return filled.index.cache_state(SCOPE.tenant, SCOPE.model)[1]


# A replica that is cleared


def test_a_large_replica_that_was_cleared_is_gone_from_every_answer_at_once() -> None:
    filled = Filled(report("a", MANY, stats=HALF), report("b", MANY[:10], stats=HALF))
    filled.clear("a")
    assert filled.index.unsettled
    for query in (chain(MANY[:10]), exact(MANY[3])):
        assert [score.replica_id for score in filled.ask(query)[1]] == ["b"]
    assert filled.chain(MANY[20:])[0] == "NONE"
    assert filled.index.serving(SCOPE) == ["b"]
    assert filled.has(*MANY, replica="a") == []
    assert [row.replica_id for row in snapshot_of(filled.index).replicas] == ["b"]
    assert filled.evict("a", MANY[0]) == 0
    assert filled.sweep(NOW_US + 40 * MINUTE) == 10


def test_its_keys_are_counted_until_they_are_freed_and_not_when_nobody_is_left() -> None:
    filled = Filled(report("a", MANY), report("b", MANY[:10]))
    filled.clear("a")
    assert keys(filled) > 10
    assert keys(settled(filled)) == 10
    filled.ingest(report("a", MANY))
    filled.clear("b")
    filled.clear("a")
    assert filled.index.unsettled
    assert keys(filled) == 0
    assert snapshot_of(filled.index) == snapshot_of(settled(filled).index) == snapshot_of(Filled().index)


def test_a_small_replica_is_freed_at_once_even_behind_a_large_one() -> None:
    filled = Filled(report("a", MANY), report("b", blocks("x", "y")), report("c", MANY[:1]))
    filled.clear("a")
    before = keys(filled)
    filled.clear("b")
    assert keys(filled) <= before - 2


def test_what_a_cleared_replica_reports_anew_is_its_own_and_stays() -> None:
    filled = Filled(report("a", MANY, tokens=16), report("b", MANY[:1]))
    filled.clear("a")
    filled.ingest(report("a", MANY[:20], tokens=16, ago=MINUTE))
    for _ in range(2):
        assert filled.chain(MANY[:20], tokens=16)[1][0].matched_tokens == 320
        assert filled.exact(MANY[1])[1][0].matched_tokens == 32
        assert len(filled.has(*MANY, replica="a")) == 20
        settled(filled)
    assert keys(filled) == 20


def test_the_cap_does_not_count_what_is_still_to_be_freed() -> None:
    filled = Filled(report("a", MANY), report("b", MANY[:1]), capacity=len(MANY) + 1)
    filled.clear("a")
    filled.ingest(report("b", blocks(*range(10_000, 14_000))))
    assert filled.evicted == []


def test_no_step_frees_many_more_holds_than_it_was_told() -> None:
    filled = Filled(report("a", MANY), report("b", MANY[:1]))
    most = index.CLEARED_AT_ONCE + 2 * recency.BATCH
    left = keys(filled)
    filled.clear("a")
    steps = 0
    while filled.index.unsettled:
        assert left - keys(filled) <= most
        most, left = STEP + recency.BATCH, keys(filled)
        filled.index.settle(STEP)
        steps += 1
    assert steps >= (len(MANY) - index.CLEARED_AT_ONCE) // (STEP + 2 * recency.BATCH)
    assert keys(filled) == 1


def test_who_reports_and_clears_all_the_time_does_not_fill_the_memory() -> None:
    filled = Filled(report("b", blocks("kept")))
    for number in range(20):
        filled.ingest(report("a", blocks(*range(number * 10_000, number * 10_000 + len(MANY)))))
        filled.clear("a")
    assert keys(filled) <= 2 * len(MANY) + 2 * recency.BATCH


# A quota


def newest_first(filled: Filled) -> list[bytes]:
    """The keys by their newest holder, as in the index's own dump."""
    newest: Counter[bytes] = Counter()
    for one in filled.index.dump():
        for holds in one.holds:
            for prefix_hash in holds.hashes:
                newest[prefix_hash] = max(newest[prefix_hash], one.timestamp_us)
    return sorted(newest, key=lambda prefix_hash: (newest[prefix_hash], prefix_hash), reverse=True)


def shuffled(seed: int) -> Filled:
    """400 keys of up to three replicas, at many instants."""
    rng = random.Random(seed)
    return Filled(
        *(report(rng.choice("abc"), rng.sample(MANY[:400], 40), ago=rng.randrange(60) * SECOND) for _ in range(80))
    )


def test_a_quota_far_below_what_there_is_is_reached_in_steps_by_the_next_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "QUOTA_SLICE", 30)
    monkeypatch.setattr(recency, "BATCH", 8)
    filled = shuffled(1)
    expected = newest_first(filled)
    filled.rules.quotas["team"] = 100
    filled.ingest(report("a", stats=HALF))
    assert newest_first(filled) == expected
    left = [len(expected)]
    while filled.index.unsettled:
        filled.index.settle(30)
        there = newest_first(filled)
        assert there == expected[: len(there)]
        assert left[-1] - len(there) <= 30
        left.append(len(there))
    assert left[-1] == 100
    assert sum(count for *_, count in filled.evicted) == len(expected) - 100


def test_a_quota_that_is_raised_or_taken_away_meanwhile_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "QUOTA_SLICE", 30)
    filled = shuffled(2)
    had = keys(filled)
    filled.rules.quotas["team"] = 100
    filled.ingest(report("a", stats=HALF))
    filled.rules.quotas["team"] = had - 5
    assert keys(settled(filled)) == had - 5
    filled.rules.quotas["team"] = 100
    filled.ingest(report("a", stats=HALF))
    del filled.rules.quotas["team"]
    left = keys(filled)
    assert keys(settled(filled)) == left
    filled.ingest(report("a", stats=HALF))
    assert keys(settled(filled)) == left


def test_keys_that_only_cleared_replicas_had_cost_a_tenant_no_others() -> None:
    filled = Filled(report("a", MANY, ago=MINUTE), report("b", blocks(*range(6000, 6100)), ago=2 * MINUTE))
    filled.rules.quotas["team"] = 150
    filled.clear("a")
    filled.ingest(report("b", stats=HALF))
    assert keys(settled(filled)) == 100
    assert filled.evicted == []


def test_a_key_that_nobody_else_holds_goes_without_the_other_replicas_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    settle = KeyOrder._settle

    def counting(order: KeyOrder, prefix_hash: bytes) -> None:
        asked.append(prefix_hash)
        settle(order, prefix_hash)

    monkeypatch.setattr(KeyOrder, "_settle", counting)
    filled = Filled(report("a", MANY[:60]), report("b", MANY[50:90], ago=MINUTE), report("c", MANY[90:99], ago=MINUTE))
    filled.rules.quotas["team"] = 98
    filled.ingest(report("b", stats=HALF))  # from now on the order of the keys is kept
    filled.clear("a")
    assert keys(settled(filled)) == 48
    assert sorted(asked) == sorted(MANY[50:60])
    assert newest_first(filled) == sorted({*MANY[50:99]} - {MANY[60]}, reverse=True)


def test_a_quota_waits_for_no_replica_of_another_tenant() -> None:
    filled = Filled(report("a", MANY), report("b", MANY[:1]), report("r", MANY[:5], scope=SCOPE._replace(tenant="t")))
    filled.rules.quotas["t"] = 2
    filled.clear("a")
    filled.ingest(report("r", scope=SCOPE._replace(tenant="t"), stats=Stats(0, 0.0, 0.0)))
    assert len(filled.has(*MANY, scope=SCOPE._replace(tenant="t"))) == 2


def test_thousands_of_models_are_not_ordered_in_one_step() -> None:
    scopes = [SCOPE._replace(model=f"m{number}") for number in range(3000)]
    filled = Filled(*(report("r", MANY[:1], ago=number, scope=scope) for number, scope in enumerate(scopes)))
    filled.rules.quotas["team"] = 1000
    filled.ingest(report("r", stats=HALF))
    begun = [each for each in filled.index._tree.tenants["team"].partitions() if each.key_order is not None]
    assert len(begun) < 500
    filled.ingest(report("new", MANY[:1], ago=-1, scope=SCOPE._replace(model="new")))
    settled(filled)
    assert {row.index_entries for row in snapshot_of(filled.index).tenants} == {1000}
    assert [scope for scope in scopes if filled.index.serving(scope)] == scopes[:999]


@pytest.mark.parametrize("seed", range(6))
def test_an_order_of_keys_is_right_whatever_happens_while_it_is_made(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recency, "BATCH", 3)
    monkeypatch.setattr(index, "CLEARED_AT_ONCE", 0)
    history = History(random.Random(seed), 20 if seed % 2 else 0, puts_off=True)
    history.rules.lfu.update(TENANTS[:2])
    for _ in range(150):
        history.report()
        history.use()
    for tenant in TENANTS:
        history.rules.quotas[tenant] = 10**6
    trees = [history.real._tree.tenants[tenant] for tenant in TENANTS if tenant != RESERVED]
    while not all(tenant.order_keys().made for tenant in trees):
        for tenant in trees:
            tenant.order_keys().merge(1)
        for happening in history.rng.choices((history.report, history.evict, history.clear, history.use), k=2):
            happening()
    history.settle()
    for tenant in trees:
        for partition in tenant.partitions():
            newest: dict[bytes, int] = {}
            for lane in partition.lanes.values():
                for prefix_hash, stamp in lane.recency.stamps.items():
                    newest[prefix_hash] = max(recency.seen_us(stamp), newest.get(prefix_hash, -(2**62)))
            assert partition.key_order is not None
            known = partition.key_order.recency.stamps
            assert {prefix_hash: recency.seen_us(stamp) for prefix_hash, stamp in known.items()} == newest
