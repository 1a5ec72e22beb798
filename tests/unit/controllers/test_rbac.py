"""The controller's ClusterRole: enough to do its work, and nothing a reviewer would have to ask about."""

from __future__ import annotations

import pytest

from inferencecache.controllers.rbac import rbac_rules

GRANTED: dict[tuple[str, str], set[str]] = {}
for rule in rbac_rules():
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            GRANTED.setdefault((group, resource), set()).update(rule["verbs"])

CHILDREN = [
    ("", "services"),
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("autoscaling", "horizontalpodautoscalers"),
]


@pytest.mark.parametrize("resource", CHILDREN, ids=lambda resource: resource[1])
def test_children_are_written_by_apply_and_never_replaced(resource: tuple[str, str]) -> None:
    assert GRANTED[resource] == {"create", "delete", "get", "list", "patch", "watch"}


def test_what_belongs_to_users_is_only_read() -> None:
    assert GRANTED["", "pods"] == {"list", "watch"}
    assert GRANTED["apps", "replicasets"] == {"get", "list", "watch"}
    assert GRANTED["inferencecache.io", "cachebackends/status"] == {"patch"}


def test_a_backend_on_a_pool_has_a_finalizer_and_a_claim_in_the_bindings_status_and_nothing_else_is_touched() -> None:
    assert GRANTED["inferencecache.io", "cachebackends"] == {"get", "list", "watch", "patch"}
    assert GRANTED["worker.gpustack.ai", "kvcachepools"] == {"list", "watch"}
    assert GRANTED["worker.gpustack.ai", "kvcachepoolbindings"] == {"get", "list", "watch"}
    assert GRANTED["worker.gpustack.ai", "kvcachepoolbindings/status"] == {"patch"}


TOLD = ["cacheindices", "cachetenants", "pdtopologies", "prompttemplates"]


@pytest.mark.parametrize("plural", TOLD)
def test_of_kinds_that_are_only_told_something_the_status_alone_is_written(plural: str) -> None:
    expected = {"get", "list", "watch"} | ({"create"} if plural == "cacheindices" else set())
    assert GRANTED["inferencecache.io", plural] == expected
    assert GRANTED["inferencecache.io", f"{plural}/status"] == {"patch"}


def test_policies_are_read_and_never_written() -> None:
    assert GRANTED["inferencecache.io", "cachepolicies"] == {"list", "watch"}


def test_nothing_else_is_granted_and_nothing_by_wildcard() -> None:
    expected = {
        *CHILDREN,
        ("", "pods"),
        ("events.k8s.io", "events"),
        ("inferencecache.io", "cachebackends"),
        ("inferencecache.io", "cachebackends/status"),
        ("inferencecache.io", "cachebackends/finalizers"),
        ("inferencecache.io", "cachepolicies"),
        ("apps", "replicasets"),
        ("worker.gpustack.ai", "kvcachepools"),
        ("worker.gpustack.ai", "kvcachepoolbindings"),
        ("worker.gpustack.ai", "kvcachepoolbindings/status"),
        *(("inferencecache.io", name) for plural in TOLD for name in (plural, f"{plural}/status")),
    }
    assert set(GRANTED) == expected
    assert not any("*" in value for key, verbs in GRANTED.items() for value in (*key, *verbs))
