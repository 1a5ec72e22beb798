from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.controllers.kvcachebackend.replacing import fingerprint_of, next_to_replace, up_to_date
from tests.unit.controllers.kvcachebackend.made import SETTINGS, managed, pod

TIER = [{"path": "/cache", "capacity": "1Ti"}]


def fingerprint(backend: KVCacheBackend) -> str:
    (found,) = [fingerprint_of(one) for one in render(backend, SETTINGS) if one["kind"] == "DaemonSet"]
    assert found
    return found


@pytest.mark.parametrize(
    "nodes",
    [
        {"nodeSelector": {"other": "nodes"}},
        {"nodeSelector": {}},
        {"tolerations": [{"operator": "Exists"}]},
    ],
)
def test_a_choice_of_nodes_replaces_nobody(nodes: dict[str, Any]) -> None:
    assert fingerprint(managed(nodes)) == fingerprint(managed())


@pytest.mark.parametrize(
    "changed",
    [
        {"capacityPerMember": "8Gi"},
        {"image": "store:2"},
        {"localBufferSize": "1Gi"},
        {"medium": "VRAM"},
        {"transport": {"protocol": "RDMA"}},
        {"extraArgs": {"a": "b"}},
        {"extraEnv": [{"name": "A", "value": "b"}]},
        {"localDisks": TIER},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_a_member_is_replaces_it(changed: dict[str, Any]) -> None:
    assert fingerprint(managed(changed)) != fingerprint(managed())


def test_what_concerns_the_leader_alone_replaces_no_member() -> None:
    leader = {"replicas": 3, "multiTenancy": False, "extraArgs": {"a": "b"}, "nodeSelector": {"a": "b"}}
    assert fingerprint(managed(leader=leader)) == fingerprint(managed())


def member(name: str, carries: str, *, ready: bool = True, leaving: bool = False) -> StorePod:
    made = pod(name, "member-0", ready=ready)
    deleted = "2026-01-01T00:00:00Z" if leaving else None
    metadata = msgspec.structs.replace(
        made.metadata, annotations={"note.gpustack.ai/template": carries}, deletion_timestamp=deleted
    )
    return msgspec.structs.replace(made, metadata=metadata)


OLD_A, OLD_B, NEW_C = member("a", "old"), member("b", "old"), member("c", "new")


@pytest.mark.parametrize(
    ("pods", "nodes", "replaced"),
    [
        ([], 3, None),
        ([NEW_C], 1, None),
        ([OLD_B, OLD_A, NEW_C], 3, "a"),
        # One at a time: another is on its way out, or in.
        ([OLD_A, OLD_B, member("c", "old", leaving=True)], 3, None),
        ([OLD_A, OLD_B], 3, None),
        ([OLD_A, OLD_B, member("c", "new", ready=False)], 3, None),
        # What does not work has nothing to lose.
        ([OLD_A, member("b", "old", ready=False), NEW_C], 3, "b"),
        ([OLD_A, member("b", "old", ready=False), member("c", "new", ready=False)], 3, "b"),
        ([OLD_A, member("b", "old", ready=False)], 3, "b"),
        # A node was taken out of the group: there is one more than there should be, for a moment.
        ([OLD_A, OLD_B], 1, "a"),
    ],
)
def test_one_member_of_a_group_is_replaced_at_a_time(pods: list[StorePod], nodes: int, replaced: str | None) -> None:
    found = next_to_replace(pods, "new", nodes)
    assert (found.metadata.name if found else None) == replaced


def test_members_that_leave_are_not_counted_as_up_to_date() -> None:
    pods = [OLD_A, NEW_C, member("d", "new", leaving=True)]
    assert [one.metadata.name for one in up_to_date(pods, "new")] == ["c"]
