"""What goes wrong in a cluster, done to a running `inferencecache controller` on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.kinds import Deployment, Service
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.operator_process import condition, find, lease_removed, managed, operator, prepare, stays, there


@pytest.fixture
async def kubeconfig(control_plane: ControlPlane, client: Client) -> AsyncIterator[Path]:
    path = await prepare(control_plane, client)
    async with lease_removed(client):
        yield path


async def test_a_foreign_deployment_is_named_and_untouched_until_it_goes(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decisions F1 and F16."""
    key = Key(namespace, "kv")
    labels = {"app": "somebody-else"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    foreign = await client.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kv", "namespace": namespace},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    async with operator(kubeconfig, tmp_path) as running:
        await running.wait_ready()
        await client.create(managed(namespace, "kv"))
        status, _, message = await eventually(lambda: condition(client, key), lambda seen: seen[1] == "ChildConflict")
        assert status == "False"
        assert f"Deployment {key}" in message
        # It tries again and again meanwhile.
        tries = await running.total("controller_runtime_reconcile_errors_total")
        await eventually(
            lambda: running.total("controller_runtime_reconcile_errors_total"), lambda now: now >= tries + 3
        )
        assert await find(client, Deployment, key) == foreign
        assert await find(client, Service, key) is None
        await client.delete(Deployment.resource, key)
        await eventually(lambda: condition(client, key), lambda seen: seen[1] == "RolloutInProgress", seconds=30)
        child = await there(client, Deployment, key)
        assert child["metadata"]["uid"] != foreign["metadata"]["uid"]
        await there(client, Service, key)


async def test_nothing_is_recreated_for_a_backend_that_is_being_deleted(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decision F2, with the deletion of a child right behind that of its owner, and with one in the midst of a pass."""
    names = [f"kv-{number}" for number in range(8)]
    keys = [Key(namespace, name) for name in names]

    async def children() -> list[str]:
        return [
            f"{kind.resource.kind} {key.name}"
            for key in keys
            for kind in (Deployment, Service)
            if await find(client, kind, key) is not None
        ]

    async def barrier(name: str) -> None:
        """A later backend has its children: whatever was queued before it has been looked at."""
        await client.create(managed(namespace, name))
        await there(client, Service, Key(namespace, name))

    async with operator(kubeconfig, tmp_path) as running:
        await running.wait_ready()
        for name in names:
            backend = managed(namespace, name)
            backend["metadata"]["finalizers"] = ["example.io/hold"]
            await client.create(backend)
        for key in keys:
            await there(client, Service, key)
        for key in keys:
            await client.delete(CacheBackend.resource, key)
            await client.delete(Deployment.resource, key)
            await client.delete(Service.resource, key)
        await barrier("later")
        assert await children() == []
        await stays(children, seconds=1)

        for number in range(8):
            torn = managed(namespace, f"torn-{number}")
            torn["metadata"]["finalizers"] = ["example.io/hold"]
            keys.append(Key(namespace, f"torn-{number}"))
            await client.create(torn)
            await client.delete(CacheBackend.resource, keys[-1])
        await barrier("last")
        await stays(children, seconds=1)
        assert running.process.poll() is None
        for key in keys:
            await client.patch(CacheBackend.resource, key, {"metadata": {"finalizers": None}})
