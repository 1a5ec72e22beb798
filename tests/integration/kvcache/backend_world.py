"""Backends and what a cluster makes of them: this module plays the workload controllers, the kubelet and the collector.

Cluster-scoped names carry the test's namespace, in which the operator under test keeps all that it renders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.controllers import kvcachebackend
from inferencecache.controllers.kvcachebackend.act import CHILD_KINDS, MARKS
from inferencecache.controllers.mooncake.admin import AdminClient, MooncakeClients
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import DaemonSet, Deployment, Pod
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key, Kind, Manifest, path_of
from tests.integration.kube.waiting import eventually
from tests.integration.operating import quiet_manager, running

API = "worker.gpustack.ai/v1"
IMAGE = "store:1"
LOOK_AGAIN = timedelta(seconds=0.3)
ALONE = {"electionBackend": "None"}


class BackendWorld:
    """What there is of one test."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._made: list[tuple[type[Kind], Key]] = []

    # ------------------------------------------------------------------------------------------- what somebody creates

    async def external(self, name: str = "store", *, admin: str) -> Key:
        """The addresses of a store."""
        endpoints = [{"name": "Client", "address": "store.example:50051"}, {"name": "Admin", "address": admin}]
        return await self._create(KVCacheBackend, name, {"connection": {"external": {"endpoints": endpoints}}})

    async def managed(self, name: str = "store", *groups: Manifest, leader: Manifest | None = None, **more: Any) -> Key:
        """A store that the operator runs; without groups it has one."""
        ordinary = {"nodeSelector": {"lends": "memory"}, "medium": "DRAM", "capacityPerMember": "16Mi"}
        members = [{**ordinary, **group} for group in groups or ({},)]
        managed = {"leader": ALONE if leader is None else leader, "members": members, **more}
        return await self._create(KVCacheBackend, name, {"connection": {"managed": managed}})

    async def pool(self, name: str, backend: Key) -> Key:
        """A pool on a backend, which has claimed it."""
        spec = {"backends": [backend.name], "quota": {"total": "1Gi"}}
        key = await self._create(KVCachePool, name, spec)
        await self.claim(backend, key.name)
        return key

    async def claim(self, backend: Key, *pools: str) -> None:
        """Be the pools that use a backend; without any, nobody does any more."""
        used = [{"kind": "KVCachePool", "namespace": "", "name": pool} for pool in pools]
        await self.client.patch_status(KVCacheBackend.resource, backend, {"usedBy": used or None})

    async def edit(self, backend: Key, **managed: Any) -> None:
        """Change the managed part of a spec."""
        patch = {"spec": {"connection": {"managed": managed}}}
        await self.client.patch(KVCacheBackend.resource, backend, patch)

    async def clean(self) -> None:
        """Take everything away, whatever holds it."""
        for kind, key in reversed(self._made):
            await self._force_away(kind, key)
        for kind in CHILD_KINDS:
            for child in await self.client.list(kind, namespace=self.namespace, labels=MARKS):
                await self._force_away(kind, Key.of(child))

    async def _force_away(self, kind: type[Kind], key: Key) -> None:
        for _ in range(2):
            with suppress(NotFound):
                await self.client.patch(kind.resource, key, {"metadata": {"finalizers": None}})
                await self.client.delete(kind.resource, key)

    async def _create(self, kind: type[Kind], name: str, spec: Manifest) -> Key:
        key = Key("", f"{self.namespace}-{name}")
        metadata = {"name": key.name}
        await self.client.create({"apiVersion": API, "kind": kind.resource.kind, "metadata": metadata, "spec": spec})
        self._made.append((kind, key))
        return key

    # --------------------------------------------------------------------------------------- what a cluster makes of it

    async def leader_ready(self, backend: Key, ready: int = 1) -> None:
        """Let the leader's Deployment be rolled out, with so many Pods ready."""
        key = Key(self.namespace, f"{backend.name}-leader")
        live = await self.client.get_manifest(Deployment.resource, key)
        count = live["spec"]["replicas"]
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": count - ready,
        }
        await self.client.patch_status(Deployment.resource, key, status)

    async def members_scheduled(self, backend: Key, *, group: int = 0, nodes: int = 1) -> None:
        """Let a group's DaemonSet be rolled out on so many nodes."""
        key = Key(self.namespace, f"{backend.name}-member-{group}")
        live = await self.client.get_manifest(DaemonSet.resource, key)
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "currentNumberScheduled": nodes,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": nodes,
            "updatedNumberScheduled": nodes,
            "numberReady": nodes,
            "numberAvailable": nodes,
        }
        await self.client.patch_status(DaemonSet.resource, key, status)

    async def pod_of(self, kind: type[Kind], workload: str, pod: str, *, node: str = "", **status: Any) -> Key:
        """A Pod of a workload, on a node, with the status of a kubelet."""
        live = await self.client.get_manifest(kind.resource, Key(self.namespace, workload))
        template = live["spec"]["template"]
        spec = {
            "containers": [{"name": one["name"], "image": one["image"]} for one in template["spec"]["containers"]],
            **({"nodeName": node} if node else {}),
        }
        owner = {"apiVersion": "apps/v1", "kind": kind.resource.kind, "name": workload, "controller": True}
        metadata = {
            "name": pod,
            "namespace": self.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [{**owner, "uid": live["metadata"]["uid"]}],
        }
        await self.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        key = Key(self.namespace, pod)
        await self.client.patch_status(Pod.resource, key, status)
        return key

    async def member(self, backend: Key, pod: str, *, node: str, ip: str = "127.0.0.1", group: int = 0) -> Key:
        """A ready member."""
        ready = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        return await self.pod_of(DaemonSet, f"{backend.name}-member-{group}", pod, node=node, **ready)

    async def pods(self, backend: Key) -> dict[str, str]:
        """The image of each Pod of a backend by name."""
        path = path_of(Pod.resource, self.namespace)
        items = json.loads(await self.client.request("GET", path))["items"]
        return {
            one["metadata"]["name"]: one["spec"]["containers"][0]["image"]
            for one in items
            if one["metadata"]["labels"].get("app.kubernetes.io/instance") == backend.name
            and not one["metadata"].get("deletionTimestamp")
        }

    async def ended(self, pod: str) -> None:
        """Let a Pod be gone, as a kubelet does."""
        with suppress(NotFound):
            path = path_of(Pod.resource, self.namespace, pod)
            await self.client.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def collect(self) -> list[str]:
        """Let go what is deleted in the foreground, as the garbage collector does once the Pods are gone; its names."""
        let_go = []
        for kind in (DaemonSet, Deployment):
            for one in await self.client.list(kind, namespace=self.namespace, labels=MARKS):
                if one.metadata.deletion_timestamp is not None:
                    let_go.append(f"{kind.resource.kind} {one.metadata.name}")
                    await self.client.patch(kind.resource, Key.of(one), {"metadata": {"finalizers": None}})
        return sorted(let_go)

    # ---------------------------------------------------------------------------------------------------- what is there

    async def children(self, backend: Key) -> dict[str, Manifest]:
        """All that is marked as the backend's, by kind and the part of the name after the backend's."""
        found = {}
        for kind in CHILD_KINDS:
            path = path_of(kind.resource, self.namespace)
            for one in json.loads(await self.client.request("GET", path))["items"]:
                notes = one["metadata"].get("annotations") or {}
                if notes.get("note.gpustack.ai/backend") == backend.name:
                    found[f"{kind.resource.kind}{one['metadata']['name'].removeprefix(backend.name)}"] = one
        return found

    async def versions(self, backend: Key) -> dict[str, str]:
        """The resourceVersion of the backend and all that is its."""
        live = {"": await self.client.get_manifest(KVCacheBackend.resource, backend), **await self.children(backend)}
        return {name: one["metadata"]["resourceVersion"] for name, one in live.items()}

    async def status(self, backend: Key) -> Manifest:
        """The whole status; empty if the backend is gone."""
        try:
            return (await self.client.get_manifest(KVCacheBackend.resource, backend)).get("status") or {}
        except NotFound:
            return {}

    async def says(self, backend: Key, phase: str, *, seconds: float = 60, **conditions: tuple[str, str]) -> Manifest:
        """Wait until the status says all of this; the status."""

        def good(status: Manifest) -> bool:
            found = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions", ())}
            return status.get("phase") == phase and conditions.items() <= found.items()

        return await eventually(lambda: self.status(backend), good, seconds=seconds)

    async def gone(self, backend: Key) -> None:
        """Wait until the backend is gone."""

        async def look() -> Manifest | None:
            try:
                return await self.client.get_manifest(KVCacheBackend.resource, backend)
            except NotFound:
                return None

        await eventually(look, lambda found: found is None)


class Dialled(MooncakeClients):
    """Connections to masters, of which some are found elsewhere than their addresses say."""

    def __init__(self, elsewhere: dict[str, str] | None = None, *, timeout: timedelta = timedelta(seconds=5)) -> None:
        super().__init__(timeout=timeout)
        self.elsewhere = elsewhere or {}
        self.asked: Counter[str] = Counter()

    def at(self, address: str, before_write: Callable[[], None] = lambda: None) -> AdminClient:
        self.asked[address] += 1
        return super().at(self.elsewhere.get(address, address), before_write)


class Counting(Client):
    """A client that remembers what it asks for, as method and path; what fills informers does not count."""

    asked: Counter[str]

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if "resourceVersion" not in (more.get("params") or {}):
            self.asked[f"{method} {path}"] += 1
        return await super().request(method, path, **more)


@asynccontextmanager
async def operating(
    client: Client, namespace: str, masters: MooncakeClients, *, interval: timedelta = LOOK_AGAIN
) -> AsyncIterator[Manager]:
    """The controller of backends, with nothing beside it."""
    manager = quiet_manager(client)
    manager.add(masters.run, name="masters")
    kvcachebackend.register(manager, namespace=namespace, image=IMAGE, masters=masters, interval=interval)
    async with running(manager):
        yield manager


def counting(client: Client) -> Counting:
    """A client of the operator's name that remembers what it asks for."""
    made = Counting(client.connection, field_manager="inferencecache-controller")
    made.asked = Counter()
    return made
