"""The KV cache pool's CRDs say what spec 10 §2 says, and its models answer what others ask of them."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.api.schema import apply_defaults, object_schema, render_crd
from inferencecache.api.schema_check import check_schema

_ABSENT = object()


def at(kind: type[CustomObject], path: str) -> dict[str, Any]:
    """The schema node of a dotted path; `[]` steps into the items of a list."""
    node = object_schema(kind)
    for part in path.replace("[]", ".[]").split("."):
        node = node["items"] if part == "[]" else node["properties"][part]
    return node


def managed(*groups: dict[str, Any], **spec: Any) -> KVCacheBackend:
    return KVCacheBackend.decode({"spec": {"connection": {"managed": {"leader": {}, "members": list(groups)}}, **spec}})


@pytest.mark.parametrize(
    ("kind", "short", "scope", "columns"),
    [
        (
            KVCacheBackend,
            "kvcb",
            "Cluster",
            [
                ("Type", ".spec.type", 0),
                ("Phase", ".status.phase", 0),
                ("Endpoint", ".status.endpoints[?(@.name=='Client')].address", 0),
                ("Capacity", ".status.capacity.total", 0),
                ("Age", ".metadata.creationTimestamp", 0),
            ],
        ),
        (
            KVCachePool,
            "kvcp",
            "Cluster",
            [
                ("Quota", ".spec.quota.total", 0),
                ("Usage", ".status.usage.total", 0),
                ("Phase", ".status.phase", 0),
                ("Endpoint", ".status.clientEndpoint", 0),
                ("Age", ".metadata.creationTimestamp", 0),
            ],
        ),
        (
            KVCachePoolBinding,
            "kvcpb",
            "Namespaced",
            [
                ("Pool", ".spec.poolRef.name", 0),
                ("Domain", ".spec.domain.name", 0),
                ("Ceiling", ".spec.quota.ceiling", 1),
                ("BlockSize", ".spec.domain.blockSize", 1),
                ("Dtype", ".spec.domain.dtype", 1),
                ("Effective", ".status.effectiveQuota", 0),
                ("Usage", ".status.usage", 0),
                ("Phase", ".status.phase", 0),
                ("Age", ".metadata.creationTimestamp", 0),
            ],
        ),
    ],
    ids=["backend", "pool", "binding"],
)
def test_names_scope_and_columns(
    kind: type[CustomObject], short: str, scope: str, columns: list[tuple[str, str, int]]
) -> None:
    crd = render_crd(kind)
    name = kind.__name__.lower()
    assert crd["metadata"]["name"] == f"{name}s.worker.gpustack.ai"
    assert crd["spec"]["names"] == {
        "kind": kind.__name__,
        "listKind": f"{kind.__name__}List",
        "plural": f"{name}s",
        "singular": name,
        "shortNames": [short],
        "categories": ["gpustack"],
    }
    assert crd["spec"]["scope"] == scope
    (version,) = crd["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1", True, True)
    assert version["subresources"] == {"status": {}}
    shown = [(one["name"], one["jsonPath"], one.get("priority", 0)) for one in version["additionalPrinterColumns"]]
    assert shown == columns


USED_BY = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["kind", "namespace", "name"]}


@pytest.mark.parametrize(
    ("kind", "path", "keywords"),
    [
        (KVCacheBackend, "spec", {"required": ["connection"]}),
        (KVCacheBackend, "spec.image", {"maxLength": 512}),
        (KVCacheBackend, "spec.imagePullSecrets", {"maxItems": 32, "x-kubernetes-list-type": "atomic"}),
        (KVCacheBackend, "spec.transport", {"default": {}}),
        (KVCacheBackend, "spec.connection.managed", {"required": ["leader", "members"]}),
        (KVCacheBackend, "spec.connection.managed.leader.replicas", {"default": 1, "minimum": 1, "maximum": 5}),
        (KVCacheBackend, "spec.connection.managed.leader.multiTenancy", {"type": "boolean", "default": _ABSENT}),
        (KVCacheBackend, "spec.connection.managed.members", {"minItems": 1, "maxItems": 32}),
        (
            KVCacheBackend,
            "spec.connection.managed.members[]",
            {"required": ["capacityPerMember", "medium", "nodeSelector"]},
        ),
        (KVCacheBackend, "spec.connection.managed.scaleIn.gracePeriodSeconds", {"minimum": 0, "maximum": 3600}),
        (KVCacheBackend, "spec.connection.external.endpoints[].address", {"maxLength": 259}),
        (KVCacheBackend, "status.members", {"x-kubernetes-list-map-keys": ["segmentID"]}),
        (KVCacheBackend, "status.usedBy", USED_BY),
        (KVCachePool, "spec", {"required": ["backends", "quota"]}),
        (KVCachePool, "spec.backends", {"x-kubernetes-list-type": "atomic", "minItems": _ABSENT, "maxItems": _ABSENT}),
        (KVCachePool, "spec.quota", {"required": ["total"]}),
        (KVCachePool, "status.clientEndpoint", {"maxLength": 259}),
        (KVCachePool, "status.domains", {"x-kubernetes-list-map-keys": ["name"]}),
        (KVCachePool, "status.domains[]", {"required": ["binding", "blockSize", "dtype", "name"]}),
        (KVCachePool, "status.domains[].hitRate", {"pattern": r"^(0(\.[0-9]{1,4})?|1(\.0{1,4})?)$"}),
        (KVCachePool, "status.usedBy", USED_BY),
        (KVCachePoolBinding, "spec", {"required": ["domain", "poolRef", "quota"]}),
        (KVCachePoolBinding, "spec.domain", {"required": ["blockSize", "dtype"], "default": _ABSENT}),
        (KVCachePoolBinding, "spec.domain.name", {"default": "default", "maxLength": 63}),
        (KVCachePoolBinding, "spec.domain.blockSize", {"format": "int32"}),
        (KVCachePoolBinding, "spec.domain.dtype", {"maxLength": 32}),
        (KVCachePoolBinding, "status.usedBy", USED_BY),
        (
            KVCachePoolBinding,
            "status.conditions[].reason",
            {"minLength": _ABSENT, "maxLength": 1024, "pattern": "^$|^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        ),
    ],
)
def test_keywords_of_fields(kind: type[CustomObject], path: str, keywords: dict[str, Any]) -> None:
    node = at(kind, path)
    assert {keyword: node.get(keyword, _ABSENT) for keyword in keywords} == keywords


def test_a_binding_without_a_domain_name_is_stored_with_the_stores_own() -> None:
    stored = apply_defaults(KVCachePoolBinding, {"spec": {"domain": {"blockSize": 64, "dtype": "bfloat16"}}})
    assert stored["spec"]["domain"]["name"] == "default"


def test_a_list_that_is_too_long_is_refused_by_the_schema() -> None:
    group = {"nodeSelector": {}, "medium": "DRAM", "capacityPerMember": "1Gi"}
    backend = {
        "metadata": {"name": "b"},
        "spec": {"connection": {"managed": {"leader": {}, "members": [group] * 33}}},
    }
    assert [found.field for found in check_schema(KVCacheBackend, backend)] == ["spec.connection.managed.members"]


@pytest.mark.parametrize(
    ("leader", "answer"), [({}, True), ({"multiTenancy": None}, True), ({"multiTenancy": False}, False)]
)
def test_a_managed_store_keeps_a_ledger_unless_it_says_otherwise(leader: dict[str, Any], answer: bool) -> None:
    backend = KVCacheBackend.decode({"spec": {"connection": {"managed": {"leader": leader}}}})
    assert backend.multi_tenant is answer


def test_an_external_store_declares_no_ledger() -> None:
    assert KVCacheBackend.decode({"spec": {"connection": {"external": {"endpoints": []}}}}).multi_tenant is None


def test_transports_are_offered_in_the_order_of_the_groups() -> None:
    backend = managed({"transport": {"protocol": "CANN"}}, {}, {"transport": {}}, transport={"protocol": "ROCM"})
    assert backend.transports == ("ascend", "hip", "tcp")
    external = {"spec": {"transport": {"protocol": "RDMA"}, "connection": {"external": {}}}}
    assert KVCacheBackend.decode(external).transports == ("rdma",)


def test_addresses_are_found_by_name_and_not_by_position() -> None:
    endpoints = [{"name": "Admin", "address": "a:1"}, {"name": "Client", "address": "c:2"}]
    backend = KVCacheBackend.decode({"status": {"endpoints": endpoints}})
    assert (backend.address("Client"), backend.address("Admin")) == ("c:2", "a:1")
    assert managed().address("Client") is None


@pytest.mark.parametrize(("names", "backend"), [(["a"], "a"), ([], None), (["a", "b"], None)])
def test_a_pool_has_one_backend_or_none(names: list[str], backend: str | None) -> None:
    assert KVCachePool.decode({"spec": {"backends": names}}).backend == backend


@pytest.mark.parametrize(
    ("status", "reason", "single"),
    [
        ("False", "MultiTenancyDisabled", True),
        ("False", "LedgerUnreachable", False),
        ("Unknown", "MultiTenancyDisabled", False),
    ],
)
def test_a_pool_is_single_tenant_when_its_ledger_is_seen_to_be_off(status: str, reason: str, single: bool) -> None:
    condition = {"type": "QuotaLedgerAvailable", "status": status, "reason": reason}
    assert KVCachePool.decode({"status": {"conditions": [condition]}}).single_tenant is single
    other = {**condition, "type": "QuotaPolicyWritable"}
    assert not KVCachePool.decode({"status": {"conditions": [other]}}).single_tenant


@pytest.mark.parametrize(
    ("deleted", "used_by", "releasing"),
    [
        (None, [], False),
        ("2026-01-01T00:00:00Z", [], True),
        ("2026-01-01T00:00:00Z", [{"kind": "ModelDeployment", "namespace": "", "name": "m"}], False),
    ],
)
def test_a_binding_is_released_when_it_is_deleted_and_unused(
    deleted: str | None, used_by: list[dict[str, str]], releasing: bool
) -> None:
    binding = {"metadata": {"deletionTimestamp": deleted}, "status": {"usedBy": used_by}}
    assert KVCachePoolBinding.decode(binding).releasing is releasing
