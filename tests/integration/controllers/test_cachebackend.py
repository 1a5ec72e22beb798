"""The reconciler against a real API server: foreign objects, StatefulSets, steady state."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import register
from inferencecache.controllers.cachebackend.act import Actor, child_informers
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Service, StatefulSet
from inferencecache.kube.manager import Manager
from inferencecache.kube.owner import OwnerIsLeaving
from inferencecache.kube.resource import Key, Kind, Manifest, path_of
from tests.integration.controllers.rest import at_rest, passes
from tests.integration.kube.waiting import eventually
from tests.integration.operating import quiet_manager, running


class Counting(Client):
    """A client that remembers its requests, as `METHOD path`."""

    asked: Counter[str]

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        self.asked[f"{method} {path}"] += 1
        return await super().request(method, path, **more)


@pytest.fixture
def counting(client: Client) -> Counting:
    counting = Counting(client.connection, field_manager="inferencecache-controller")
    counting.asked = Counter()
    return counting


@pytest.fixture
async def operator(client: Client, counting: Counting) -> AsyncIterator[Manager]:
    await install_crds(client, crds())
    manager = quiet_manager(counting)
    register(manager, registries=load_adapters())
    async with running(manager):
        yield manager


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


async def resting(client: Client, namespace: str, operator: Manager, kind: type[Kind]) -> list[Manifest]:
    """The objects of a kind once the operator is at rest."""
    kinds = (CacheBackend, Deployment, StatefulSet, Service, HorizontalPodAutoscaler)

    async def look() -> dict[str, list[Manifest]]:
        return {
            one.resource.kind: json.loads(await client.request("GET", path_of(one.resource, namespace)))["items"]
            for one in kinds
        }

    found = await eventually(look, lambda live: at_rest(operator, namespace, live))
    return found[kind.resource.kind]


def _now(read: Callable[[], float]) -> Callable[[], Awaitable[float]]:
    async def look() -> float:
        return read()

    return look


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
    stateful = await resting(client, namespace, operator, StatefulSet)
    before = passes()
    await client.patch(CacheBackend.resource, key, {"metadata": {"annotations": {"touched": "yes"}}})
    await eventually(_now(passes), lambda now: now > before)
    assert await resting(client, namespace, operator, StatefulSet) == stateful, "a pass changes nothing"
    await client.patch(CacheBackend.resource, key, {"spec": {"deploymentKind": "Deployment"}})
    await eventually(kinds, lambda seen: seen == (True, False))


async def test_a_birth_costs_a_look_at_the_backend_and_a_write_for_each_object(
    client: Client, namespace: str, operator: Manager, counting: Counting
) -> None:
    await client.create(managed(namespace, autoscaling={"minReplicas": 2, "maxReplicas": 3}))
    await eventually(lambda: reason(client, Key(namespace, "kv")), lambda seen: seen == "RolloutInProgress")
    await resting(client, namespace, operator, Deployment)
    backend = path_of(CacheBackend.resource, namespace, "kv")
    children = [path_of(kind.resource, namespace, "kv") for kind in (Deployment, Service, HorizontalPodAutoscaler)]
    # Other tests' backends of this name may still be there.
    ours = re.compile(rf".*/namespaces/{namespace}/.*/kv(/status)?")
    asked = {request: count for request, count in counting.asked.items() if ours.fullmatch(request)}
    assert asked == {f"GET {backend}": 1, f"PATCH {backend}/status": 1, **{f"PATCH {path}": 1 for path in children}}


class Interfering(Counting):
    """Somebody else says something of a backend right before our first word of it arrives."""

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if path.endswith("cachebackends/kv/status") and not self.asked[f"{method} {path}"]:
            said = {"type": "SaidByOthers", "status": "True", "reason": "Test", "message": ""}
            conditions = [{**said, "lastTransitionTime": "2026-01-02T03:04:05Z"}]
            other = Client(self.connection, field_manager="other")
            key = Key(path.split("/")[-4], "kv")
            await other.patch_status(CacheBackend.resource, key, {"conditions": conditions})
        return await super().request(method, path, **more)


async def test_a_status_takes_back_nothing_that_was_said_since_it_was_decided(client: Client, namespace: str) -> None:
    await install_crds(client, crds())
    interfering = Interfering(client.connection, field_manager="inferencecache-controller")
    interfering.asked = Counter()
    manager = quiet_manager(interfering)
    register(manager, registries=load_adapters())
    key = Key(namespace, "kv")
    async with running(manager):
        await client.create(managed(namespace))
        await eventually(lambda: reason(client, key), lambda seen: seen == "RolloutInProgress")
    assert "SaidByOthers" in {one.type for one in (await client.get(CacheBackend, key)).status.conditions or ()}
    path = path_of(CacheBackend.resource, namespace, "kv")
    assert interfering.asked[f"PATCH {path}/status"] == 2, "one is refused, and the next knows why"


@pytest.mark.parametrize("fate", ["gone", "leaving", "namesake"])
async def test_no_child_is_written_for_a_backend_that_leaves_unheard_of(
    client: Client, namespace: str, fate: str
) -> None:
    """Decision F2: what the cache says of the backend may be old, and the deletion of a child is heard first."""
    await install_crds(client, crds())
    key = Key(namespace, "kv")
    manifest = managed(namespace)
    if fate == "leaving":
        manifest["metadata"]["finalizers"] = ["test.dev/hold"]
    cached = CacheBackend.decode(await client.create(manifest))
    await client.delete(CacheBackend.resource, key)
    if fate == "namesake":
        await client.create(manifest)
    actor = Actor(client, child_informers(Cache(client)))
    with pytest.raises(OwnerIsLeaving):
        await actor.act(cached, plan_for(cached, *load_adapters()))
    for kind in (Deployment, Service):
        assert await client.list(kind, namespace=namespace) == []
    if fate == "leaving":
        await client.patch(CacheBackend.resource, key, {"metadata": {"finalizers": None}})
