"""What the index says of itself, and what it hides (spec 06 §3, §4.2)."""

from __future__ import annotations

from inferencecache.server.index import ReplicaRow, Snapshot, Stats, TenantRow
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE

P = blocks("p0", "p1", "p2")
PROBE = SCOPE._replace(tenant="inferencecache.io/probe")
SOME = Stats(5, 0.25, 0.0)


def test_an_empty_index_is_empty() -> None:
    assert snapshot_of(Filled().index) == Snapshot([], [], 0)


def test_rows_are_all_replicas_with_holds_or_stats_sorted_by_tenant_and_id() -> None:
    other = SCOPE._replace(tenant="a")
    filled = Filled(
        report("s", stats=HALF, ago=MINUTE),
        report("r", P, ago=2 * MINUTE),
        report("z", P[:1], scope=other, stats=SOME),
        report("r", P[:1], adapter="x", ago=MINUTE),
    )
    assert snapshot_of(filled.index) == Snapshot(
        replicas=[
            ReplicaRow("a", "z", SOME, NOW_US, 1, NOW_US),
            ReplicaRow("team", "r", None, None, 4, NOW_US - MINUTE),
            ReplicaRow("team", "s", HALF, NOW_US - MINUTE, 0, None),
        ],
        tenants=[TenantRow("a", 1, 0.25), TenantRow("team", 4, 0.5)],
        total_prefixes=5,
    )


def test_a_replica_of_several_models_shows_its_newest_stats_and_all_its_holds() -> None:
    other = SCOPE._replace(model="other")
    filled = Filled(report("r", P, stats=SOME), report("r", P[:1], scope=other, stats=HALF, ago=MINUTE))
    assert snapshot_of(filled.index).replicas == [ReplicaRow("team", "r", SOME, NOW_US, 4, NOW_US)]
    filled.index.touch(tenant="team", model="other", replica_id="r", event_us=NOW_US + 1)
    assert snapshot_of(filled.index).replicas == [ReplicaRow("team", "r", HALF, NOW_US + 1, 4, NOW_US)]


def test_the_hit_rate_of_a_tenant_is_the_mean_of_its_replicas_with_stats() -> None:
    filled = Filled(report("a", P, stats=HALF), report("b", P, stats=SOME), report("c", P))
    assert snapshot_of(filled.index).tenants == [TenantRow("team", 3, 0.375)]
    assert snapshot_of(Filled(report("c", P)).index).tenants == [TenantRow("team", 3, None)]


def test_the_last_event_is_the_newest_hold_that_is_left() -> None:
    filled = Filled(report("r", P[:1], ago=3 * MINUTE), report("r", P[1:2], ago=MINUTE), report("r", P[2:3]))
    seen = []
    for name in (P[2], P[1]):
        assert filled.evict("r", name) == 1
        seen.append(snapshot_of(filled.index).replicas[0].last_event_us)
    assert seen == [NOW_US - MINUTE, NOW_US - 3 * MINUTE]


def test_the_entries_of_a_model_are_its_distinct_keys_and_zero_once_it_is_drained() -> None:
    other = SCOPE._replace(model="other")
    filled = Filled(report("a", P), report("b", P), report("a", P, scope=other), report("c", P[:1], adapter="x"))
    assert filled.index.entries_by_model() == {"model": 4, "other": 3}
    filled.index.clear(tenant="team", model="other", replica_id="a")
    assert filled.index.entries_by_model() == {"model": 4, "other": 0}
    filled.ingest(report("a", P, scope=SCOPE._replace(tenant="second")))
    assert filled.index.entries_by_model() == {"model": 7, "other": 0}


def test_of_models_by_made_up_names_only_so_many_are_remembered() -> None:
    filled = Filled(report("a", P))
    for number in range(2500):
        name = f"made-up-{number}"
        filled.ingest(report("a", P, scope=SCOPE._replace(model=name)))
        filled.index.clear(tenant="team", model=name, replica_id="a")
    assert filled.index.entries_by_model()["model"] == len(P)
    assert len(filled.index.entries_by_model()) <= 1001


def test_the_probes_tenant_is_nowhere_to_be_seen() -> None:
    filled = Filled(report("r", P, scope=PROBE, stats=HALF))
    assert snapshot_of(filled.index) == Snapshot([], [], 0)
    assert filled.index.entries_by_model() == {}
    assert list(filled.index.dump()) == []


def test_the_probes_tenant_finds_its_own() -> None:
    filled = Filled(report("r", P, scope=PROBE))
    assert filled.ask(exact(P[0], scope=PROBE))[0] == "PREFIX_MATCH"
    assert filled.index.serving(PROBE) == ["r"]


def test_a_running_probe_does_not_make_an_empty_index_look_filled() -> None:
    """Trap 10: nothing is known of anybody, so nobody's names are wrong."""
    filled = Filled(report("r", P, scope=PROBE))
    assert filled.exact(P[0]) == ("NONE", [])


def test_the_probe_neither_counts_towards_the_cap_nor_falls_to_it() -> None:
    filled = Filled(report("r", P, scope=PROBE, ago=MINUTE), report("r", P), capacity=3)
    assert filled.evicted == []
    filled.ingest(report("r", [b"q"], scope=PROBE))
    assert filled.evicted == []
    filled.ingest(report("r", [b"q"]))
    assert filled.has(*P, b"q") == [*P[1:], b"q"]
    assert filled.ask(exact(P[0], scope=PROBE))[0] == "PREFIX_MATCH"


def test_the_probe_has_no_quota_even_if_somebody_sets_one() -> None:
    filled = Filled()
    filled.rules.quotas[PROBE.tenant] = 0
    filled.ingest(report("r", P, scope=PROBE))
    assert filled.ask(exact(P[0], scope=PROBE))[0] == "PREFIX_MATCH"


def test_what_a_probe_left_behind_is_swept() -> None:
    filled = Filled(report("r", P, scope=PROBE, ago=40 * MINUTE))
    assert filled.sweep() == 3
    assert filled.index.serving(PROBE) == []


def test_a_probe_is_cleared_without_a_trace() -> None:
    filled = Filled(report("r", P), report("probe", P[:1], scope=PROBE, stats=HALF))
    before = snapshot_of(filled.index)
    filled.index.clear(tenant=PROBE.tenant, model=PROBE.model, replica_id="probe")
    assert snapshot_of(filled.index) == before
    assert list(filled.index._tree.tenants) == ["team"]
