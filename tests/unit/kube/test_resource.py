"""Where an object is, as a request path."""

from __future__ import annotations

import pytest

from inferencecache.kube.kinds import ConfigMap, Pod
from inferencecache.kube.resource import ResourceType, path_of

ROLES = ResourceType("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)


def test_a_path_leads_to_a_collection_an_object_or_a_part_of_one() -> None:
    assert path_of(ConfigMap.resource) == "/api/v1/configmaps"
    assert path_of(Pod.resource, "n", "p", "eviction") == "/api/v1/namespaces/n/pods/p/eviction"
    assert path_of(ROLES, "n", "system:node") == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("c?x", "c%3Fx"),
        ("../c", "..%2Fc"),
        ("c/status", "c%2Fstatus"),
        ("c#x", "c%23x"),
        ("c%3f", "c%253f"),
        ("c d", "c%20d"),
    ],
)
def test_no_name_leads_to_another_object(name: str, segment: str) -> None:
    assert path_of(ConfigMap.resource, "n", name) == f"/api/v1/namespaces/n/configmaps/{segment}"
    assert path_of(ConfigMap.resource, name) == f"/api/v1/namespaces/{segment}/configmaps"
