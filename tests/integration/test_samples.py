"""Each sample does in a real API server, beside the running operator, what the table in `tests/samples.py` promises."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import KINDS
from inferencecache.api.kvcachechain import ledger_of
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.cli import trial
from inferencecache.cli.processes import child
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import Invalid, NotFound
from inferencecache.kube.resource import Key, path_of
from tests.integration.kube.waiting import eventually
from tests.integration.operator_process import patient_webhooks
from tests.mooncake import Master
from tests.samples import (
    POOL_PROMISES,
    PROMISES,
    SAMPLES,
    STORE,
    STORE_ADMIN,
    SUBSCRIBER_IMAGE,
    Manifest,
    broken,
    broken_pool,
    documents,
    engine_pod,
    pooled_pod,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE_FILES = sorted(SAMPLES.glob("*.yaml"))
ON_A_STORE = {  # of somebody else, which has to answer
    path.stem
    for path in SAMPLE_FILES
    if STORE_ADMIN in path.read_text() and any(one["kind"] == "KVCachePool" for one in documents(path))
}
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
                await patient_webhooks(client)
                yield client


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    """The store that pools of samples rest on."""
    with Master(tmp_path) as running:
        yield running


async def applied(client: Client, manifests: list[Manifest]) -> str:
    """Apply a sample, in a fresh namespace unless it names its own; the namespace of its backends."""
    fresh = f"s-{uuid.uuid4().hex[:10]}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": fresh}})
    own = ""
    for manifest in manifests:
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

    return await eventually(published, bool)


@pytest.mark.parametrize(
    "path", [path for path in SAMPLE_FILES if path.stem not in ON_A_STORE], ids=lambda path: path.stem
)
async def test_a_sample_is_admitted_and_wires_its_engines(installed: Client, path: Path) -> None:
    namespace = await applied(installed, documents(path))
    await wires_its_engines(installed, path, namespace)
    await installed.request("DELETE", path_of(CacheBackend.resource, namespace))


@pytest.mark.parametrize("sample", sorted(ON_A_STORE))
async def test_a_sample_on_a_pool_is_admitted_and_wires_its_engines(
    installed: Client, master: Master, sample: str
) -> None:
    path = SAMPLES / f"{sample}.yaml"
    manifests = [on(master, manifest) for manifest in documents(path)]
    namespace = await applied(installed, manifests)
    pool = Key("", next(one["metadata"]["name"] for one in manifests if one["kind"] == "KVCachePool"))

    async def served() -> bool:
        seen = await installed.get(KVCachePool, pool)
        return bool(seen.status.client_endpoint) and (ledger := ledger_of(seen)) is not None and ledger.status == "True"

    await eventually(served, bool, seconds=60)
    await wires_its_engines(installed, path, namespace, master.client)
    for promise in [one for one in POOL_PROMISES if one.sample == sample]:
        pod = pooled_pod(promise)
        pod["metadata"]["namespace"] = namespace
        admitted = await installed.create(pod)
        assert broken_pool(promise, admitted, master.client) == [], admitted
    await installed.request("DELETE", path_of(CacheBackend.resource, namespace))


def on(master: Master, manifest: Manifest) -> Manifest:
    """A manifest of a sample whose store is this master."""
    text = json.dumps(manifest).replace(STORE, master.client).replace(STORE_ADMIN, master.admin)
    found: Manifest = json.loads(text)
    return found


async def wires_its_engines(client: Client, path: Path, namespace: str, store: str = STORE) -> None:
    """Hold what the table promises of each backend of a sample."""
    for promise in [one for one in PROMISES if one.sample == path.stem]:
        backend = next(
            one
            for one in documents(path)
            if (one["kind"], one["metadata"]["name"]) == ("CacheBackend", promise.backend)
        )
        await endpoint(client, backend, namespace)
        pod = engine_pod(promise)
        pod["metadata"] = {**pod["metadata"], "namespace": namespace, "name": promise.backend}
        admitted = await client.create(pod)
        assert broken(promise, admitted, namespace, store) == [], admitted


async def test_the_wrong_sample_is_refused_and_not_stored(installed: Client) -> None:
    namespace = f"s-{uuid.uuid4().hex[:10]}"
    await installed.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    (manifest,) = documents(SAMPLES / "_test" / "cachebackend-invalid-scale-to-zero-no-min.yaml")
    manifest["metadata"]["namespace"] = namespace
    with pytest.raises(Invalid, match=r"spec\.autoscaling\.minReplicas"):
        await installed.apply(manifest)
    with pytest.raises(NotFound):
        await installed.get(CacheBackend, Key(namespace, manifest["metadata"]["name"]))
