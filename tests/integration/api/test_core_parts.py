"""What a CacheBackend embeds of core/v1 is merged by server-side apply as the API server merges it in Pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.schema import object_schema
from inferencecache.kube.client import Client

_MARKS = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
_SPEC = object_schema(CacheBackend)["properties"]["spec"]["properties"]
_ENV = _SPEC["integration"]["properties"]["engineOverrides"]["properties"]["env"]
_RESOURCES = _SPEC["remoteStorage"]["properties"]["redis"]["properties"]["resources"]
_TEMPLATE = _SPEC["template"]["properties"]

Json = dict[str, Any]


def marks(schema: Json, schemas: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """How each node is merged, by path; references are followed in `schemas`."""
    if "allOf" in schema:
        schema = {**schema, **schema["allOf"][0]}
    if "$ref" in schema:
        schema = {**schemas[schema["$ref"].rpartition("/")[2]], **schema}
    yield path, {mark: schema[mark] for mark in _MARKS if mark in schema}
    for name, child in schema.get("properties", {}).items():
        yield from marks(child, schemas, f"{path}.{name}")
    if "items" in schema:
        yield from marks(schema["items"], schemas, f"{path}[]")


@pytest.mark.parametrize(
    ("ours", "kind", "field"),
    [
        (_ENV["items"], "EnvVar", ""),
        (_RESOURCES, "ResourceRequirements", ""),
        *(
            (_TEMPLATE[field].get("items", _TEMPLATE[field]), "PodSpec", field)
            for field in (
                *("affinity", "tolerations", "topologySpreadConstraints", "imagePullSecrets", "securityContext"),
                "nodeSelector",
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_embedded_parts_are_merged_as_in_core(client: Client, ours: Json, kind: str, field: str) -> None:
    schemas = json.loads(await client.request("GET", "/openapi/v3/api/v1"))["components"]["schemas"]
    theirs = schemas[f"io.k8s.api.core.v1.{kind}"]
    if field:
        theirs = theirs["properties"][field]
        theirs = theirs.get("items", theirs)  # spec 01 §2: the arrays themselves carry no list type here
    expected = dict(marks(theirs, schemas))
    found = dict(marks(ours, {}))
    assert found == {path: expected[path] for path in found}
