"""The reconciler against a real API server: foreign objects, StatefulSets, steady state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api import crds
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers import register
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Deployment, Service, StatefulSet
from inferencecache.kube.manager import Manager, Options
from inferencecache.kube.resource import Key, Kind
from tests.integration.kube.waiting import eventually


@pytest.fixture
async def operator(client: Client) -> AsyncIterator[Manager]:
    await install_crds(client, crds())
    options = Options(metrics_address="0", health_address="0", handle_signals=False)
    manager = Manager(Client(client.connection, field_manager="inferencecache-controller"), options=options)
    register(manager, registries=load_adapters())
    running = asyncio.create_task(manager.run())
    yield manager
    manager.stop()
    await running


def managed(namespace: str, **spec: Any) -> dict[str, Any]:
    storage = {"provider": "LMCacheServer", "ownership": "Managed"}
    return {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {"name": "kv", "namespace": namespace},
        "spec": {"runtime": "VLLM", "remoteStorage": storage, **spec},
    }


async def reason(client: Client, key: Key) -> str:
    found = (await client.get(CacheBackend, key)).status.conditions or ()
    return next((one.reason for one in found if one.type == "Ready"), "")


async def test_a_foreign_service_is_named_and_left_alone(client: Client, namespace: str, operator: Manager) -> None:
    """Decision F1."""
    key = Key(namespace, "kv")
    spec = {"ports": [{"port": 80}], "selector": {"app": "other"}}
    await client.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kv", "namespace": namespace}} | {"spec": spec}
    )
    await client.create(managed(namespace))
    await eventually(lambda: reason(client, key), lambda seen: seen == "ChildConflict")
    assert (await client.get(Service, key)).spec["selector"] == {"app": "other"}
    assert not (await client.get(CacheBackend, key)).status.endpoint
    await client.delete(Service.resource, key)
    await eventually(lambda: reason(client, key), lambda seen: seen == "RolloutInProgress")


async def test_a_change_of_kind_replaces_the_workload(client: Client, namespace: str, operator: Manager) -> None:
    """Decision F9."""
    key = Key(namespace, "kv")

    async def exists(kind: type[Kind]) -> bool:
        try:
            await client.get_manifest(kind.resource, key)
        except NotFound:
            return False
        return True

    async def kinds() -> tuple[bool, bool]:
        return await exists(Deployment), await exists(StatefulSet)

    await client.create(managed(namespace, deploymentKind="StatefulSet"))
    await eventually(kinds, lambda seen: seen == (False, True))
    stateful = await client.get(StatefulSet, key)
    await asyncio.sleep(1)
    assert (await client.get(StatefulSet, key)).metadata.resource_version == stateful.metadata.resource_version
    await client.patch(CacheBackend.resource, key, {"spec": {"deploymentKind": "Deployment"}})
    await eventually(kinds, lambda seen: seen == (True, False))
