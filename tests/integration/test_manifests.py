"""What `kubectl apply -k manifests/default` would install is accepted by a real API server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, cache_directory, find_binaries, install_crds
from inferencecache.kube.errors import Invalid

MANIFESTS = Path(__file__).parents[2] / "manifests"


def kubectl() -> str:
    """kubectl from PATH, or beside the control plane's binaries."""
    folders = [os.environ.get("PATH", ""), str(find_binaries()), str(cache_directory())]
    found = shutil.which("kubectl", path=os.pathsep.join(folders))
    assert found, "no kubectl: run hack/get-control-plane.sh once"
    return found


def built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


async def test_the_installation_is_accepted(client: Client, control_plane: ControlPlane) -> None:
    manifests = built(MANIFESTS / "default")
    await install_crds(client, [one for one in manifests if one["kind"] == "CustomResourceDefinition"])
    for manifest in sorted(manifests, key=lambda one: one["kind"] != "Namespace"):
        # Webhooks stay out: this control plane is shared, and nobody would answer them. A dry run checks them as well.
        is_webhook = manifest["kind"].endswith("WebhookConfiguration")
        await client.apply(manifest, dry_run=is_webhook)


async def test_the_pod_admission_policy_of_the_namespace_admits_the_controller(client: Client) -> None:
    manifests = built(MANIFESTS / "default")
    await client.apply(next(one for one in manifests if one["kind"] == "Namespace"))
    deployment = next(one for one in manifests if one["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "controller",
            "namespace": "inference-cache-system",
            "labels": template["metadata"]["labels"],
        },
        "spec": template["spec"],
    }
    await client.apply(pod, dry_run=True)


async def test_the_schema_refuses_another_runtime(client: Client, namespace: str) -> None:
    await install_crds(client, [MANIFESTS / "crd"])
    backend = yaml.safe_load((MANIFESTS / "samples" / "cache_v1alpha1_cachebackend.yaml").read_text())
    backend["metadata"]["namespace"] = namespace
    backend["spec"]["runtime"] = "vllm"
    with pytest.raises(Invalid, match=r"spec\.runtime"):
        await client.apply(backend, dry_run=True)
