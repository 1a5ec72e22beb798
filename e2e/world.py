"""What the tests do to the cluster and see of it: through kubectl, as a user does, and over the product's own ports."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml

from hack.onenode.cluster import Cluster
from hack.onenode.processes import ClusterError
from inferencecache import __version__

SYSTEM: Final = "inference-cache-system"
CONTROLLER: Final = "inference-cache-controller-manager"
SERVER: Final = "inference-cache-server"
PRODUCT_IMAGE: Final = f"inferencecache:{__version__}"
SUBSCRIBER_IMAGE: Final = f"inferencecache-subscriber:{__version__}"
ENGINE_IMAGE: Final = "inferencecache-e2e:engine"
STORES_IMAGE: Final = "inferencecache-e2e:stores"

Manifest = dict[str, Any]
T = TypeVar("T")


def until(look: Callable[[], T], *, within: float = 120, pause: float = 0.5) -> T:
    """What `look` finds, once that is something; a failed assertion or a missing field is tried again."""
    deadline = time.monotonic() + within
    seen: object = "nothing"
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
            seen = found
        except (AssertionError, ClusterError, LookupError, OSError) as error:
            seen = error
        time.sleep(pause)
    raise AssertionError(f"not within {within:g} s; seen last: {seen}")


@dataclass(frozen=True)
class World:
    """A namespace of the cluster; without one, the cluster's own objects."""

    cluster: Cluster
    namespace: str = "default"

    def elsewhere(self, namespace: str) -> World:
        """The same, for another namespace."""
        return World(self.cluster, namespace)

    # ----------------------------------------------------------------------------------------------------- objects

    def kubectl(self, *arguments: str, document: str | None = None) -> str:
        """kubectl in this namespace. Raises `ClusterError`."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, document=document)

    def apply(self, *manifests: Manifest) -> None:
        """Apply what a user would write."""
        self.kubectl("apply", "-f", "-", document=yaml.safe_dump_all(manifests))

    def get(self, kind: str, name: str) -> Manifest:
        """An object. Raises `ClusterError` where there is none."""
        found: Manifest = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """The objects of a kind, those being deleted left out."""
        arguments = ["--selector", selector] if selector else []
        items = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def delete(self, kind: str, name: str, *arguments: str) -> None:
        """Delete an object and wait until it is gone."""
        self.kubectl("delete", kind, name, "--timeout=90s", *arguments)

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        """Merge a patch into an object."""
        self.kubectl("patch", kind, name, "--type=merge", "--patch", json.dumps(patch))

    def logs(self, pod: str, container: str) -> str:
        """What a container has printed."""
        return self.kubectl("logs", pod, "--container", container)

    def rolled_out(self, deployment: str) -> None:
        """Wait until all of a Deployment's Pods are of its latest template and ready, and all others have ended.

        To kubectl a rollout is complete before that, while the old controller still answers some admissions.
        """
        self.kubectl("rollout", "status", f"deployment/{deployment}", "--timeout=110s")
        spec = self.get("deployment", deployment)["spec"]
        selector = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())

        def alone() -> bool:
            pods = self.kubectl("get", "pods", "--selector", selector, "-o", "name").split()
            assert len(pods) == spec["replicas"], pods
            return True

        until(alone)

    def ready_pods(self, selector: str) -> list[Manifest]:
        """The Pods that are ready."""
        return [pod for pod in self.list("pods", selector) if condition(pod, "Ready").get("status") == "True"]

    # ----------------------------------------------------------------------------------------------------- product

    def server(self, port: int = 8080) -> str:
        """Where the cache server answers; the node reaches Services as Pods do."""
        address = self.elsewhere(SYSTEM).get("service", SERVER)["spec"]["clusterIP"]
        return f"{address}:{port}"

    def lookup(self, model: str, scheme: str, prompt: str, server: str = "") -> Manifest:
        """Which replicas the server would route a prompt to. The fake engine's tokens are the bytes of the text.

        `server` spares the question where that is, which the API server has to be there for.
        """
        body = {
            "model_id": model,
            "hash_scheme": scheme,
            "tenant_id": self.namespace,
            "token_ids": list(prompt.encode()),
        }
        return ask(f"http://{server or self.server()}/v1/lookup-route", body)


def ask(url: str, body: Manifest | None = None) -> Manifest:
    """An answer in JSON."""
    with _open(url, body) as answer:
        found: Manifest = json.load(answer)
        return found


def read(url: str) -> str:
    """An answer in text."""
    with _open(url, None) as answer:
        return str(answer.read().decode())


def _open(url: str, body: Manifest | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)


def condition(manifest: Manifest, kind: str) -> Manifest:
    """A condition of an object, empty where it has none of that type."""
    conditions: Iterable[Manifest] = manifest.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def has_condition(manifest: Manifest, kind: str, status: str, reason: str | None = None) -> bool:
    """Whether a condition is so. Raises `AssertionError` that shows all conditions if it is not."""
    found = condition(manifest, kind)
    matches = found.get("status") == status and (reason is None or found.get("reason") == reason)
    assert matches, [
        (each["type"], each["status"], each["reason"], each["message"])
        for each in manifest.get("status", {}).get("conditions") or []
    ]
    return True
