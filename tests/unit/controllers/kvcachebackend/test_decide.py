"""The rows of each condition in their order: every case is told by the first that holds."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend import reasons as r
from inferencecache.controllers.kvcachebackend.decide import AXES, Capacity, Facts, Trouble, Verdict
from inferencecache.controllers.kvcachebackend.membership import LARGEST_LISTING
from inferencecache.controllers.mooncake.admin import MasterFailure, SegmentsNotServed
from inferencecache.controllers.mooncake.exposition import ScrapeError
from tests.unit.controllers.kvcachebackend.made import (
    GIB,
    external,
    healthy,
    managed,
    pod,
    reading,
    rollout,
    scrape,
    segment,
)

SILENT = MasterFailure("GET http://store.example:9003/health: no answer within 5 s")
STUCK = {
    "containerStatuses": [
        {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ]
}
TIER = {"localDisks": [{"path": "/cache", "capacity": "1Ti"}]}


def said(kind: str, backend: KVCacheBackend, facts: Facts) -> tuple[str, str, str]:
    """Status and reason of a condition, and the phase of the backend."""
    verdict = Verdict(backend, facts)
    claim = verdict.claims[kind]
    assert claim is not None
    return claim.status, claim.reason, verdict.phase[0]


def test_a_backend_on_which_nothing_is_wrong_is_ready_without_a_message() -> None:
    verdict = Verdict(managed(), healthy())
    assert verdict.phase == ("Ready", "")
    assert {kind: claim and (claim.status, claim.reason) for kind, claim in verdict.claims.items()} == {
        "LeaderAvailable": ("True", "LeaderServing"),
        "MembersMounted": ("True", "Mounted"),
        "CapacityObserved": ("True", "Observed"),
        "Deletable": ("True", "NotInUse"),
        "RolloutComplete": ("True", "RolledOut"),
        "ElectionObserved": ("True", "LeaderElected"),
    }


def test_an_external_store_has_neither_rollout_nor_election() -> None:
    verdict = Verdict(external(), Facts(reading=reading()))
    assert verdict.phase == ("Ready", "")
    assert {kind for kind, claim in verdict.claims.items() if claim is None} == {
        k.ROLLOUT_COMPLETE,
        k.ELECTION_OBSERVED,
    }


NOT_READY = {"leader": rollout(ready=0), "reading": None}


@pytest.mark.parametrize(
    ("backend", "facts", "expected"),
    [
        (managed(), healthy(), ("True", r.LEADER_SERVING, "Ready")),
        (managed(), healthy(**NOT_READY), ("False", r.LEADER_STARTING, "Provisioning")),
        (
            managed(),
            healthy(**NOT_READY, pods=(pod("l", "leader", ready=False, **STUCK),)),
            ("False", r.LEADER_NOT_STARTING, "Error"),
        ),
        (
            managed(),
            healthy(**NOT_READY, pods=(pod("m", "member-0", ready=False, **STUCK),)),
            ("False", r.LEADER_STARTING, "Provisioning"),
        ),
        (managed(), healthy(reading=None), ("False", r.LEADER_STARTING, "Provisioning")),
        (managed(), healthy(reading=reading(health=SILENT)), ("False", r.LEADER_UNREACHABLE, "Error")),
        (managed(), healthy(reading=reading(serving=False)), ("False", r.LEADER_NOT_SERVING, "Provisioning")),
        (external(), Facts(reading=reading(health=SILENT)), ("False", r.LEADER_UNREACHABLE, "Error")),
        (external(), Facts(reading=reading(serving=False)), ("False", r.LEADER_NOT_SERVING, "Error")),
        (external(), Facts(), ("False", r.LEADER_STARTING, "Provisioning")),
        # One of three serves: the healthy state of an election.
        (
            managed(leader={"replicas": 3}),
            healthy(leader=rollout(wanted=3, updated=3, ready=1)),
            ("True", r.LEADER_SERVING, "Ready"),
        ),
    ],
)
def test_leader_available(backend: KVCacheBackend, facts: Facts, expected: tuple[str, str, str]) -> None:
    assert said(k.LEADER_AVAILABLE, backend, facts) == expected


LEADER = pod("l", "leader", labels={"mooncake.io/store-role": "leader"})
MEMBER = pod("m", "member-0", ip="10.0.0.1", node="n1")
SECOND = pod("m2", "member-1", ip="10.0.0.1", node="n1")
OLD = SegmentsNotServed("GET http://store/get_segments_detail: HTTP 404")


def listing(count: int) -> list[Any]:
    return [segment(number, host="10.0.0.1") for number in range(count)]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (healthy(), ("True", r.MOUNTED, "Ready")),
        (healthy(reading=None), ("Unknown", r.LEADER_NOT_SERVING, "Provisioning")),
        (healthy(reading=reading(serving=False, segments=[])), ("Unknown", r.LEADER_NOT_SERVING, "Provisioning")),
        (
            healthy(pods=(LEADER, MEMBER, pod("m3", "member-0", ready=False, **STUCK))),
            ("False", r.MEMBER_NOT_STARTING, "Degraded"),
        ),
        # A stuck one that is being deleted, or that is on its way up, is nobody's fault.
        (healthy(pods=(LEADER, MEMBER, pod("m3", "member-0", ready=False))), ("True", r.MOUNTED, "Ready")),
        (healthy(reading=reading(segments=SILENT)), ("False", r.LISTING_FAILED, "Degraded")),
        (healthy(reading=reading(segments=OLD)), ("Unknown", r.SEGMENT_LISTING_NOT_SERVED, "Ready")),
        (
            healthy(reading=reading(segments=OLD, scrape=scrape(total_capacity=0))),
            ("False", r.NO_SEGMENTS, "Degraded"),
        ),
        (
            healthy(reading=reading(segments=listing(LARGEST_LISTING // 100))),
            ("False", r.LISTING_TOO_LARGE, "Degraded"),
        ),
        (healthy(pods=(LEADER, MEMBER, SECOND)), ("False", r.AMBIGUOUS_MEMBER_IDENTITY, "Degraded")),
        (
            healthy(pods=(LEADER, MEMBER, pod("m2", "member-0", ip="10.0.0.2"))),
            ("False", r.MEMBERS_NOT_LISTED, "Degraded"),
        ),
        # A restarted leader that its members have not found again yet.
        (healthy(reading=reading(segments=[])), ("False", r.MEMBERS_NOT_LISTED, "Degraded")),
        (
            healthy(reading=reading(segments=[]), pods=(LEADER, pod("m", "member-0", ready=False))),
            ("False", r.NO_SEGMENTS, "Provisioning"),
        ),
        (healthy(reading=reading(segments=[]), pods=(LEADER,)), ("False", r.NO_MEMBERS, "Degraded")),
    ],
)
def test_members_mounted(facts: Facts, expected: tuple[str, str, str]) -> None:
    assert said(k.MEMBERS_MOUNTED, managed(), facts) == expected


def test_an_external_store_without_segments_is_degraded() -> None:
    facts = Facts(reading=reading(segments=[]))
    assert said(k.MEMBERS_MOUNTED, external(), facts) == ("False", r.NO_SEGMENTS, "Degraded")


NOT_COUNTED = scrape(total_capacity=None)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (healthy(), ("True", r.OBSERVED, "Ready")),
        (healthy(reading=None), ("Unknown", r.LEADER_NOT_SERVING, "Provisioning")),
        (healthy(reading=reading(serving=False)), ("Unknown", r.LEADER_NOT_SERVING, "Provisioning")),
        (healthy(reading=reading(scrape=SILENT)), ("False", r.SCRAPE_FAILED, "Degraded")),
        (healthy(reading=reading(scrape=ScrapeError("line 3"))), ("False", r.SCRAPE_FAILED, "Degraded")),
        (healthy(reading=reading(scrape=NOT_COUNTED)), ("False", r.NOT_EXPORTED, "Degraded")),
    ],
)
def test_capacity_observed(facts: Facts, expected: tuple[str, str, str]) -> None:
    assert said(k.CAPACITY_OBSERVED, managed(), facts) == expected


DISKS = {"file_capacity": 8 * GIB, "file_allocated": 2 * GIB}


@pytest.mark.parametrize(
    ("backend", "facts", "expected"),
    [
        (managed(), healthy(), Capacity(GIB, GIB // 2)),
        (managed(), healthy(reading=reading(scrape=scrape(**DISKS))), Capacity(GIB, GIB // 2)),
        (managed(TIER), healthy(reading=reading(scrape=scrape(**DISKS))), Capacity(9 * GIB, 5 * GIB // 2)),
        (external(), Facts(reading=reading(scrape=scrape(**DISKS))), Capacity(9 * GIB, 5 * GIB // 2)),
        (
            external(),
            Facts(reading=reading(scrape=scrape(file_capacity=None, file_allocated=None))),
            Capacity(GIB, GIB // 2),
        ),
        (managed(), healthy(reading=reading(scrape=scrape(total_capacity=0, allocated=0))), Capacity(0, 0)),
        (managed(), healthy(reading=reading(scrape=NOT_COUNTED)), Capacity()),
        # A leader that does not serve says 0 of everything, which is not what it has.
        (
            managed(),
            healthy(reading=reading(serving=False, scrape=scrape(total_capacity=0, allocated=0))),
            Capacity(),
        ),
        (managed(), healthy(reading=None), Capacity()),
    ],
)
def test_capacity_is_what_a_serving_leader_reports(backend: KVCacheBackend, facts: Facts, expected: Capacity) -> None:
    assert Verdict(backend, facts).capacity == expected


def used_by(count: int) -> dict[str, Any]:
    return {"usedBy": [{"kind": "KVCachePool", "namespace": "", "name": f"p{n:02}"} for n in range(count)]}


def test_deletable_names_who_holds_the_backend() -> None:
    free = Verdict(managed(), healthy()).claims[k.DELETABLE]
    assert free is not None
    assert (free.status, free.reason) == ("True", r.NOT_IN_USE)
    held = Verdict(managed(status=used_by(22)), healthy()).claims[k.DELETABLE]
    assert held is not None
    assert (held.status, held.reason) == ("False", r.IN_USE)
    assert "KVCachePool/p00, " in held.message
    assert "KVCachePool/p19 and 2 more" in held.message
    assert Verdict(managed(status=used_by(1)), healthy()).phase[0] == "Ready", "being used is no fault"


CONFLICT = Trouble(r.CHILD_CONFLICT, "Service pools/dram-leader exists and is controlled by nobody")


@pytest.mark.parametrize(
    ("backend", "facts", "expected"),
    [
        (managed(), healthy(), ("True", r.ROLLED_OUT, "Ready")),
        (managed(), healthy(trouble=CONFLICT), ("False", r.CHILD_CONFLICT, "Error")),
        (
            managed(),
            healthy(trouble=Trouble(r.APPLY_FAILED, "DaemonSet dram-member-0 could not be brought in line")),
            ("False", r.APPLY_FAILED, "Error"),
        ),
        (managed(), healthy(leader=rollout(updated=0)), ("False", r.LEADER_ROLLING_OUT, "Ready")),
        (managed(), healthy(leader=rollout(fresh=False)), ("False", r.LEADER_ROLLING_OUT, "Ready")),
        (managed(), healthy(leader=None, reading=None), ("False", r.LEADER_ROLLING_OUT, "Provisioning")),
        (managed(), healthy(spares_pending=True), ("False", r.REPLICAS_PENDING, "Ready")),
        (managed(), healthy(groups=()), ("False", r.MEMBERS_ROLLING_OUT, "Ready")),
        (
            managed(),
            healthy(groups=(rollout("dram-member-0", wanted=3, updated=2),)),
            ("False", r.MEMBERS_ROLLING_OUT, "Ready"),
        ),
        (
            managed(),
            healthy(groups=(rollout("dram-member-0", fresh=False),)),
            ("False", r.MEMBERS_ROLLING_OUT, "Ready"),
        ),
        # A group that matches no node is as it should be.
        (managed(), healthy(groups=(rollout("g", wanted=0, updated=0),)), ("True", r.ROLLED_OUT, "Ready")),
    ],
)
def test_rollout_complete(backend: KVCacheBackend, facts: Facts, expected: tuple[str, str, str]) -> None:
    assert said(k.ROLLOUT_COMPLETE, backend, facts) == expected


def test_an_object_that_cannot_be_written_is_told_as_the_phase() -> None:
    """Decision F16."""
    assert Verdict(managed(), healthy(trouble=CONFLICT)).phase == ("Error", CONFLICT.message)


def test_an_election_that_nobody_has_won_does_not_move_the_phase() -> None:
    facts = healthy(pods=(pod("l", "leader"), MEMBER))
    assert said(k.ELECTION_OBSERVED, managed(), facts) == ("False", r.NO_LEADER_ELECTED, "Ready")
    alone = managed(leader={"electionBackend": "None"})
    assert Verdict(alone, facts).claims[k.ELECTION_OBSERVED] is None


@pytest.mark.parametrize("axis", AXES)
def test_the_first_fault_in_order_gives_the_phase(axis: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        k.ROLLOUT_COMPLETE: {"trouble": CONFLICT},
        k.LEADER_AVAILABLE: {"reading": reading(health=SILENT)},
        k.MEMBERS_MOUNTED: {"reading": reading(segments=SILENT, scrape=SILENT)},
        k.CAPACITY_OBSERVED: {"reading": reading(scrape=SILENT)},
    }
    later = [fault for other, fault in faults.items() if AXES.index(other) >= AXES.index(axis)]
    facts: dict[str, Any] = {}
    for fault in reversed(later):
        facts |= fault
    verdict = Verdict(managed(), healthy(**facts))
    claim = verdict.claims[axis]
    assert claim is not None
    assert verdict.phase == (claim.phase, claim.message)
    assert claim.phase
