"""What `kubectl apply -k` would install, the installation and each overlay, is accepted by a real API server."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from inferencecache.adapters.registry import Settings as SidecarSettings
from inferencecache.adapters.subscriber import subscriber_container, token_volume
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.cli.install import MANAGER_ROLE, NAMESPACE, POOL_NAMESPACE
from inferencecache.cli.main import app
from inferencecache.controllers.kvcachebackend.objects import Settings
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.kube.certificates import ValidatingWebhookConfiguration, ca_bundle_patch
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.errors import Forbidden, Invalid
from inferencecache.kube.kinds import Namespace
from inferencecache.kube.resource import Key
from tests.integration.kustomized import MANIFESTS, built, container, crds_of_others, named

FOLDERS = [MANIFESTS / "default", *sorted((MANIFESTS / "overlays").iterdir())]
VALIDATING = ValidatingWebhookConfiguration.resource
CONTROLLER, SERVER = "inference-cache-controller-manager", "inference-cache-server"

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def overlay(name: str) -> list[dict[str, Any]]:
    return built(MANIFESTS / "overlays" / name)


def pods_of(manifests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A Pod of each Deployment."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": one["metadata"]["name"],
                "namespace": one["metadata"]["namespace"],
                "labels": one["spec"]["template"]["metadata"]["labels"],
            },
            "spec": one["spec"]["template"]["spec"],
        }
        for one in manifests
        if one["kind"] == "Deployment"
    ]


@each_folder
async def test_it_is_accepted_and_its_pods_are_admitted(client: Client, folder: Path) -> None:
    manifests = built(folder)
    kinds = [one for one in manifests if one["kind"] == "CustomResourceDefinition"]
    await install_crds(client, [*kinds, *crds_of_others()])
    for manifest in (one for one in manifests if one["kind"] == "Namespace"):
        await client.apply(manifest)
    # A dry run, as this control plane is shared: nobody would answer the webhooks, and roles are for other tests. Of an
    # overlay, what it shares with the installation was looked at there.
    known = [] if folder.name == "default" else built(MANIFESTS / "default")
    for manifest in [*manifests, *pods_of(manifests)]:
        if manifest not in known:
            await client.apply(manifest, dry_run=True)


@each_folder
def test_every_flag_exists(folder: Path) -> None:
    ours = [one["spec"]["containers"][0] for one in pods_of(built(folder)) if "inferencecache" in str(one["spec"])]
    commands = [one for one in ours if one["command"][0] == "inferencecache"]
    assert commands
    for one in commands:
        (name,) = one["command"][1:]
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        command.make_context(name, list(one["args"]))


@each_folder
def test_every_selector_finds_pods_and_every_reference_an_object(folder: Path) -> None:
    manifests = built(folder)
    pods = [*pods_of(manifests), a_leader_of_a_store()]
    labels = [set(pod["metadata"]["labels"].items()) for pod in pods]
    for one in manifests:
        selector = selector_of(one)
        assert selector is None or any(set(selector.items()) <= have for have in labels), one["metadata"]["name"]
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    roles = {(one["kind"], one["metadata"]["name"]) for one in manifests if one["kind"].endswith("Role")}
    for one in manifests:
        if one["kind"].endswith("RoleBinding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in roles
            assert {subject["name"] for subject in one["subjects"]} <= accounts


def a_leader_of_a_store() -> dict[str, Any]:
    """A Pod that the operator will run where stores are."""
    backend = yaml.safe_load((MANIFESTS / "samples" / "worker_v1_kvcachebackend.yaml").read_text())
    rendered = render(KVCacheBackend.decode(backend), Settings(POOL_NAMESPACE, "store:1"))
    (pod,) = pods_of(rendered)
    return pod


def test_the_admin_port_of_a_store_is_closed_to_engines() -> None:
    policy = named(built(MANIFESTS / "default"), "NetworkPolicy", "inference-cache-stores")
    ports = {port["name"] for port in a_leader_of_a_store()["spec"]["containers"][0]["ports"]}
    open_to = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert open_to.keys() == ports
    assert open_to["rpc"] is None
    (controller, neighbours) = open_to["admin"]
    assert controller["podSelector"]["matchLabels"].items() <= labels_of_controller().items()
    assert neighbours == {"podSelector": {}}


def labels_of_controller() -> dict[str, str]:
    template = named(built(MANIFESTS / "default"), "Deployment", CONTROLLER)["spec"]["template"]
    return dict(template["metadata"]["labels"])


def selector_of(manifest: dict[str, Any]) -> dict[str, str] | None:
    spec = manifest.get("spec") or {}
    match manifest["kind"]:
        case "Service":
            return dict(spec["selector"])
        case "NetworkPolicy":
            return dict(spec["podSelector"]["matchLabels"])
        case "PodDisruptionBudget" | "ServiceMonitor" | "PodMonitor":
            return dict(spec["selector"]["matchLabels"])
    return None


def test_one_setting_names_each_image_wherever_it_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    default = MANIFESTS / "default"
    for name in ("images.yaml", "namespaces.yaml"):
        (folder / name).write_text((default / name).read_text())
    kustomization = yaml.safe_load((default / "kustomization.yaml").read_text())
    for base in ("crd", "rbac", "webhook", "controller", "server"):
        (tmp_path / base).symlink_to(MANIFESTS / base)
    kustomization["images"] = [
        {"name": one["name"], "newName": f"registry.example/{one['name']}", "newTag": "9"}
        for one in kustomization["images"]
    ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    manifests = built(folder)
    controller = container(manifests, CONTROLLER)
    assert controller["image"] == container(manifests, SERVER)["image"] == "registry.example/inferencecache:9"
    (sidecar,) = (one["value"] for one in controller["env"] if one["name"] == "SUBSCRIBER_IMAGE")
    assert sidecar == "registry.example/inferencecache-subscriber:9"
    assert "--kvevent-subscriber-image=$(SUBSCRIBER_IMAGE)" in controller["args"]


def test_the_snapshot_port_is_the_controllers_and_with_peers_the_servers() -> None:
    def may_call(manifests: list[dict[str, Any]]) -> list[str]:
        rules = named(manifests, "NetworkPolicy", "inference-cache-server-snapshot")["spec"]["ingress"]
        (rule,) = (rule for rule in rules if any(port["port"] == 8081 for port in rule["ports"]))
        labels = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
        assert all(one["app.kubernetes.io/name"] == "inference-cache" for one in labels)
        return [one["app.kubernetes.io/component"] for one in labels]

    assert may_call(built(MANIFESTS / "default")) == ["controller"]
    assert may_call(overlay("high-availability")) == ["controller", "server"]
    assert may_call(overlay("valkey-index")) == ["controller"]


def test_under_cert_manager_the_controller_may_write_no_certificate() -> None:
    manifests = overlay("cert-manager")
    assert [one["metadata"]["name"] for one in manifests if "secrets" in str(one.get("rules"))] == []
    assert [one["metadata"]["name"] for one in manifests if "admissionregistration" in str(one.get("rules"))] == []
    annotated = [one for one in manifests if one["kind"].endswith("WebhookConfiguration")]
    assert len(annotated) == 2
    certificate = f"{NAMESPACE}/{named(manifests, 'Certificate', 'serving-cert')['metadata']['name']}"
    assert all(one["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == certificate for one in annotated)
    spec = named(manifests, "Deployment", CONTROLLER)["spec"]["template"]["spec"]
    secret = named(manifests, "Certificate", "serving-cert")["spec"]["secretName"]
    (volume,) = (one["name"] for one in spec["volumes"] if one.get("secret", {}).get("secretName") == secret)
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == volume)
    assert mount["mountPath"] == "/tmp/k8s-webhook-server/serving-certs"


def test_with_tls_the_sidecars_trust_the_certificates_of_the_server() -> None:
    manifests = overlay("server-tls")
    certificate = named(manifests, "Certificate", "inference-cache-server-serving-cert")["spec"]
    controller = container(manifests, CONTROLLER)
    assert any(arg.startswith("--policy-server-ca-file=") for arg in controller["args"])
    assert any(arg.startswith("--tls-cert-file=") for arg in container(manifests, SERVER)["args"])
    spec = named(manifests, "Deployment", CONTROLLER)["spec"]["template"]["spec"]
    (source,) = (one["secret"] for one in spec["volumes"] if one["name"] == "server-ca")
    assert source["secretName"] == certificate["secretName"]
    assert [item["key"] for item in source["items"]] == ["ca.crt"]  # and not its key
    assert "inference-cache-server.inference-cache-system.svc.cluster.local" in certificate["dnsNames"]


@pytest.mark.parametrize("name", ["high-availability", "valkey-index"])
def test_two_of_each_are_kept_apart_and_never_drained_together(name: str) -> None:
    manifests = overlay(name)
    for deployment in (CONTROLLER, SERVER):
        spec = named(manifests, "Deployment", deployment)["spec"]
        assert spec["replicas"] == 2
        (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        budgets = [one for one in manifests if one["kind"] == "PodDisruptionBudget"]
        assert [
            one["spec"]["maxUnavailable"]
            for one in budgets
            if one["spec"]["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        ] == [1]
    assert "--leader-elect" in container(manifests, CONTROLLER)["args"]


def test_servers_without_a_store_are_all_told_everything() -> None:
    manifests = overlay("high-availability")
    service = named(manifests, "Service", "inference-cache-server-peers")
    assert service["spec"]["clusterIP"] == "None"
    name = service["metadata"]["name"]
    told = [arg for arg in container(manifests, CONTROLLER)["args"] if f"{name}." in arg or f"//{name}:" in arg]
    assert [arg.split("=")[0] for arg in told] == ["--policy-server-grpc-address", "--server-policy-url"]
    command = get_command(app).commands["controller"]  # type: ignore[attr-defined]
    parsed = command.make_context("controller", list(container(manifests, CONTROLLER)["args"])).params
    assert name in parsed["policy_server_grpc_address"]
    args = container(manifests, SERVER)["args"]
    assert f"--warm-from=http://{name}:8081/dump" in args
    account = named(manifests, "Deployment", SERVER)["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"--allowed-peer-sa=system:serviceaccount:{NAMESPACE}:{account}" in args


@pytest.mark.parametrize(
    ("name", "group", "other", "flag"),
    [
        ("caches-only", "worker.gpustack.ai", "inferencecache.io", "--no-enable-kv-cache-pools"),
        ("pools-only", "inferencecache.io", "worker.gpustack.ai", "--no-enable-cache-backends"),
    ],
)
def test_nothing_is_left_of_a_half_that_is_off_and_all_of_the_other(
    name: str, group: str, other: str, flag: str
) -> None:
    manifests = overlay(name)
    assert flag in container(manifests, CONTROLLER)["args"]
    assert parts_of(manifests, group) == set()
    assert parts_of(manifests, other) == parts_of(built(MANIFESTS / "default"), other)


def parts_of(manifests: list[dict[str, Any]], group: str) -> set[str]:
    """The kinds, roles and webhooks that belong to an API group."""
    parts = set()
    for one in manifests:
        name = one["metadata"]["name"]
        if one["kind"] == "CustomResourceDefinition" and one["spec"]["group"] == group:
            parts.add(name)
        # Backends may be on a pool that somebody else's operator serves, so their role reads that group, too.
        if name != MANAGER_ROLE and any(group in rule["apiGroups"] for rule in one.get("rules") or ()):
            parts.add(f"{one['kind']} {name}")
        parts |= {hook["name"] for hook in one.get("webhooks") or () if hook["name"].endswith(f".{group}")}
    return parts


def test_stores_run_where_they_may_and_ours_where_nothing_else_does() -> None:
    manifests = built(MANIFESTS / "default")
    assert f"--kv-cache-namespace={POOL_NAMESPACE}" in container(manifests, CONTROLLER)["args"]
    standards = {
        one["metadata"]["name"]: one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for one in manifests
        if one["kind"] == "Namespace"
    }
    assert standards == {NAMESPACE: "restricted", POOL_NAMESPACE: "privileged"}


async def test_an_upgrade_leaves_the_certificates_that_the_controller_wrote(client: Client, namespace: str) -> None:
    configuration = named(
        built(MANIFESTS / "default"),
        "ValidatingWebhookConfiguration",
        "inference-cache-validating-webhook-configuration",
    )
    key = Key("", f"upgrade-{namespace}")
    configuration["metadata"]["name"] = key.name
    for webhook in configuration["webhooks"]:  # nobody answers them here
        webhook["rules"] = [{**webhook["rules"][0], "apiGroups": ["nowhere.example"]}]
    try:
        live = await client.apply(configuration)
        await client.patch(VALIDATING, key, ca_bundle_patch(live, b"trusted"), type="json")
        configuration["webhooks"][0]["timeoutSeconds"] = 7
        after = await client.apply(configuration)
        assert after["webhooks"][0]["timeoutSeconds"] == 7
        bundles = {webhook["clientConfig"]["caBundle"] for webhook in after["webhooks"]}
        assert bundles == {base64.b64encode(b"trusted").decode()}
    finally:
        await client.delete(VALIDATING, key)


async def test_an_injected_sidecar_is_admitted_where_engines_are_restricted(client: Client, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.patch(Namespace.resource, Key("", namespace), {"metadata": {"labels": labels}})
    settings = SidecarSettings("subscriber:1", policy_server_audience="reports")
    backend = CacheBackend.decode({"metadata": {"name": "kv"}, "spec": {"observation": {"modelID": "m"}}})
    sidecar, volume = subscriber_container(backend, settings, hash_scheme="vllm"), token_volume(settings)
    assert sidecar is not None
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": namespace},
        "spec": {
            "serviceAccountName": "default",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [sidecar],
            "volumes": [volume],
        },
    }
    await client.apply(pod, dry_run=True)
    del sidecar["securityContext"]
    with pytest.raises(Forbidden, match="restricted"):
        await client.apply(pod, dry_run=True)


async def test_the_schema_refuses_another_runtime(client: Client, namespace: str) -> None:
    await install_crds(client, [MANIFESTS / "crd"])
    backend = yaml.safe_load((MANIFESTS / "samples" / "cache_v1alpha1_cachebackend.yaml").read_text())
    backend["metadata"]["namespace"] = namespace
    backend["spec"]["runtime"] = "vllm"
    with pytest.raises(Invalid, match=r"spec\.runtime"):
        await client.apply(backend, dry_run=True)
