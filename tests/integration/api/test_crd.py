"""A real API server takes every CRD as structural, and treats nulls as the offline code does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import KINDS, crds
from inferencecache.api.model import CustomObject
from inferencecache.api.schema import apply_defaults, prune, render_crd
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import ApiError
from inferencecache.kube.resource import path_of

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def created(client: Client, kind: type[CustomObject], namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The object as it would be stored. Raises `ApiError`."""
    body = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": "one", "namespace": namespace},
        "spec": spec,
    }
    done = await client.request("POST", path_of(kind.resource, namespace), body=body, params={"dryRun": "All"})
    stored: dict[str, Any] = json.loads(done)
    return stored


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
async def test_established_and_structural(client: Client, kind: type[CustomObject]) -> None:
    crd = render_crd(kind)
    await install_crds(client, [crd])
    live = json.loads(await client.request("GET", f"{_CRDS}/{crd['metadata']['name']}"))
    states = {condition["type"]: condition["status"] for condition in live["status"]["conditions"]}
    assert states["Established"] == "True"
    assert states["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in states
    theirs, ours = live["spec"]["versions"][0]["schema"], crd["spec"]["versions"][0]["schema"]
    assert theirs == ours, "the server keeps every keyword"


@pytest.mark.parametrize(
    "spec",
    [
        {"runtime": "VLLM", "type": None, "replicas": None, "lmCache": None, "odd": None},
        {"runtime": "VLLM", "integration": {"failOpen": None, "engineOverrides": {"args": None}}},
        {"runtime": "VLLM", "engineSelector": {"matchLabels": {"a": None, "b": "1"}}},
        {"runtime": "VLLM", "template": {"imagePullSecrets": [{}], "nodeSelector": None}},
        {
            "runtime": "VLLM",
            "integration": {
                "engineOverrides": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k", "name": None}}}]}
            },
        },
    ],
)
async def test_nulls_and_nested_defaults_are_stored_as_offline(
    client: Client, namespace: str, spec: dict[str, Any]
) -> None:
    await install_crds(client, crds())
    stored = await created(client, CacheBackend, namespace, spec)
    assert stored["spec"] == apply_defaults(CacheBackend, prune(CacheBackend, {"spec": spec}))["spec"]


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        (
            CacheBackend,
            {"runtime": "VLLM", "autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
            r"spec\.autoscaling.*minReplicas must be less than or equal to maxReplicas",
        ),
        (
            CacheBackend,
            {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": "-1Gi"}}},
            r"spec\.lmCache\.hostMemory\.capacity.*greater than zero",
        ),
        (
            CacheBackend,
            {"runtime": "VLLM", "lmCache": {"hostMemory": {"capacity": 0}}},
            r"spec\.lmCache\.hostMemory\.capacity.*greater than zero",
        ),
        (
            KINDS[2],
            {"strategy": {"requireChain": True, "enableChainMatching": False}},
            r"strategy\.requireChain needs strategy\.enableChainMatching",
        ),
        (KINDS[4], {"acceleratorTypes": [{"name": ""}]}, r"spec\.acceleratorTypes\[0\]\.name"),
    ],
)
async def test_rules_refuse(
    client: Client, namespace: str, kind: type[CustomObject], spec: dict[str, Any], field: str
) -> None:
    await install_crds(client, crds())
    with pytest.raises(ApiError, match=field):
        await created(client, kind, namespace, spec)
