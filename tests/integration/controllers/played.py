"""Plays the Deployment controller and the kubelet: ReplicaSets, Pods, and what they report."""

from __future__ import annotations

from typing import Any

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.client import Client
from inferencecache.kube.kinds import Deployment, Pod
from inferencecache.kube.resource import Key, Manifest


def managed(namespace: str, name: str = "kv", **spec: Any) -> Manifest:
    """A backend whose store the operator runs, and which does not wait for a KV event."""
    storage = {"provider": "LMCacheServer", "ownership": "Managed"}
    return {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {"name": name, "namespace": namespace, "annotations": {c.ANNOTATION_REQUIRE_KV_EVENTS: "false"}},
        "spec": {"runtime": "VLLM", "remoteStorage": storage, **spec},
    }


class World:
    """The workloads of one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def rolled_out(self, name: str, replicas: int = 1, *, available: int | None = None) -> None:
        """Let a Deployment report that its present generation has so many replicas."""
        key = Key(self.namespace, name)
        live = await self.client.get_manifest(Deployment.resource, key)
        up = replicas if available is None else available
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": up,
            "availableReplicas": up,
            "unavailableReplicas": replicas - up,
        }
        await self.client.patch_status(Deployment.resource, key, status)

    async def store_pod(self, pod: str, backend: str = "kv", *, restarts: int = 0, ready: bool = True) -> str:
        """A Pod of a backend's store, below a ReplicaSet of its Deployment; its UID."""
        deployment = await self.client.get_manifest(Deployment.resource, Key(self.namespace, backend))
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        owner = await self._replica_set(f"{backend}-rs", deployment, labels)
        await self._pod(pod, owner, labels, "lmcache-server", {})
        await self.report(pod, restarts=restarts, ready=ready)
        return await self.uid(pod)

    async def engine(self, name: str, backend: str = "kv", *, uid: str = "") -> None:
        """A Deployment of engines, with a Pod that admission wired to the backend of that UID."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "vllm", "image": "i"}]}}
        deployment = await self.client.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
            }
        )
        owner = await self._replica_set(f"{name}-rs", deployment, labels)
        live = await self.client.get(CacheBackend, Key(self.namespace, backend))
        marks = {
            c.ANNOTATION_INJECTED_BY: f"{self.namespace}/{backend}",
            c.ANNOTATION_INJECTED_BY_UID: uid or live.metadata.uid,
        }
        await self._pod(f"{name}-0", owner, labels, "vllm", marks)

    async def report(
        self, pod: str, *, restarts: int = 0, ready: bool = True, container: str = "lmcache-server"
    ) -> None:
        """Let the kubelet report a running Pod."""
        state = {"name": container, "image": "i", "imageID": "i", "ready": ready, "restartCount": restarts}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{**state, "state": {"running": {}}}],
        }
        await self.client.patch_status(Pod.resource, Key(self.namespace, pod), status)

    async def gone(self, pod: str) -> None:
        """Delete a Pod as a kubelet would: at once."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        await self.client.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def uid(self, pod: str) -> str:
        """The UID of a Pod."""
        return (await self.client.get(Pod, Key(self.namespace, pod))).metadata.uid

    async def mark(self, deployment: str) -> str:
        """The instances that the engines of a Deployment were last rolled for; empty for none."""
        live = await self.client.get_manifest(Deployment.resource, Key(self.namespace, deployment))
        marks = live["spec"]["template"]["metadata"].get("annotations") or {}
        return str(marks.get("inferencecache.io/cache-server-restart-trigger", ""))

    async def _replica_set(self, name: str, above: Manifest, labels: dict[str, str]) -> Manifest:
        manifest = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels,
                "ownerReferences": [_controlled_by(above)],
            },
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        }
        return await self.client.apply(manifest)

    async def _pod(
        self, name: str, owner: Manifest, labels: dict[str, str], container: str, marks: dict[str, str]
    ) -> None:
        await self.client.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": self.namespace,
                    "labels": labels,
                    "annotations": marks,
                    "ownerReferences": [_controlled_by(owner)],
                },
                "spec": {"containers": [{"name": container, "image": "i"}]},
            }
        )


def _controlled_by(owner: Manifest) -> dict[str, Any]:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
