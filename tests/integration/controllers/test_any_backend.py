"""Whatever admission lets through, a real API server takes all that follows from it: children and wired Pods.

Nothing is stored: every object is sent as a dry run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import path_of
from inferencecache.webhooks.injection import Outcome
from tests.integration.api.installed import install_once
from tests.unit.api.from_schema import likely_specs
from tests.unit.webhooks.pipeline import admitted, engine_pod, rendered, stored, wired

_PODS = st.sampled_from([engine_pod(), engine_pod("vllm", env=[{"name": "A", "value": "1"}]), engine_pod("sglang")])


@pytest.fixture
async def server(client: Client, control_plane: ControlPlane) -> Client:
    await install_once(client, control_plane)
    return client


async def dry_run(client: Client, obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object as it would be stored in a namespace. Raises `ApiError`."""
    placed = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
    resource, _ = await client.locate(placed)
    done = await client.request("POST", path_of(resource, namespace), body=placed, params={"dryRun": "All"})
    taken: dict[str, Any] = json.loads(done)
    return taken


@given(spec=likely_specs(), pod=_PODS, kernels=st.sampled_from(["auto", "strict", "off"]))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_the_api_server_takes_what_follows_from_any_admitted_backend(
    server: Client, namespace: str, spec: dict[str, Any], pod: dict[str, Any], kernels: str
) -> None:
    manifest = stored(spec, annotations={"inferencecache.io/lmcache-kernel-check": kernels})
    backend = admitted(manifest)
    if backend is None:
        return
    as_sent = {"apiVersion": CacheBackend.resource.api_version, "kind": "CacheBackend", **manifest}
    await dry_run(server, as_sent, namespace)
    for child in rendered(backend):
        await dry_run(server, child, namespace)
    done = wired(pod, backend)
    if done.outcome is Outcome.WIRED:
        taken = await dry_run(server, done.pod, namespace)
        again = wired({**taken, "metadata": {**taken["metadata"], "namespace": "ns"}}, backend)
        assert again.pod["spec"] == taken["spec"], "a Pod copied from the cluster is wired already"


async def test_the_engine_pods_of_this_test_are_taken_as_they_are(client: Client, namespace: str) -> None:
    taken = await dry_run(client, engine_pod(), namespace)
    assert taken["kind"] == Pod.resource.kind
