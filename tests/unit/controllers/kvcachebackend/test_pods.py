from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferencecache.controllers.kvcachebackend.pods import StorePod, backend_of, matters, stuck
from inferencecache.kube.informer import Change
from inferencecache.kube.resource import Key
from tests.unit.controllers.kvcachebackend.made import pod


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "c", "state": {"waiting": {"reason": reason, "message": message}}}]


UNSCHEDULABLE = [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"containerStatuses": waiting("ContainerCreating")}, ""),
        ({"containerStatuses": waiting("PodInitializing")}, ""),
        ({}, ""),
        ({"containerStatuses": waiting("CrashLoopBackOff", "back-off 5m0s")}, "CrashLoopBackOff: back-off 5m0s"),
        ({"containerStatuses": waiting("ErrImagePull", "denied")}, "container c: ErrImagePull: denied"),
        ({"initContainerStatuses": waiting("CrashLoopBackOff", "seed")}, "container c: CrashLoopBackOff: seed"),
        ({"conditions": UNSCHEDULABLE}, "Unschedulable: 0/3 nodes are available"),
    ],
)
def test_a_pod_is_stuck_when_it_will_not_start_by_itself(status: dict[str, Any], why: str) -> None:
    told = stuck([pod("p", "member-0", ready=False, **status)])
    assert told.endswith(why)
    assert bool(told) == bool(why)
    if why:
        assert told.startswith("Pod p: ")


def test_a_pod_that_is_ready_or_leaving_is_not_stuck() -> None:
    crashed = {"containerStatuses": waiting("CrashLoopBackOff")}
    leaving = msgspec.structs.replace(pod("p", "leader", ready=False, **crashed), metadata=_deleted())
    assert stuck([pod("p", "leader", ready=True, **crashed), leaving]) == ""


def _deleted() -> Any:
    return msgspec.structs.replace(pod("p", "leader").metadata, deletion_timestamp="2026-01-01T00:00:00Z")


def test_the_components_of_a_backend_are_told_apart() -> None:
    leader, member, other = pod("l", "leader"), pod("m", "member-11"), pod("o", "member-x")
    assert (leader.is_leader, leader.group) == (True, None)
    assert (member.is_leader, member.group) == (False, 11)
    assert (other.is_leader, other.group) == (False, None)
    assert backend_of(member) == (Key("", "dram"),)
    assert backend_of(StorePod()) == ()


def test_only_what_a_status_tells_of_wakes_its_backend() -> None:
    before = pod("l", "leader")
    elected = pod("l", "leader", labels={"mooncake.io/store-role": "leader"})
    touched = pod("l", "leader", labels={"somebody": "else"})
    assert matters(Change(None, before))
    assert matters(Change(before, None))
    assert matters(Change(before, elected))
    assert matters(Change(before, pod("l", "leader", ready=False)))
    assert not matters(Change(before, touched))
