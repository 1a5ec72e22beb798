"""Offline, an object is held to its schema as the API server would hold it."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.schema_check import check_schema


def backend(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"runtime": "VLLM", **spec}}


def managed(**server: Any) -> dict[str, Any]:
    return backend(remoteStorage={"provider": "LMCacheServer", "ownership": "Managed", "lmCacheServer": server})


def test_a_good_object_has_no_findings() -> None:
    good = backend(
        replicas=2,
        lmCache={"hostMemory": {"capacity": "20Gi"}, "chunkSizeTokens": 256},
        autoscaling={"minReplicas": 1, "maxReplicas": 1},
        remoteStorage={"provider": "LMCacheServer", "ownership": "Managed"},
        engineSelector={"matchLabels": {"a": ""}},
        template={"tolerations": [{"key": "a"}], "affinity": None},
    )
    assert check_schema(CacheBackend, good) == []


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata": {"name": "A_b"}, "spec": {"runtime": "VLLM"}}, "metadata.name", "Invalid value"),
    ({"metadata": {"name": "a"}, "spec": {}}, "spec.runtime", "Required value"),
    ({"metadata": {"name": "a"}, "spec": []}, "spec", "must be of type object"),
    (backend(runtime="vllm"), "spec.runtime", 'Unsupported value: "vllm": supported values: "VLLM", "SGLang"'),
    (backend(replicas="2"), "spec.replicas", "must be of type integer"),
    (backend(replicas=True), "spec.replicas", "must be of type integer"),
    (backend(replicas=-1), "spec.replicas", "greater than or equal to 0"),
    (backend(autoscaling={}), "spec.autoscaling.maxReplicas", "Required value"),
    (
        managed() | {"spec": {**managed()["spec"], "autoscaling": {"minReplicas": 3, "maxReplicas": 2}}},
        "spec.autoscaling",
        "minReplicas must be",
    ),
    (backend(lmCache={"hostMemory": {"capacity": "0"}}), "spec.lmCache.hostMemory.capacity", "greater than zero"),
    (backend(lmCache={"workerPort": 70000}), "spec.lmCache.workerPort", "less than or equal to 65535"),
    (managed(command=[]), "spec.remoteStorage.lmCacheServer.command", "at least 1 items"),
    (managed(command=[""]), "spec.remoteStorage.lmCacheServer.command[0]", "at least 1 characters"),
    (backend(engineSelector={"matchLabels": {"a": 1}}), "spec.engineSelector.matchLabels.a", "must be of type string"),
]


@pytest.mark.parametrize(("manifest", "field", "says"), BAD)
def test_findings(manifest: dict[str, Any], field: str, says: str) -> None:
    findings = check_schema(CacheBackend, manifest)
    assert [finding.field for finding in findings] == [field]
    assert says in findings[0].message


def test_an_object_needs_some_name() -> None:
    assert [f.field for f in check_schema(CacheBackend, {"spec": {"runtime": "VLLM"}})] == ["metadata.name"]
    generated = {"metadata": {"generateName": "a-"}, "spec": {"runtime": "VLLM"}}
    assert check_schema(CacheBackend, generated) == []
