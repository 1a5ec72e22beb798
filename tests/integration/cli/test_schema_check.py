"""What the offline check holds against an object is what the real API server holds against it."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.api.schema import apply_defaults, prune
from inferencecache.api.schema_check import check_schema
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import ApiError
from inferencecache.kube.resource import path_of
from tests.unit.api.test_schema_check import BAD


@pytest.mark.parametrize("manifest", [manifest for manifest, _, _ in BAD])
async def test_same_fields_as_the_api_server(client: Client, namespace: str, manifest: dict[str, Any]) -> None:
    await install_crds(client, [dict(crd) for crd in crds()])
    body = {"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", **manifest}
    with pytest.raises(ApiError) as caught:
        await client.request("POST", path_of(CacheBackend.resource, namespace), body=body, params={"dryRun": "All"})
    causes = caught.value.details.get("causes", [])
    theirs = {cause["field"] for cause in causes if cause["field"] != "<nil>"}
    ours = check_schema(CacheBackend, apply_defaults(CacheBackend, prune(CacheBackend, body)))
    assert {finding.field for finding in ours} == theirs
