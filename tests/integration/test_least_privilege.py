"""Roles grant what is used, and nothing more: the operator lives through all it does while an API server takes notes.

It runs with its own ServiceAccount under the roles that `manifests/default` installs. What it was refused, it needs;
what it never asked for has to be taken from the roles, or be explained here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.cli.install import CERTIFICATE_SECRET, CONTROLLER, NAMESPACE
from inferencecache.cli.trial import Trial, trial
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Secret, Service, StatefulSet
from inferencecache.kube.resource import Key, Kind, path_of
from tests.integration.audit import Audit, Use, covers, granted
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually
from tests.integration.kustomized import MANIFESTS, built
from tests.integration.operator_process import find, there

USER = f"system:serviceaccount:{NAMESPACE}:{CONTROLLER}"

# Granted, needed, and not to be seen here, with the reason.
UNSEEN = {
    Use("update", "inferencecache.io", "cachebackends/finalizers"): (
        "checked within an apply, when an owner reference blocks its owner's deletion and the API server enforces it"
    ),
}
# The same, but where the API server's watches lag one or the other may be seen.
BY_CHANCE = {
    Use("get", "inferencecache.io", told): "read again when a write of the status met somebody else's"
    for told in ("cacheindices", "cachetenants", "pdtopologies", "prompttemplates")
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return Audit(tmp_path_factory.mktemp("audit"))


@contextlib.asynccontextmanager
async def living(audit: Audit) -> AsyncIterator[Trial]:
    """An installation of its own, on an API server that also guards owner references."""
    guard = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
    with ControlPlane(apiserver_flags=[*audit.flags, guard]) as plane:
        async with trial(plane) as installed:
            yield installed


async def test_the_controller_uses_all_its_rights_and_needs_no_others(audit: Audit) -> None:
    async with living(audit) as installed:
        await the_life_of_backends(installed.client)
        await a_backend_on_a_pool(installed.client)
        await what_the_server_is_told(installed.client)
        await a_certificate_that_somebody_spoilt(installed.client)
    used, refused = audit.used(USER), audit.refused(USER)
    grants = granted(built(MANIFESTS / "default"), CONTROLLER)
    assert sorted(map(str, refused)) == []
    half = {grant for grant in grants if "inference-cache-pools" not in grant and "worker.gpustack.ai" not in grant}
    idle = {grant for grant in half if not any(covers(grant, use) for use in used)}
    assert sorted(map(str, idle - UNSEEN.keys() - BY_CHANCE.keys())) == []
    assert sorted(map(str, UNSEEN.keys() - idle)) == [], "these are seen after all"


async def the_life_of_backends(client: Client) -> None:
    """Children come, change and go; engines are rolled; there are Events about all of it."""
    namespace = "lives"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    world, key = World(client, namespace), Key(namespace, "kv")
    autoscaling = {"minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70}
    selector = {"matchLabels": {"app": "mine"}}
    await client.create(managed(namespace, autoscaling=autoscaling, engineSelector=selector))
    for kind in (Deployment, Service, HorizontalPodAutoscaler):
        await there(client, kind, key)
    await world.store_pod("a")
    await world.rolled_out("kv")
    await becomes_ready(client, key)
    await world.engine("mine")
    await world.report("a", restarts=1)
    await eventually(lambda: world.mark("mine"), bool)

    await change(client, key, autoscaling=None)
    await gone(client, HorizontalPodAutoscaler, key)
    await change(client, key, deploymentKind="StatefulSet")
    await there(client, StatefulSet, key)
    await gone(client, Deployment, key)
    await change(client, key, deploymentKind="Deployment")
    await gone(client, StatefulSet, key)
    await change(client, key, remoteStorage=None)
    await gone(client, Service, key)
    await client.delete(CacheBackend.resource, key)
    await something_is_told_twice(client, namespace)


async def a_backend_on_a_pool(client: Client) -> None:
    """It carries a finalizer, which is on the backend itself and not on its status."""
    key = Key("lives", "on-pool")
    storage = {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": "team-a"}}
    await client.create(managed(key.namespace, key.name, remoteStorage=storage))

    async def finalizers() -> Any:
        return (await client.get_manifest(CacheBackend.resource, key))["metadata"].get("finalizers")

    await eventually(finalizers, bool)
    await client.delete(CacheBackend.resource, key)
    await gone(client, CacheBackend, key)


async def something_is_told_twice(client: Client, namespace: str) -> None:
    """The same Event again is a patch of the first, once that is there; what changes back unseen is not told."""
    key = Key(namespace, "closed")
    await client.create(managed(namespace, "closed", remoteStorage=None))
    for count in (1, 2):
        for fail_open, reason in ((False, "FailClosedEnabled"), (True, "FailOpenRestored")):
            await change(client, key, integration={"failOpen": fail_open})
            await eventually(
                lambda reason=reason: times_told(client, key, reason), lambda seen, count=count: seen == [count]
            )


async def a_certificate_that_somebody_spoilt(client: Client) -> None:
    key = Key(NAMESPACE, CERTIFICATE_SECRET)
    await client.patch(Secret.resource, key, {"data": {"tls.crt": ""}})
    await eventually(lambda: certificate(client, key), bool)


async def certificate(client: Client, key: Key) -> str:
    found = await client.get_manifest(Secret.resource, key)
    return str(found["data"]["tls.crt"])


async def times_told(client: Client, key: Key, reason: str) -> list[int]:
    """How often each Event about an object was said that gives a reason."""
    found = json.loads(await client.request("GET", path_of(EVENTS, key.namespace)))["items"]
    about = [one for one in found if one["regarding"]["name"] == key.name and one["reason"] == reason]
    return [one.get("series", {"count": 1})["count"] for one in about]


async def what_the_server_is_told(client: Client) -> None:
    """The kinds that are read and told something, from the samples."""
    for sample in ("cachetenant", "cachepolicy", "prompttemplate", "pdtopology"):
        manifest = yaml.safe_load((MANIFESTS / "samples" / f"cache_v1alpha1_{sample}.yaml").read_text())
        manifest["metadata"]["namespace"] = "lives"
        await client.create(manifest)
    told: list[tuple[type[Any], Key]] = [
        (CacheTenant, Key("lives", "cachetenant-sample")),
        (PromptTemplate, Key("lives", "prompttemplate-sample")),
        (PDTopology, Key("lives", "pdtopology-sample")),
        (CacheIndex, Key("", "cluster-default")),
    ]
    for kind, key in told:
        await eventually(lambda kind=kind, key=key: status_of(client, kind, key), bool)


async def becomes_ready(client: Client, key: Key) -> None:
    async def ready() -> str:
        found = (await client.get(CacheBackend, key)).status.conditions or ()
        return next((f"{one.status} {one.message}" for one in found if one.type == "Ready"), "")

    await eventually(ready, lambda seen: seen.startswith("True"))


async def change(client: Client, key: Key, **spec: Any) -> None:
    await client.patch(CacheBackend.resource, key, {"spec": spec})


async def gone(client: Client, kind: type[Kind], key: Key) -> None:
    await eventually(lambda: find(client, kind, key), lambda found: found is None)


async def status_of(client: Client, kind: type[Kind], key: Key) -> Any:
    return (await find(client, kind, key) or {}).get("status")


def test_the_server_may_review_tokens_and_nothing_else() -> None:
    grants = granted(built(MANIFESTS / "default"), "inference-cache-server")
    assert grants == {Use("create", "authentication.k8s.io", "tokenreviews")}
