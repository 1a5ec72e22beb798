"""The rendered CRDs say what spec 01 says; defaulting and pruning do offline what a schema does on the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kinds import KINDS, crds
from inferencecache.api.model import CustomObject
from inferencecache.api.quantity import PATTERN
from inferencecache.api.schema import apply_defaults, dump_crd, object_schema, prune, render_crd

_ABSENT = object()


def at(kind: type[CustomObject], path: str) -> dict[str, Any]:
    """The schema node of a dotted path; `[]` steps into the items of a list."""
    node = object_schema(kind)
    for part in path.replace("[]", ".[]").split("."):
        node = node["items"] if part == "[]" else node["properties"][part]
    return node


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}[]")


@pytest.mark.parametrize(
    ("kind", "plural", "short", "scope", "columns", "spec_required"),
    [
        (
            "CacheBackend",
            "cachebackends",
            "cb",
            "Namespaced",
            ["Type", "Ready", "Matched", "Endpoint", "Prefixes", "LastEvent", "Age"],
            False,
        ),
        ("CacheIndex", "cacheindices", "ci", "Cluster", ["Prefixes", "Changed", "Age"], False),
        ("CachePolicy", "cachepolicies", "cpol", "Namespaced", ["Eviction", "Age"], True),
        ("CacheTenant", "cachetenants", "ct", "Namespaced", ["Tenant", "Entries", "Quota", "Isolation", "Age"], True),
        ("PDTopology", "pdtopologies", "pdt", "Namespaced", ["Prefill", "Decode", "Age"], False),
        ("PromptTemplate", "prompttemplates", "pt", "Namespaced", ["Revision", "Age"], True),
    ],
)
def test_names_scope_and_columns(
    kind: str, plural: str, short: str, scope: str, columns: list[str], spec_required: bool
) -> None:
    crd = next(render_crd(one) for one in KINDS if one.resource.kind == kind)
    assert crd["metadata"]["name"] == f"{plural}.inferencecache.io"
    assert crd["spec"]["names"] == {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
    }
    assert crd["spec"]["scope"] == scope
    (version,) = crd["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["subresources"] == {"status": {}}
    assert [column["name"] for column in version["additionalPrinterColumns"]] == columns
    assert ("spec" in version["schema"]["openAPIV3Schema"].get("required", [])) is spec_required


@pytest.mark.parametrize(
    ("kind", "path", "keywords"),
    [
        (CacheBackend, "spec", {"required": ["runtime"]}),
        (CacheBackend, "spec.runtime", {"enum": ["VLLM", "SGLang"], "default": _ABSENT}),
        (CacheBackend, "spec.type", {"enum": ["LMCache", "SGLangHiCache"], "default": "LMCache"}),
        (CacheBackend, "spec.lmCache.chunkSizeTokens", {"format": "int32", "minimum": 1, "default": _ABSENT}),
        (CacheBackend, "spec.lmCache.workerPort", {"minimum": 1, "maximum": 65535}),
        (
            CacheBackend,
            "spec.lmCache.hostMemory.capacity",
            {"x-kubernetes-int-or-string": True, "pattern": PATTERN, "type": _ABSENT},
        ),
        (CacheBackend, "spec.remoteStorage", {"required": ["ownership", "provider"]}),
        (CacheBackend, "spec.remoteStorage.mooncake.command", {"minItems": 1}),
        (CacheBackend, "spec.remoteStorage.mooncake.command[]", {"minLength": 1}),
        (
            CacheBackend,
            "spec.remoteStorage.redis.resources.claims",
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        (CacheBackend, "spec.observation.firstEventTimeout", {"default": "5m", "pattern": _ABSENT, "format": _ABSENT}),
        (CacheBackend, "spec.replicas", {"default": 1, "minimum": 0}),
        (CacheBackend, "spec.autoscaling", {"required": ["maxReplicas"]}),
        (CacheBackend, "spec.autoscaling.targetCPUUtilizationPercent", {"minimum": 1, "maximum": 100}),
        (CacheBackend, "spec.integration", {"default": _ABSENT}),
        (CacheBackend, "spec.integration.failOpen", {"type": "boolean", "default": True}),
        (CacheBackend, "spec.integration.engineOverrides.env[]", {"required": ["name"]}),
        (CacheBackend, "spec.integration.engineOverrides.env[].valueFrom.secretKeyRef.name", {"default": ""}),
        (CacheBackend, "spec.integration.engineOverrides.env[].valueFrom.fileKeyRef.key", {"type": "string"}),
        (CacheBackend, "spec.template.tolerations", {"x-kubernetes-list-type": _ABSENT}),
        (CacheBackend, "spec.template.terminationGracePeriodSeconds", {"format": "int64", "minimum": 0}),
        (CacheBackend, "status.indexParticipation", {"required": ["prefixCount"]}),
        (CacheBackend, "status.firstKVEventObservedAt", {"format": "date-time"}),
        (
            CacheBackend,
            "status.conditions",
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
        (
            CacheBackend,
            "status.conditions[]",
            {"required": ["lastTransitionTime", "message", "reason", "status", "type"]},
        ),
        (CacheBackend, "status.conditions[].message", {"maxLength": 32768}),
        (CacheIndex, "status.prefixes.summary", {"required": ["hot", "total"]}),
        (CachePolicy, "spec.routingFloorScore", {"default": "0.1"}),
        (CachePolicy, "spec.strategy", {"default": _ABSENT}),
        (CachePolicy, "spec.strategy.requireChain", {"default": False}),
        (CacheTenant, "spec.crypto", {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 0}),
        (KINDS[4], "spec.acceleratorTypes[].name", {"minLength": 1}),
        (KINDS[5], "spec.slots[].required", {"type": "boolean", "default": _ABSENT}),
    ],
)
def test_keywords_of_fields(kind: type[CustomObject], path: str, keywords: dict[str, Any]) -> None:
    node = at(kind, path)
    assert {keyword: node.get(keyword, _ABSENT) for keyword in keywords} == keywords


@pytest.mark.parametrize("path", ["endpoint", "storage", "resources", "integration.engine", "template.containers"])
def test_removed_fields_stay_out(path: str) -> None:
    with pytest.raises(KeyError):
        at(CacheBackend, f"spec.{path}")


def test_text_is_stable_and_reads_back() -> None:
    for crd in crds():
        assert yaml.safe_load(dump_crd(crd)) == crd
        assert dump_crd(crd) == dump_crd(crd)


def test_nested_defaults_need_their_parent() -> None:
    assert apply_defaults(CachePolicy, {"spec": {}})["spec"].keys() == {
        "eviction",
        "minimumMatchedTokens",
        "routingFloorScore",
        "affinityRouting",
    }
    assert apply_defaults(CachePolicy, {"spec": {"strategy": {}}})["spec"]["strategy"] == {
        "enableChainMatching": True,
        "requireChain": False,
        "enableTenantHot": True,
    }


def test_a_null_gives_way_to_the_default_or_goes() -> None:
    filled = apply_defaults(CacheBackend, {"spec": {"replicas": None, "lmCache": None, "runtime": "VLLM"}})["spec"]
    assert filled["replicas"] == 1
    assert "lmCache" not in filled


def test_unknown_fields_go_except_where_they_are_to_be_refused() -> None:
    backend = {"metadata": {"name": "b", "odd": 1}, "spec": {"endpoint": "x", "integration": {"engine": "y"}}, "z": 1}
    assert prune(CacheBackend, backend) == {"metadata": {"name": "b", "odd": 1}, "spec": {"integration": {}}}
    assert prune(CacheTenant, {"spec": {"crypto": {"key": 1}}}) == {"spec": {"crypto": {"key": 1}}}


def test_arguments_are_left_alone() -> None:
    given: dict[str, Any] = {"spec": {"odd": 1}}
    apply_defaults(CacheBackend, given)
    prune(CacheBackend, given)
    assert given == {"spec": {"odd": 1}}
