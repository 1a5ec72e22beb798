"""Pods with a pool on a real API server, through both webhooks as an installation configures them (spec 10 §12.1)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.cli.install import webhook_configurations
from inferencecache.kube import pki
from inferencecache.kube.client import Client
from inferencecache.kube.errors import ApiError, Invalid
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key, Manifest, path_of
from inferencecache.webhooks.app import ObjectEndpoint
from inferencecache.webhooks.kvcache_injection.handlers import LiveChains, PoolInjection
from inferencecache.webhooks.server import WebhookServer
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.listening import PATIENCE, patient
from tests.integration.kvcache.pool_world import World
from tests.unit.webhooks.kvcache_injection.pools import ENDPOINT, PREFIX, pod

LEDGER = {
    "type": "QuotaLedgerAvailable",
    "status": "True",
    "reason": "Available",
    "message": "the ledger answers",
    "lastTransitionTime": "2026-11-30T11:00:00Z",
}


@pytest.fixture
async def port(client: Client) -> AsyncIterator[tuple[int, str]]:
    """The port of a listener with both webhooks, and the CA of its certificate."""
    now = datetime.now(UTC)
    ca = pki.make_ca("test", now=now, lifetime=timedelta(hours=1))
    serving = pki.issue(ca, ["127.0.0.1"], now=now, lifetime=timedelta(hours=1))
    app = FastAPI()
    for path, handler in PoolInjection(LiveChains(client, timeout=PATIENCE)).paths.items():
        app.router.routes.append(Route(path, ObjectEndpoint(path, handler, PATIENCE), methods=["POST"]))
    server = WebhookServer(app, host="127.0.0.1", port=0, tls=pki.server_context(serving))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        await server.started.wait()
        yield server.bound_port, base64.b64encode(ca.certificate).decode()
        running.cancel()


def for_pods_of(namespace: str, port: int, ca: str) -> list[Manifest]:
    """The configurations of an installation: their two webhooks of Pods with a pool, for one namespace."""
    found = []
    for configuration in webhook_configurations({"url": f"https://127.0.0.1:{port}", "caBundle": ca}):
        configuration["webhooks"] = [one for one in configuration["webhooks"] if "podkvcache" in one["name"]]
        for webhook in configuration["webhooks"]:
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        configuration["metadata"]["name"] = f"{namespace}-{configuration['kind'].lower()}"
        found.append(patient(configuration))
    return found


@pytest.fixture
async def configured(client: Client, namespace: str, port: tuple[int, str]) -> AsyncIterator[None]:
    """The webhooks are called for Pods of the test's namespace."""
    configurations = for_pods_of(namespace, *port)
    plain = labelled(namespace)
    plain["metadata"] |= {"name": "plain", "labels": {}, "annotations": {}}
    key = Key(namespace, (await client.create(plain))["metadata"]["name"])
    try:
        for configuration in configurations:
            await client.create(configuration)
        # The API server hears of either at its own time.
        await eventually(lambda: refused(client, labelled(namespace)), lambda said: PREFIX in said)
        await eventually(lambda: frozen(client, key), bool)
        await client.delete(Pod.resource, key)
        yield
    finally:
        for configuration in configurations:
            resource, key = await client.locate(configuration)
            with contextlib.suppress(ApiError):
                await client.delete(resource, key)


def labelled(namespace: str, engine: str = "vLLM", **changed: Any) -> Manifest:
    """A Pod that asks for a pool; there is no Binding of that name before a test makes one."""
    given = pod(engine, **changed)
    given["metadata"] |= {"namespace": namespace}
    return given


async def refused(client: Client, manifest: Manifest) -> str:
    """What the API server says against creating an object; empty if nothing."""
    try:
        await client.request(
            "POST",
            f"/api/v1/namespaces/{manifest['metadata']['namespace']}/pods",
            body=manifest,
            params={"dryRun": "All"},
        )
    except ApiError as error:
        return str(error)
    return ""


async def frozen(client: Client, pod: Key) -> bool:
    """Whether a Pod that runs may not be given the label."""
    path = path_of(Pod.resource, pod.namespace, pod.name)
    label = {"metadata": {"labels": {f"{PREFIX}inject": "true"}}}
    merged = "application/merge-patch+json"
    try:
        await client.request("PATCH", path, body=label, params={"dryRun": "All"}, content_type=merged)
    except Invalid:
        return True
    return False


@pytest.fixture
async def served(world: World, configured: None) -> World:
    """A Binding whose pool is served."""
    await world.backend(admin="admin:9003", managed=True)
    pool = await world.pool()
    status = {"clientEndpoint": ENDPOINT, "conditions": [LEDGER]}
    await world.client.patch_status(KVCachePool.resource, pool, status)
    await world.binding("team-a", domain="qwen-72b-v2")
    return world


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
async def test_the_api_server_takes_a_pod_with_its_pool_and_shows_the_record(served: World, engine: str) -> None:
    manifest = await served.client.create(labelled(served.namespace, engine))
    container = manifest["spec"]["containers"][0]
    assert container["args"][-2 if engine == "vLLM" else -3 :][:2] == ["--kv-cache-dtype", "bfloat16"]
    record = json.loads(manifest["metadata"]["annotations"][f"{PREFIX}injected"])
    assert (record["domain"], record["tenantInjected"]) == ("qwen-72b-v2", True)
    if engine == "vLLM":
        volume = next(one for one in manifest["spec"]["volumes"] if one["name"] == "gpustack-kvcache-config")
        (item,) = volume["downwardAPI"]["items"]
        assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{PREFIX}client-config']"
        assert json.loads(manifest["metadata"]["annotations"][f"{PREFIX}client-config"])["tenant_id"] == "qwen-72b-v2"


async def test_the_pod_of_another_namespaces_binding_is_refused(served: World) -> None:
    said = await refused(served.client, labelled(served.namespace, annotations={"binding": "team-b"}))
    assert f"namespace {served.namespace} has no KVCachePoolBinding of that name" in said


async def test_the_binding_is_read_live(served: World) -> None:
    await served.delete(KVCachePoolBinding, Key(served.namespace, "team-a"))
    said = await refused(served.client, labelled(served.namespace))
    assert "has no KVCachePoolBinding" in said


async def test_a_pool_without_its_ledger_is_told_with_the_reason_it_gives(served: World) -> None:
    gone = {**LEDGER, "status": "False", "reason": "LedgerUnreachable", "message": "connection refused"}
    pool = Key("", served.named("pool"))
    await served.client.patch_status(KVCachePool.resource, pool, {"conditions": [gone]})
    said = await refused(served.client, labelled(served.namespace))
    assert "LedgerUnreachable: connection refused" in said


async def test_a_pod_without_the_label_is_none_of_the_webhooks_business(served: World) -> None:
    plain = labelled(served.namespace, annotations={"nonsense": "x"})
    plain["metadata"]["labels"] = {f"{PREFIX}inject": "false"}
    created = await served.client.create(plain)
    assert created["metadata"]["annotations"] == plain["metadata"]["annotations"]
    assert created["spec"]["containers"][0].get("args") is None


async def test_what_was_decided_is_frozen_and_everything_else_may_change(served: World) -> None:
    created = await served.client.create(labelled(served.namespace))
    key = Key(served.namespace, created["metadata"]["name"])

    async def patch(**metadata: Any) -> None:
        await served.client.patch(Pod.resource, key, {"metadata": metadata})

    for metadata in (
        {"labels": {f"{PREFIX}inject": "false"}},
        {"labels": {f"{PREFIX}inject": None}},
        {"annotations": {f"{PREFIX}injected": "{}"}},
        {"annotations": {f"{PREFIX}client-config": None}},
    ):
        with pytest.raises(Invalid, match="change the Pod template instead"):
            await patch(**metadata)
    await patch(labels={"app": "x"}, annotations={f"{PREFIX}role": "Decode"}, finalizers=["example.com/held"])
    await served.client.delete(Pod.resource, key)
    with pytest.raises(Invalid, match="change the Pod template instead"):  # it still serves
        await patch(annotations={f"{PREFIX}client-config": "{}"})
    await patch(finalizers=None)


async def test_a_running_pod_cannot_be_given_the_label_or_a_record(served: World) -> None:
    plain = labelled(served.namespace)
    plain["metadata"] |= {"labels": {}, "annotations": {}}
    created = await served.client.create(plain)
    key = Key(served.namespace, created["metadata"]["name"])
    for metadata in ({"labels": {f"{PREFIX}inject": "true"}}, {"annotations": {f"{PREFIX}injected": "{}"}}):
        with pytest.raises(Invalid, match="change the Pod template instead"):
            await served.client.patch(Pod.resource, key, {"metadata": metadata})


async def test_without_the_operator_labelled_pods_wait_and_injected_ones_can_be_let_go(
    served: World, client: Client, namespace: str, port: tuple[int, str]
) -> None:
    created = await client.create(labelled(namespace))
    key = Key(namespace, created["metadata"]["name"])
    await client.patch(Pod.resource, key, {"metadata": {"finalizers": ["example.com/held"]}})
    for configuration in for_pods_of(namespace, 1, port[1]):  # nobody listens there
        resource, where = await client.locate(configuration)
        await client.patch(resource, where, {"webhooks": configuration["webhooks"]})
    other = labelled(namespace)
    other["metadata"]["name"] = "chat-1"
    said = await eventually(lambda: refused(client, other), lambda told: "failed calling webhook" in told)
    assert "mpodkvcache.worker.gpustack.ai" in said
    await client.delete(Pod.resource, key)
    await client.patch(Pod.resource, key, {"metadata": {"finalizers": None}})
