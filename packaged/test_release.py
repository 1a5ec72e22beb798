"""A release of the chart lives on a real API server: installed, changed and removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import yaml

from inferencecache.cli.install import NAMESPACE, POOL_NAMESPACE
from inferencecache.kube.envtest import ControlPlane
from packaged.tools import ROOT, run
from tests.integration.kustomized import kubectl

CHART = str(ROOT / "charts" / "inferencecache")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


def names(plane: ControlPlane, kind: str, namespace: str = "") -> set[str]:
    """What there is of a kind."""
    scope = ["--namespace", namespace] if namespace else ["--all-namespaces"]
    done = subprocess.run(
        [kubectl(), "--kubeconfig", plane.admin, "get", kind, *scope, "-o", "yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {item["metadata"]["name"] for item in yaml.load(done.stdout, yaml.CSafeLoader)["items"]}


def test_a_release_is_installed_changed_and_removed_without_the_kinds(plane: ControlPlane) -> None:
    release = ["kv", "--namespace", NAMESPACE, "--kubeconfig", str(plane.admin)]
    run("helm", "install", *release[:1], CHART, *release[1:], "--create-namespace")
    assert names(plane, "deployments", NAMESPACE) == {"inference-cache-controller-manager", "inference-cache-server"}
    assert POOL_NAMESPACE in names(plane, "namespaces")
    kinds = names(plane, "customresourcedefinitions")
    assert len(kinds) == 9

    run("helm", "upgrade", *release[:1], CHART, *release[1:], "--set", "highAvailability.enabled=true")
    assert "inference-cache-server-peers" in names(plane, "services", NAMESPACE)
    run("helm", "upgrade", *release[:1], CHART, *release[1:], "--set", "cacheBackends.enabled=false")
    assert names(plane, "deployments", NAMESPACE) == {"inference-cache-controller-manager"}
    assert names(plane, "customresourcedefinitions") == kinds

    run("helm", "uninstall", *release)
    assert names(plane, "deployments", NAMESPACE) == set()
    assert names(plane, "customresourcedefinitions") == kinds
    assert POOL_NAMESPACE in names(plane, "namespaces")
    run("helm", "install", *release[:1], CHART, *release[1:])
    assert names(plane, "deployments", NAMESPACE) == {"inference-cache-controller-manager", "inference-cache-server"}
