"""What kubectl makes of a folder of manifests, and the kinds of others that some of them need."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from inferencecache.kube.envtest import cache_directory, find_binaries

MANIFESTS = Path(__file__).parents[2] / "manifests"

_OTHERS = {
    ("cert-manager.io", "v1"): ("Issuer", "Certificate"),
    ("monitoring.coreos.com", "v1"): ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
}


def kubectl() -> str:
    """kubectl from PATH, or beside the control plane's binaries."""
    folders = [os.environ.get("PATH", ""), str(find_binaries()), str(cache_directory())]
    found = shutil.which("kubectl", path=os.pathsep.join(folders))
    assert found, "no kubectl: run hack/get-control-plane.sh once"
    return found


def built(folder: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` would apply."""
    return copy.deepcopy(_built(folder))


@functools.cache
def _built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def named(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = (one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def container(manifests: list[dict[str, Any]], deployment: str) -> dict[str, Any]:
    """The only container of a Deployment."""
    (found,) = named(manifests, "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def crds_of_others(*groups: str) -> list[dict[str, Any]]:
    """The kinds of these groups, or of cert-manager and of the Prometheus operator; they take any content."""
    return [
        _crd(group, version, kind)
        for (group, version), kinds in _OTHERS.items()
        if not groups or group in groups
        for kind in kinds
    ]


def _crd(group: str, version: str, kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
