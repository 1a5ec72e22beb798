"""The chart installs what kustomize installs: rendered by helm, both say the same for every overlay."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from inferencecache.cli.install import NAMESPACE, POOL_NAMESPACE
from packaged.tools import ROOT, run
from tests.integration.kustomized import MANIFESTS, built

CHART = str(ROOT / "charts" / "inferencecache")


def rendered(*settings: str, namespace: str = NAMESPACE) -> dict[tuple[str, ...], dict[str, Any]]:
    """What the chart makes of these values, by kind, namespace and name."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    text = run("helm", "template", "x", CHART, "--namespace", namespace, "--kube-version", "1.30.0", *flags)
    return keyed(document for document in yaml.load_all(text, yaml.CSafeLoader) if document)


def keyed(manifests: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    found = {}
    for one in manifests:
        metadata = one["metadata"]
        metadata.get("annotations", {}).pop("helm.sh/resource-policy", None)
        for empty in [name for name in ("annotations", "labels") if not metadata.get(name)]:
            metadata.pop(empty, None)
        if one["kind"] == "CustomResourceDefinition":
            metadata.pop("labels", None)  # kustomize labels these too, which changes nothing for anybody
        if one["kind"] == "Deployment":  # the order of these means nothing
            pod = one["spec"]["template"]["spec"]
            for part in (pod.get("volumes", []), *(c.get("volumeMounts", []) for c in pod["containers"])):
                part.sort(key=lambda entry: entry["name"])
        found[one["kind"], metadata.get("namespace", ""), metadata["name"]] = one
    return found


OVERLAYS = {
    "default": [],
    "cert-manager": ["certManager.enabled=true"],
    "server-tls": ["serverTLS.enabled=true"],
    "high-availability": ["highAvailability.enabled=true"],
    "caches-only": ["pools.enabled=false"],
    "pools-only": ["cacheBackends.enabled=false"],
    "observability": ["monitoring.enabled=true"],
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_chart_is_the_overlay(name: str) -> None:
    folder = MANIFESTS / "default" if name == "default" else MANIFESTS / "overlays" / name
    wanted = keyed(built(folder))
    del wanted["Namespace", "", NAMESPACE]  # is the release's, and `helm install --create-namespace` makes it
    for one in wanted.values():
        for container in ((one.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers", ()):
            assert container["image"].startswith("inferencecache:")
    found = rendered(*OVERLAYS[name])
    assert found.keys() == wanted.keys()
    for key, one in wanted.items():
        assert found[key] == one, key


def test_every_part_can_be_combined() -> None:
    everything = rendered(
        *(setting for settings in OVERLAYS.values() for setting in settings if "false" not in setting)
    )
    assert ("PodDisruptionBudget", NAMESPACE, "inference-cache-server") in everything
    alone = rendered(
        "cacheBackends.enabled=false",
        "highAvailability.enabled=true",
        "serverTLS.enabled=true",
        "monitoring.enabled=true",
    )
    assert not [key for key in alone if "inference-cache-server" in key[2] and key[0] != "ServiceMonitor"]


def test_what_is_set_is_used() -> None:
    found = rendered(
        "image.repository=registry.example/kv",
        "image.tag=9",
        "subscriberImage.tag=8",
        "imagePullSecrets[0].name=pull",
        "controller.extraArgs[0]=--zap-log-level=debug",
        "controller.resources.limits.memory=1Gi",
        "pools.namespace=stores",
        namespace="kv-system",
    )
    assert {namespace for _, namespace, _ in found} == {"", "kv-system", "stores"}
    pod = found["Deployment", "kv-system", "inference-cache-controller-manager"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert container["image"] == "registry.example/kv:9"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert {"name": "SUBSCRIBER_IMAGE", "value": "inferencecache-subscriber:8"} in container["env"]
    assert container["args"][-1] == "--zap-log-level=debug"
    assert "--kv-cache-namespace=stores" in container["args"]
    assert "--policy-server-grpc-address=inference-cache-server.kv-system.svc.cluster.local:9090" in container["args"]
    assert NAMESPACE not in yaml.safe_dump(list(found.values()))
    assert POOL_NAMESPACE not in {namespace for _, namespace, _ in found}


def test_helm_finds_no_fault() -> None:
    run("helm", "lint", "--strict", CHART)


def test_an_uninstall_leaves_the_kinds_where_they_are() -> None:
    text = run("helm", "template", "x", CHART, "--kube-version", "1.30.0", "--show-only", "templates/crds.yaml")
    crds = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    assert len(crds) == 9
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in crds)
