"""Whatever store admission lets through, a real API server takes all that makes it up.

Nothing is stored: every object is sent as a dry run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.schema import apply_defaults
from inferencecache.api.schema_check import check_schema
from inferencecache.controllers.kvcachebackend.objects import Settings
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.webhooks.validation.kvcachebackend import validate_kv_cache_backend
from tests.integration.api.installed import install_once
from tests.unit.api.stores import likely_stores


@pytest.fixture
async def server(client: Client, control_plane: ControlPlane) -> Client:
    await install_once(client, control_plane)
    return client


@given(spec=likely_stores())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_the_api_server_takes_what_follows_from_any_admitted_store(
    server: Client, namespace: str, spec: dict[str, Any]
) -> None:
    manifest = {
        "apiVersion": KVCacheBackend.resource.api_version,
        "kind": KVCacheBackend.resource.kind,
        "metadata": {"name": "store"},
        "spec": spec,
    }
    manifest = apply_defaults(KVCacheBackend, json.loads(json.dumps(manifest)))
    if check_schema(KVCacheBackend, manifest):
        return
    backend = KVCacheBackend.decode(manifest)
    if not validate_kv_cache_backend(backend).allowed:
        return
    await server.apply(manifest, dry_run=True)
    for made in render(backend, Settings(namespace, "store:1")):
        await server.apply(made, dry_run=True)
