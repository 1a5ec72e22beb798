"""Children against a real API server: no request when nothing differs, drift repaired, foreign objects untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferencecache.kube.apply import ChildConflict, apply_child
from inferencecache.kube.client import Client
from inferencecache.kube.kinds import ConfigMap, Deployment, HorizontalPodAutoscaler, Service, StatefulSet
from inferencecache.kube.resource import Key, Kind, Manifest

LABELS = {"app": "kv"}
WORKLOAD = (("spec", "template", "spec"), ("spec", "strategy"), ("spec", "updateStrategy"))
SERVICE = (("spec", "ports"), ("spec", "selector"), ("spec", "type"))
AUTHORITATIVE = {"Deployment": WORKLOAD, "StatefulSet": WORKLOAD, "Service": SERVICE}
VIEWS: dict[str, type[Any]] = {
    view.resource.kind: view for view in (Deployment, StatefulSet, Service, HorizontalPodAutoscaler, ConfigMap)
}


def pod_spec() -> dict[str, Any]:
    """A Pod with most things that the server gives defaults to."""
    probe = {"tcpSocket": {"port": "lm"}, "initialDelaySeconds": 5, "failureThreshold": 6}
    field = {"fieldRef": {"fieldPath": "metadata.name"}}
    return {
        "containers": [
            {
                "name": "main",
                "image": "registry.example.net/kv:1",
                "args": ["0.0.0.0", "65432"],
                "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": field}],
                "ports": [{"name": "lm", "containerPort": 65432}],
                "resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}, "requests": {"cpu": 0.25}},
                "readinessProbe": probe,
                "livenessProbe": {"httpGet": {"port": 80}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            },
            {"name": "side", "image": "registry.example.net/side"},
        ],
        "initContainers": [{"name": "init", "image": "a/b@sha256:" + "0" * 64, "restartPolicy": "Always"}],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}},
            {"name": "cm", "configMap": {"name": "x"}},
            {"name": "host", "hostPath": {"path": "/x"}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "d", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        "serviceAccountName": "runner",
        "hostNetwork": False,
        "tolerations": [{"key": "cache", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": LABELS},
            }
        ],
    }


def deployment(namespace: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kv", "namespace": namespace, "labels": dict(LABELS)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod_spec()},
            **spec,
        },
    }


def stateful_set(namespace: str) -> Manifest:
    child = deployment(namespace, serviceName="kv")
    return {**child, "kind": "StatefulSet"}


def service(namespace: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kv", "namespace": namespace, "labels": dict(LABELS)},
        "spec": {"ports": [{"name": "lm", "port": 65432, "targetPort": "lm"}], "selector": LABELS, **spec},
    }


def autoscaler(namespace: str) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": 80}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "kv", "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "kv"},
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def on_host_network(namespace: str) -> Manifest:
    child = deployment(namespace, strategy={"type": "Recreate"})
    child["spec"]["template"]["spec"] |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return child


@pytest.fixture
async def owner(client: Client, namespace: str) -> ConfigMap:
    await client.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": namespace}}
    )
    return await client.get(ConfigMap, Key(namespace, "owner"))


class Bench:
    """One child of one owner: apply it, look at it, and count the writes it took."""

    def __init__(self, client: Client, owner: Kind) -> None:
        self.client, self.owner = client, owner

    async def settle(self, child: Manifest) -> Manifest | None:
        """One pass of a reconciler that sees the child through its cached view."""
        view = VIEWS[child["kind"]]
        key = Key(child["metadata"]["namespace"], child["metadata"]["name"])
        seen = [v for v in await self.client.list(view, namespace=key.namespace) if Key.of(v) == key]
        return await apply_child(
            self.client, child, seen[0] if seen else None, self.owner, AUTHORITATIVE.get(child["kind"], ())
        )

    async def live(self, child: Manifest) -> Manifest:
        meta = child["metadata"]
        return await self.client.get_manifest(VIEWS[child["kind"]].resource, Key(meta["namespace"], meta["name"]))

    async def interfere(self, child: Manifest, patch: Any) -> None:
        other = Client(self.client.connection, field_manager="kubectl-edit")
        meta = child["metadata"]
        await other.patch(VIEWS[child["kind"]].resource, Key(meta["namespace"], meta["name"]), patch)

    async def settles(self, child: Manifest) -> Manifest:
        """Apply once; a second pass must then find nothing to do."""
        await self.settle(child)
        before = await self.live(child)
        assert await self.settle(child) is None
        assert await self.live(child) == before
        return before


@pytest.fixture
def bench(client: Client, owner: ConfigMap) -> Bench:
    return Bench(client, owner)


@pytest.mark.parametrize("make", [deployment, stateful_set, service, autoscaler, on_host_network])
async def test_an_unchanged_child_is_not_written(
    bench: Bench, namespace: str, make: Callable[[str], Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = make(namespace)
    first = await bench.settles(child)

    requests: list[str] = []
    monkeypatch.setattr(bench.client, "request", lambda *args, **_: requests.append(str(args)))
    assert await apply_child(bench.client, child, first, bench.owner, AUTHORITATIVE.get(child["kind"], ())) is None
    assert requests == []


async def test_what_others_change_in_a_workload_is_put_back(bench: Bench, namespace: str) -> None:
    child = deployment(namespace)
    await bench.settles(child)
    containers = [{"name": "main", "image": "other:1", "args": ["x"]}, {"name": "extra", "image": "y"}]
    await bench.interfere(
        child,
        {
            "metadata": {"annotations": {"who": "me"}},
            "spec": {"replicas": 5, "template": {"spec": {"containers": containers, "nodeSelector": {"a": "b"}}}},
        },
    )
    live = await bench.settles(child)
    spec = live["spec"]["template"]["spec"]
    assert live["spec"]["replicas"] == 1
    assert "nodeSelector" not in spec
    assert [(c["name"], c["image"]) for c in spec["containers"]] == [
        (c["name"], c["image"]) for c in pod_spec()["containers"]
    ]
    assert spec["containers"][0]["args"] == ["0.0.0.0", "65432"]
    assert live["metadata"]["annotations"]["who"] == "me"


async def test_what_others_change_in_a_service_is_put_back(bench: Bench, namespace: str) -> None:
    child = service(namespace)
    address = (await bench.settles(child))["spec"]["clusterIP"]
    await bench.interfere(
        child,
        {"spec": {"ports": [{"name": "lm", "port": 7777, "targetPort": "lm"}], "selector": {"extra": "1"}}},
    )
    live = await bench.settles(child)
    assert [port["port"] for port in live["spec"]["ports"]] == [65432]
    assert live["spec"]["selector"] == LABELS
    assert live["spec"]["clusterIP"] == address


async def test_what_is_no_longer_wanted_is_taken_back(bench: Bench, namespace: str) -> None:
    child = deployment(namespace)
    child["metadata"]["labels"]["old"] = "1"
    child["spec"]["template"]["spec"] |= {"nodeSelector": {"pool": "cache"}, "schedulerName": "volcano"}
    await bench.settles(child)
    live = await bench.settles(deployment(namespace))
    assert live["metadata"]["labels"] == LABELS
    assert "nodeSelector" not in live["spec"]["template"]["spec"]
    assert live["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"


async def test_onto_the_host_network_and_back(bench: Bench, namespace: str) -> None:
    await bench.settles(deployment(namespace))
    assert (await bench.settles(on_host_network(namespace)))["spec"]["strategy"] == {"type": "Recreate"}
    live = await bench.settles(deployment(namespace))
    assert live["spec"]["strategy"]["type"] == "RollingUpdate"
    assert "hostPort" not in live["spec"]["template"]["spec"]["containers"][0]["ports"][0]


async def test_from_headless_and_back(bench: Bench, namespace: str) -> None:
    await bench.settles(service(namespace))
    assert (await bench.settles(service(namespace, clusterIP="None")))["spec"]["clusterIP"] == "None"
    assert (await bench.settles(service(namespace)))["spec"]["clusterIP"] != "None"


@pytest.mark.parametrize("held", [False, True])
async def test_a_foreign_object_is_untouched(bench: Bench, namespace: str, held: bool) -> None:
    child = service(namespace, ports=[{"name": "mine", "port": 1}])
    if held:
        owners = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "another", "controller": True}]
        child["metadata"]["ownerReferences"] = owners
    await bench.client.create(child)
    before = await bench.live(child)
    holder = "Node n" if held else "nobody"
    with pytest.raises(ChildConflict, match=f"Service {namespace}/kv exists and is controlled by {holder}"):
        await bench.settle(service(namespace))
    # A cache that has not seen it yet changes nothing about that.
    with pytest.raises(ChildConflict):
        await apply_child(bench.client, service(namespace), None, bench.owner)
    assert await bench.live(child) == before


async def test_a_namesake_made_since_is_not_hit(bench: Bench, namespace: str) -> None:
    child = service(namespace)
    seen = await bench.settles(child)
    await bench.client.delete(Service.resource, Key(namespace, "kv"))
    foreign = await bench.client.create(service(namespace, ports=[{"name": "mine", "port": 1}]))
    with pytest.raises(Exception, match=r"UID|uid"):
        await apply_child(bench.client, service(namespace, ports=[{"port": 2}]), seen, bench.owner)
    assert (await bench.live(child))["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
