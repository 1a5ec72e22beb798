"""Each sample does in a real API server, beside the running operator, what the table in `tests/samples.py` promises."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from inferencecache.api import KINDS, CacheBackend
from inferencecache.cli import trial
from inferencecache.cli.processes import child
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import Invalid, NotFound
from inferencecache.kube.resource import Key, path_of
from tests.integration.kube.waiting import eventually
from tests.samples import PROMISES, SAMPLES, SUBSCRIBER_IMAGE, Manifest, broken, documents, engine_pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMITTED = sorted(SAMPLES.glob("*.yaml"))
_OF_THE_CLUSTER = {"Namespace", *(kind.resource.kind for kind in KINDS if not kind.resource.namespaced)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A control plane of its own with the product installed: its webhooks would be in the way of other tests."""
    folder, ports = tmp_path_factory.mktemp("operator"), trial.Ports.free()
    with ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="test")
            await trial.install(client, ports)
            kubeconfig = await trial.service_account_kubeconfig(client, plane)
            command = [
                *trial.controller_command(kubeconfig, ports, folder),
                f"--kvevent-subscriber-image={SUBSCRIBER_IMAGE}",
            ]
            log = folder / "controller.log"
            async with child("operator", command, log) as running:
                await trial.wait_serving(running, client, ports)
                yield client


async def applied(client: Client, path: Path) -> str:
    """Apply a sample, in a fresh namespace unless it names its own; the namespace of its backends."""
    fresh = f"s-{uuid.uuid4().hex[:10]}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": fresh}})
    own = ""
    for manifest in documents(path):
        if manifest["kind"] not in _OF_THE_CLUSTER:
            own = own or manifest["metadata"].get("namespace", "")
            manifest["metadata"].setdefault("namespace", fresh)
        await client.apply(manifest)
    return own or fresh


async def endpoint(client: Client, backend: Manifest, namespace: str) -> str:
    """Where engines of a backend will be wired to, once the operator has published it; empty for no store."""
    key = Key(namespace, backend["metadata"]["name"])
    if "remoteStorage" not in backend["spec"]:
        return ""

    async def published() -> str:
        return (await client.get(CacheBackend, key)).status.endpoint or ""

    return await eventually(published, bool, seconds=30)


@pytest.mark.parametrize("path", ADMITTED, ids=lambda path: path.stem)
async def test_a_sample_is_admitted_and_wires_its_engines(installed: Client, path: Path) -> None:
    namespace = await applied(installed, path)
    for promise in [one for one in PROMISES if one.sample == path.stem]:
        backend = next(one for one in documents(path) if one["metadata"]["name"] == promise.backend)
        await endpoint(installed, backend, namespace)
        pod = engine_pod(promise)
        pod["metadata"] = {**pod["metadata"], "namespace": namespace, "name": promise.backend}
        admitted = await installed.create(pod)
        assert broken(promise, admitted, namespace) == [], admitted
    await installed.request("DELETE", path_of(CacheBackend.resource, namespace))


async def test_the_wrong_sample_is_refused_and_not_stored(installed: Client) -> None:
    namespace = f"s-{uuid.uuid4().hex[:10]}"
    await installed.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    (manifest,) = documents(SAMPLES / "_test" / "cachebackend-invalid-scale-to-zero-no-min.yaml")
    manifest["metadata"]["namespace"] = namespace
    with pytest.raises(Invalid, match=r"spec\.autoscaling\.minReplicas"):
        await installed.apply(manifest)
    with pytest.raises(NotFound):
        await installed.get(CacheBackend, Key(namespace, manifest["metadata"]["name"]))
