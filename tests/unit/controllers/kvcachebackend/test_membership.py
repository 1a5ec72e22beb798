from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend, MemberStatus
from inferencecache.controllers.kvcachebackend.membership import LARGEST_LISTING, Membership, join
from inferencecache.controllers.kvcachebackend.pods import StorePod
from tests.unit.controllers.kvcachebackend.made import external, managed, pod, segment

TWO = managed({}, {"medium": "VRAM"})


def joined(*pods: StorePod, backend: KVCacheBackend = TWO, **given: Any) -> dict[str, Any]:
    (row,) = join(backend, [segment(**given)], pods).rows
    return dict(row)


def test_a_segment_is_joined_with_the_pod_at_its_address() -> None:
    row = joined(pod("a", "member-1", ip="10.0.0.1", node="n1"), pod("b", "member-0", ip="10.0.0.2", node="n2"))
    assert row == {
        "segmentID": "s1",
        "clientID": "c1",
        "segmentName": "10.0.0.1:14001",
        "nodeName": "n1",
        "medium": "VRAM",
        "protocol": "tcp",
        "capacity": "1Gi",
    }
    assert MemberStatus.model_validate(row).manifest() == row


def test_what_no_pod_tells_is_left_out() -> None:
    for row in (joined(), joined(backend=external()), joined(pod("l", "leader", ip="10.0.0.1", node="n1"))):
        assert {"nodeName", "medium"} & set(row) == set()


@pytest.mark.parametrize(
    ("second", "agreed"),
    [
        (("member-0", "n1"), {"nodeName": "n1", "medium": "DRAM"}),
        (("member-1", "n1"), {"nodeName": "n1"}),
        (("member-0", "n2"), {"medium": "DRAM"}),
        (("member-1", "n2"), {}),
    ],
)
def test_of_pods_that_share_an_address_only_what_they_agree_on_is_said(
    second: tuple[str, str], agreed: dict[str, str]
) -> None:
    component, node = second
    pods = (pod("a", "member-0", ip="10.0.0.1", node="n1"), pod("b", component, ip="10.0.0.1", node=node))
    row = joined(*pods)
    assert {name: row[name] for name in ("nodeName", "medium") if name in row} == agreed
    assert join(TWO, [segment()], pods).ambiguous == ("10.0.0.1",)


def test_a_pod_that_is_not_ready_makes_nothing_ambiguous_and_is_not_missed() -> None:
    ready = pod("a", "member-0", ip="10.0.0.1", node="n1")
    starting = pod("b", "member-0", ip="10.0.0.1", node="n1", ready=False)
    elsewhere = pod("c", "member-0", ip="10.0.0.9", ready=False)
    membership = join(TWO, [segment()], (ready, starting, elsewhere))
    assert (membership.ambiguous, membership.unlisted) == ((), ())


def test_ready_pods_that_the_leader_does_not_list_are_named() -> None:
    pods = (
        pod("a", "member-0", ip="10.0.0.1"),
        pod("c", "member-0", ip="10.0.0.3"),
        pod("b", "member-1", ip="10.0.0.2"),
    )
    assert join(TWO, [segment()], pods).unlisted == ("b", "c")


def test_a_pod_that_leaves_is_nobodys_member() -> None:
    ended = pod("a", "member-0", ip="10.0.0.2", phase="Failed")
    assert join(TWO, [segment()], (ended,)).unlisted == ()


def test_an_address_of_the_sixth_version_is_found_in_its_brackets() -> None:
    row = joined(pod("a", "member-0", ip="fd00::1", node="n6"), segment_name="[fd00::1]:14001")
    assert row["nodeName"] == "n6"


def test_rows_are_in_the_order_of_their_ids_and_each_is_there_once() -> None:
    membership = join(TWO, [segment(3), segment(1), segment(3), segment(2)], ())
    assert [row["segmentID"] for row in membership.rows] == ["s1", "s2", "s3"]


def test_a_listing_is_too_large_by_its_bytes() -> None:
    assert not Membership(({"segmentID": "x" * (LARGEST_LISTING - 100)},)).too_large
    assert Membership(({"segmentID": "x" * LARGEST_LISTING},)).too_large
