"""Recorded workload cases against the real operator on a real API server; the test plays the rest of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.kinds import crds
from inferencecache.controllers import CacheServer, register
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import Conflict, NotFound
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Namespace, Pod, ReplicaSet, Service
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key, Resource, path_of
from tests.cases.cache_server import PlayedServer
from tests.cases.corpus import Case, cases, name_of, replaced, same
from tests.integration.controllers.rest import at_rest
from tests.integration.operating import operator_client, quiet_manager, running

_ADDRESS_REPAIR = "ipallocator-repair-controller"  # part of the API server, which comments on new Services at times

_KINDS: dict[str, Resource] = {
    kind.resource.kind: kind.resource for kind in (CacheBackend, Deployment, Service, HorizontalPodAutoscaler, Pod)
}
_REFERENCED = {**_KINDS, "ReplicaSet": ReplicaSet.resource}
_PATIENCE = 90.0
_BETWEEN_LOOKS = 0.1


class Cluster:
    """The namespace of one case, as its user and the other controllers act on it."""

    def __init__(self, client: Client, manager: Manager, server: PlayedServer, namespace: str) -> None:
        self.client = client
        self.manager = manager
        self.server = server
        self.namespace = namespace
        self.uids: dict[str, str] = {}

    async def store(self, obj: dict[str, Any]) -> None:
        """Create an object, defaulted as admission would, with its status if it has one."""
        obj = await self.filled(obj)
        status = obj.pop("status", None)
        if obj["kind"] == "CacheBackend":
            obj = default_cache_backend(obj)
        await self.client.create(obj)
        if status:
            await self.patch(obj["kind"], obj["metadata"]["name"], {"status": status}, "status")

    async def patch(self, kind: str, name: str, patch: dict[str, Any], subresource: str = "") -> None:
        key = Key(self.namespace, name)
        await self.client.patch(_KINDS[kind], key, await self.filled(patch), subresource=subresource)

    async def filled(self, value: Any) -> Any:
        """References to what the API server holds, replaced."""
        if isinstance(value, dict):
            return {key: await self.filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [await self.filled(item) for item in value]
        if isinstance(value, str):
            for text, field, kind, name in re.findall(r"(\$\{(uid|generation):(\w+)/([\w.-]+)\})", value):
                found = (await self.live(kind, name))["metadata"][field]
                value = found if text == value else value.replace(text, str(found))
        return value

    async def live(self, kind: str, name: str) -> dict[str, Any]:
        return await self.client.get_manifest(_REFERENCED[kind], Key(self.namespace, name))

    async def act(self, action: dict[str, Any]) -> None:
        ((verb, what),) = action.items()
        match verb:
            case "create":
                await self.store(copy.deepcopy(what))
            case "update":
                await self.update(what)
            case "patch":
                await self.patch(what["kind"], what["name"], what["patch"])
            case "status":
                await self.patch(what["kind"], what["name"], {"status": what["patch"]}, "status")
            case "rollout":
                await self.roll_out(what)
            case "delete":
                await self.client.delete(_KINDS[what["kind"]], Key(self.namespace, what["name"]))
            case "snapshot":
                self.server.rows = what
            case "probe":
                self.server.probe = what
            case _:
                raise AssertionError(f"unknown action {verb}")

    async def update(self, what: dict[str, Any]) -> None:
        name = what["metadata"]["name"]
        new = default_cache_backend(copy.deepcopy(what))
        while True:
            version = (await self.live("CacheBackend", name))["metadata"]["resourceVersion"]
            new["metadata"] = {**new["metadata"], "resourceVersion": version}
            try:
                await self.client.replace(CacheBackend.resource, Key(self.namespace, name), new)
            except Conflict:  # the operator wrote its status in between
                continue
            return

    async def roll_out(self, what: dict[str, Any]) -> None:
        live = await self.live("Deployment", what["name"])
        count = what.get("replicas", 1)
        available = what.get("available", count)
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": available,
            "availableReplicas": available,
            "unavailableReplicas": count - available,
        }
        await self.patch("Deployment", what["name"], {"status": status}, "status")

    async def items(self, resource: Resource) -> list[dict[str, Any]]:
        body = await self.client.request("GET", path_of(resource, self.namespace))
        found: list[dict[str, Any]] = msgspec.json.decode(body)["items"]
        return found

    async def look(self) -> tuple[dict[str, Any], bool]:
        """The state in the form in which it was recorded, and whether the operator is at rest in it."""
        lists = {kind: await self.items(resource) for kind, resource in _KINDS.items()}
        settled = at_rest(self.manager, self.namespace, lists)
        for kind, objs in lists.items():
            for obj in objs:
                self.uids[obj["metadata"]["uid"]] = f"<uid of {kind} {obj['metadata']['name']}>"
        told = {
            f"{e['type']} {e['reason']} {e['regarding']['kind']}/{e['regarding']['name']}"
            for e in await self.items(EVENTS)
            if e.get("reportingController") != _ADDRESS_REPAIR
        }
        children = ("Deployment", "HorizontalPodAutoscaler", "Service")
        state = {
            "backends": {b["metadata"]["name"]: replaced(plain_status(b), self.uids) for b in lists["CacheBackend"]},
            "objects": [self.plain_child(kind, obj) for kind in children for obj in lists[kind]],
            "events": sorted(told),
            "probeRequests": self.server.probed,
        }
        return state, settled

    def plain_child(self, kind: str, obj: dict[str, Any]) -> dict[str, Any]:
        obj = replaced(same(obj), self.uids)
        kept = ("name", "labels", "annotations", "ownerReferences", "finalizers")
        spec = obj["spec"]
        if kind in _DEFAULTS_OF:
            _DEFAULTS_OF[kind](spec)
        return {"kind": kind, "metadata": {k: v for k, v in obj["metadata"].items() if k in kept}, "spec": spec}

    async def settles(self, want: dict[str, Any], wait: float) -> None:
        """Wait until the operator rests, `wait` seconds from now at the earliest, and the state is as wanted."""
        await asyncio.sleep(wait)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while True:
            seen, settled = await self.look()
            seen = {part: seen[part] for part in want}
            if settled and seen == want:
                return
            if loop.time() > deadline:
                told = list(differences(want, seen))
                raise AssertionError("\n".join(told) or "as wanted, but the operator does not come to rest")
            await asyncio.sleep(_BETWEEN_LOOKS)


def plain_status(backend: dict[str, Any]) -> dict[str, Any]:
    status = comparable(copy.deepcopy(backend.get("status") or {}))
    message = status.get("engineSelectorMessage")
    if message:
        echo = re.search(r"spec\.engineSelector\.matchLabels=\{[^}]*\}", message)
        status["engineSelectorMessage"] = echo[0] if echo else f"does not echo the selector: {message}"
    if "firstAvailableAt" in status:
        status["firstAvailableAt"] = "<set>"
    return status


def comparable(status: dict[str, Any]) -> dict[str, Any]:
    """A status, recorded or live, without what is not compared."""
    for holder in (status, *status.get("conditions", ())):
        if holder.get("observedGeneration") == 0:
            del holder["observedGeneration"]
    shown = ("type", "status", "reason", "observedGeneration")
    if "conditions" in status:
        conditions = [{k: c[k] for k in shown if k in c} for c in status["conditions"]]
        status["conditions"] = sorted(conditions, key=lambda c: str(c["type"]))
    return status


def without(value: dict[str, Any], defaults: dict[str, Any]) -> None:
    for name in [name for name, default in defaults.items() if value.get(name) == default]:
        del value[name]


def plain_deployment(spec: dict[str, Any]) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    without(spec, {"progressDeadlineSeconds": 600, "revisionHistoryLimit": 10, "strategy": rolling})
    pod = spec["template"]["spec"]
    without(pod, {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}})
    if pod.get("serviceAccount") == pod.get("serviceAccountName"):
        pod.pop("serviceAccount", None)
    for container in pod["containers"]:
        files = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
        without(container, {**files, "resources": {}})
        for port in container.get("ports", []):
            without(port, {"protocol": "TCP"})
        without(container.get("readinessProbe", {}), {"timeoutSeconds": 1, "successThreshold": 1})


def plain_service(spec: dict[str, Any]) -> None:
    without(spec, {"internalTrafficPolicy": "Cluster", "sessionAffinity": "None"})
    for name in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        spec.pop(name, None)
    if spec.get("clusterIP") != "None":
        spec.pop("clusterIP", None)
    for port in spec["ports"]:
        without(port, {"protocol": "TCP"})


_DEFAULTS_OF = {"Deployment": plain_deployment, "Service": plain_service}


def differences(want: Any, seen: Any, path: str = "") -> Iterator[str]:
    """Where two states differ, one line each."""
    if isinstance(want, dict) and isinstance(seen, dict):
        for key in sorted({*want, *seen}):
            yield from differences(want.get(key), seen.get(key), f"{path}.{key}")
    elif isinstance(want, list) and isinstance(seen, list) and len(want) == len(seen):
        for index, (left, right) in enumerate(zip(want, seen, strict=True)):
            yield from differences(left, right, f"{path}[{index}]")
    elif want != seen:
        yield f"{path}: {seen!r} instead of {want!r}"


def recorded(case: Case) -> list[dict[str, Any]]:
    """The recorded snapshots, unfolded."""
    found, objects = [], None
    for snapshot in case.expected["snapshots"]:
        snapshot = same(snapshot)
        objects = objects if snapshot["objects"] == "unchanged" else snapshot["objects"]
        for status in snapshot["backends"].values():
            comparable(status)
        seen = {
            "backends": snapshot["backends"],
            "objects": objects,
            "probeRequests": snapshot.get("probeRequests", []),
        }
        found.append(seen | ({"events": snapshot["events"]} if "events" in snapshot else {}))
    return found


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """One of its own: the operator of a case looks after every backend that there is."""
    with ControlPlane() as plane:
        yield plane


@pytest.mark.parametrize("case", cases("workload"), ids=name_of)
async def test_recorded_workload(case: Case, client: Client) -> None:
    await install_crds(client, [dict(crd) for crd in crds()])
    backends = case.all("backend")
    namespace = backends[0]["metadata"]["namespace"]
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    played = PlayedServer(namespace, case.options.get("snapshot") or [], case.options.get("probe") or {})
    try:
        async with played.running():
            await carried_out(case, client, played, namespace)
    finally:
        for backend in backends:
            with contextlib.suppress(NotFound):
                await client.delete(CacheBackend.resource, Key(namespace, backend["metadata"]["name"]))
        await client.delete(Namespace.resource, Key("", namespace))


async def carried_out(case: Case, client: Client, played: PlayedServer, namespace: str) -> None:
    """Run the operator, and step by step compare what it makes of the case."""
    manager = quiet_manager(operator_client(client))
    server = CacheServer(
        snapshot_url=f"{played.url}/snapshot",
        policy_url=f"{played.url}/policy",
        probe_url=f"{played.url}/probe" if case.options.get("probing") else "",
        refresh_interval=timedelta(seconds=1),
    )
    register(manager, registries=load_adapters(), server=server)
    cluster = Cluster(client, manager, played, namespace)
    async with running(manager):  # on leaving it, whatever it still had to tell is told
        for obj in [*case.all("given"), *case.all("backend")]:
            await cluster.store(obj)
        first, *rest = recorded(case)
        await cluster.settles(first, case.options.get("wait", 0))
        steps = case.one("steps") or []
        for step, want in zip(steps, rest, strict=True):
            for action in step["do"]:
                await cluster.act(action)
            await cluster.settles(want, step.get("wait", 0))
    left, _ = await cluster.look()
    last = [first, *rest][-1]
    assert left["events"] == last.get("events", left["events"])
