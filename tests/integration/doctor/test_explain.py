"""`explain pod` on Pods as a real API server stores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.cli import install
from inferencecache.doctor.explain.observe import WebhookConfiguration
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.kinds import Deployment
from inferencecache.kube.resource import Key, Manifest
from inferencecache.webhooks.injection import inject
from inferencecache.webhooks.kvcache_injection import inject as kvcache_inject
from inferencecache.webhooks.kvcache_injection.handlers import LiveChains
from inferencecache.webhooks.pods import view_of
from tests.integration.controllers.cache_server import engine, own
from tests.integration.doctor.running_doctor import run
from tests.unit.webhooks.kvcache_injection import pools

LABELS = {"app": "engine"}
SPEC: Manifest = {
    "runtime": "VLLM",
    "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
    "engineSelector": {"matchLabels": LABELS},
    "observation": {"modelID": "m"},
}
IMAGE = "example.net/inferencecache:1"


@pytest.fixture(autouse=True)
async def installed(client: Client) -> None:
    await install_crds(client, crds())


async def backend(client: Client, namespace: str, endpoint: str = "kv.x.svc:65432") -> CacheBackend:
    """A backend with an address."""
    key = Key(namespace, "kv")
    await client.apply(own("CacheBackend", key, SPEC))
    await client.patch_status(CacheBackend.resource, key, {"endpoint": endpoint})
    return await client.get(CacheBackend, key)


async def admitted(client: Client, namespace: str, by: CacheBackend) -> None:
    """The Pod `engine-0`, wired as the webhook would wire it, and stored."""
    pod = engine("engine-0", namespace, LABELS)
    runtimes, _ = load_adapters()
    await client.create(inject(pod, view_of(pod), namespace, [by], runtimes, Settings(IMAGE)).pod)


async def explained(control_plane: ControlPlane, namespace: str, *args: object) -> dict[str, Any]:
    ran = await run(
        *("inferencecache", "explain", "pod", "engine-0", "-n", namespace, "-o", "json", *args),
        kubeconfig=control_plane.admin,
    )
    assert (ran.exit, ran.err) == (0, ""), ran
    document: dict[str, Any] = json.loads(ran.out)
    return document


async def test_a_wired_pod_is_as_it_would_be_until_its_backend_changes(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    await admitted(client, namespace, await backend(client, namespace))
    told = await explained(control_plane, namespace, "--kvevent-subscriber-image", IMAGE)
    assert (told["state"], told["drift"]) == ("wired", []), told
    assert [one["verdict"] for one in told["annotations"]] == ["earned", "earned"]
    await backend(client, namespace, "moved.x.svc:65432")
    told = await explained(control_plane, namespace, "--kvevent-subscriber-image", IMAGE)
    assert {one["path"]: one["after"] for one in told["drift"]} == {
        "spec.containers[vllm].env[LMCACHE_REMOTE_URL].value": "lm://moved.x.svc:65432"
    }
    await client.delete(CacheBackend.resource, Key(namespace, "kv"))
    told = await explained(control_plane, namespace)
    assert (told["state"], told["now"]["reason"], told["drift"]) == ("stale", "no_match", [])


async def test_the_image_of_sidecars_is_read_off_the_controllers_deployment(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    await admitted(client, namespace, await backend(client, namespace))
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [
                {
                    "name": "manager",
                    "image": "x",
                    "command": ["inferencecache", "controller"],
                    "args": ["--leader-elect", "--kvevent-subscriber-image=newer:2"],
                }
            ]
        },
    }
    controller = Key(install.NAMESPACE, install.CONTROLLER)
    await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": controller.namespace}})
    await client.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": controller.name, "namespace": controller.namespace},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        }
    )
    told = await explained(control_plane, namespace)
    await client.delete(Deployment.resource, controller)
    assert told["drift"] == [{"path": "spec.containers[kvevent-subscriber].image", "before": IMAGE, "after": "newer:2"}]


async def test_an_unwired_pod_says_what_the_webhook_would_say(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    await client.apply(own("CacheBackend", Key(namespace, "kv"), SPEC))
    await client.create(engine("engine-0", namespace, LABELS))
    told = await explained(control_plane, namespace)
    assert (told["state"], told["now"]["reason"]) == ("unwired", "no_endpoint")
    assert told["backends"][0]["responsible"]
    assert any("is not installed" in note for note in told["notes"])
    configuration = install.webhook_configurations({"url": "https://127.0.0.1:1"})[0]
    configuration["webhooks"] = [one for one in configuration["webhooks"] if one["name"] == "mpod.inferencecache.io"]
    await client.apply(configuration)
    try:
        told = await explained(control_plane, namespace)
    finally:
        await client.delete(WebhookConfiguration.resource, Key("", configuration["metadata"]["name"]))
    assert not any("is not installed" in note for note in told["notes"])


async def test_a_pod_with_a_pool_is_compared_with_what_its_binding_leads_to(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    chain = await pool_chain(client, namespace, "store.x.svc:50051")
    pod = pools.pod("SGLang", annotations={"binding": "b"})
    pod["metadata"] |= {"name": "engine-0", "namespace": namespace}
    await client.create(kvcache_inject(pod, pod["metadata"]["annotations"], namespace, chain, dtype_owned=True).pod)
    told = (await explained(control_plane, namespace))["pool"]
    assert (told["state"], told["against"], told["drift"]) == ("given", [], []), told
    assert told["record"]["domain"] == "d"
    await pool_chain(client, namespace, "moved.x.svc:50051")
    told = (await explained(control_plane, namespace))["pool"]
    assert [(one["path"], one["after"]) for one in told["drift"]] == [
        ("spec.containers[server].env[MOONCAKE_MASTER].value", "moved.x.svc:50051")
    ]
    await client.delete(KVCachePoolBinding.resource, Key(namespace, "b"))
    told = (await explained(control_plane, namespace))["pool"]
    assert "no KVCachePoolBinding of that name" in told["against"][0]


async def pool_chain(client: Client, namespace: str, endpoint: str) -> Chain:
    """A Binding `b` of the namespace, its pool and its store, with the pool at that address."""
    addresses = [{"name": name, "address": "m:1"} for name in ("Client", "Admin")]
    domain = {"name": "d", "blockSize": 16, "dtype": "bfloat16"}
    specs: dict[type[CustomObject], tuple[Key, Manifest]] = {
        KVCacheBackend: (Key("", namespace), {"connection": {"external": {"endpoints": addresses}}}),
        KVCachePool: (Key("", namespace), {"backends": [namespace], "quota": {"total": "1Gi"}}),
        KVCachePoolBinding: (
            Key(namespace, "b"),
            {"poolRef": {"name": namespace}, "quota": {"ceiling": "1Gi"}, "domain": domain},
        ),
    }
    for kind, (key, spec) in specs.items():
        metadata = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})}
        head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, "metadata": metadata}
        await client.apply({**head, "spec": spec})
    ledger = {**pools.LEDGER, "lastTransitionTime": "2026-06-01T12:00:00Z"}
    status = {"conditions": [ledger], "clientEndpoint": endpoint}
    await client.patch_status(KVCachePool.resource, Key("", namespace), status)
    return await LiveChains(client).chain(namespace, "b")


async def test_no_pod_and_nothing_to_explain_is_exit_3(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    ran = await run("inferencecache", "explain", "pod", "nobody", "-n", namespace, kubeconfig=control_plane.admin)
    assert (ran.exit, ran.out) == (3, "")
    assert f"error: there is no Pod {namespace}/nobody" in ran.err


async def test_people_get_text(control_plane: ControlPlane, client: Client, namespace: str) -> None:
    await admitted(client, namespace, await backend(client, namespace))
    ran = await run("inferencecache", "explain", "pod", "pod/engine-0", "-n", namespace, kubeconfig=control_plane.admin)
    assert ran.exit == 0
    assert ran.out.startswith(f"pod/{namespace}/engine-0: wired to CacheBackend {namespace}/kv\n")
