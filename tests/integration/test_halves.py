"""Either half of the operator runs alone: its kinds live, those of the other half are left as they are, yet judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.cli.install import POOL_NAMESPACE
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Deployment
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.operator_process import Operator, managed, operator, prepare
from tests.unit.webhooks.reviews import review_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORE: dict[str, Any] = {
    "apiVersion": "worker.gpustack.ai/v1",
    "kind": "KVCacheBackend",
    "metadata": {"name": "store"},
    "spec": {
        "connection": {
            "managed": {
                "leader": {},
                "members": [{"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "1Gi"}],
            }
        }
    },
}
CACHE = managed("default", "cache")
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
_CACHE_PODS, _POOL_PODS = "/mutate--v1-pod", "/mutate-kvcache--v1-pod"
_CACHE_KINDS = "/validate-inferencecache-io-v1alpha1-cachebackend"
_POOL_KINDS = "/validate-worker-gpustack-ai-v1-kvcachebackend"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Client, Path]]:
    """A control plane of its own, with one object of each half."""
    with ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="test")
            kubeconfig = await prepare(plane, client)
            await client.create(STORE)
            await client.create(CACHE)
            yield client, kubeconfig


async def answers(running: Operator, path: str, obj: dict[str, Any]) -> int:
    """The HTTP status of a webhook."""
    body = json.dumps(review_of(obj, "default")).encode()
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=insecure)) as session,
        session.post(
            f"https://127.0.0.1:{running.ports.webhook}{path}",
            data=body,
            headers={"Content-Type": "application/json"},
        ) as response,
    ):
        return response.status


async def served(running: Operator) -> dict[str, int]:
    objects = {_CACHE_PODS: POD, _POOL_PODS: POD, _CACHE_KINDS: CACHE, _POOL_KINDS: STORE}
    return {path: await answers(running, path, obj) for path, obj in objects.items()}


async def exists(client: Client, namespace: str, name: str) -> bool:
    with contextlib.suppress(NotFound):
        await client.get(Deployment, Key(namespace, name))
        return True
    return False


async def test_without_pools_caches_live_and_stores_are_left_alone(
    installed: tuple[Client, Path], tmp_path: Path
) -> None:
    client, kubeconfig = installed
    async with operator(kubeconfig, tmp_path, "--no-enable-kv-cache-pools", elect=False) as running:
        await running.wait_ready()
        assert await served(running) == {_CACHE_PODS: 200, _POOL_PODS: 200, _CACHE_KINDS: 200, _POOL_KINDS: 200}
        await eventually(lambda: exists(client, "default", "cache"), bool)
        metrics = await running.metrics()
        assert 'controller="cachebackend"' in metrics
        assert 'controller="kvcachebackend"' not in metrics
    assert not (await client.get(KVCacheBackend, Key("", "store"))).metadata.finalizers
    await client.delete(Deployment.resource, Key("default", "cache"))


async def test_without_caches_stores_live_and_caches_are_left_alone(
    installed: tuple[Client, Path], tmp_path: Path
) -> None:
    client, kubeconfig = installed
    before = await client.get_manifest(CacheBackend.resource, Key("default", "cache"))
    async with operator(kubeconfig, tmp_path, "--enable-cache-backends=false", elect=False) as running:
        await running.wait_ready()
        assert await served(running) == {_CACHE_PODS: 404, _POOL_PODS: 200, _CACHE_KINDS: 200, _POOL_KINDS: 200}
        await eventually(lambda: exists(client, POOL_NAMESPACE, "store-leader"), bool)
        metrics = await running.metrics()
        assert 'controller="kvcachepool"' in metrics
        assert 'controller="cachebackend"' not in metrics
    assert not await exists(client, "default", "cache")
    assert await client.get_manifest(CacheBackend.resource, Key("default", "cache")) == before


async def test_a_controller_without_either_half_says_so_and_ends(
    installed: tuple[Client, Path], tmp_path: Path
) -> None:
    _, kubeconfig = installed
    flags = ("--enable-cache-backends=false", "--enable-kv-cache-pools=false")
    async with operator(kubeconfig, tmp_path, *flags, elect=False) as running:
        assert await running.wait_ended(seconds=60) == 1
        said = await asyncio.to_thread(running.log.read_text)
    assert "leave nothing to do" in said
