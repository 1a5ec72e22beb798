"""What a managed store consists of."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.adapters.registry import Workload, load_adapters
from inferencecache.controllers.cachebackend.children import children_for, endpoint_of
from inferencecache.controllers.cachebackend.plan import plan_for
from tests.unit.controllers.backends import MANAGED, backend

ON_HOST = Workload({"hostNetwork": True, "containers": [{"name": "c"}]}, {"clusterIP": "None", "ports": []})
ON_PODS = Workload({"containers": [{"name": "c"}]}, {"ports": [{"name": "p", "port": 7}]})
SCALED = {"minReplicas": 2, "maxReplicas": 6}


@pytest.mark.parametrize(
    ("spec", "store", "live", "replicas"),
    [
        ({}, ON_PODS, None, 1),
        ({"replicas": 3}, ON_PODS, 5, 3),
        ({"replicas": 3, "autoscaling": SCALED}, ON_PODS, None, 2),
        ({"replicas": 3, "autoscaling": SCALED}, ON_PODS, 4, 4),
        ({"replicas": 3, "autoscaling": SCALED}, ON_PODS, 1, 2),
        ({"replicas": 3}, ON_HOST, None, 1),
        ({"replicas": 0}, ON_HOST, 1, 0),
        ({"replicas": 3, "runtime": "SGLang"}, ON_PODS, None, 1),
    ],
)
def test_replicas(spec: dict[str, Any], store: Workload, live: int | None, replicas: int) -> None:
    children = children_for(backend(**spec), store, live)
    assert children.workload["spec"]["replicas"] == replicas
    assert (children.autoscaler is not None) == ("autoscaling" in spec)


@pytest.mark.parametrize(("store", "strategy"), [(ON_PODS, "RollingUpdate"), (ON_HOST, "Recreate")])
def test_pods_on_the_host_network_are_replaced_not_rolled(store: Workload, strategy: str) -> None:
    assert children_for(backend(), store, None).workload["spec"]["strategy"] == {"type": strategy}


def test_a_stateful_set_stands_where_a_deployment_would() -> None:
    """Decision F9."""
    wanted = backend(deploymentKind="StatefulSet", autoscaling=SCALED, remoteStorage=MANAGED)
    store = plan_for(wanted, *load_adapters()).store
    assert store is not None
    children = children_for(wanted, store, None)
    assert children.workload["kind"] == "StatefulSet"
    assert children.workload["spec"]["serviceName"] == children.service["metadata"]["name"] == "kv"
    assert children.autoscaler is not None
    assert children.autoscaler["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    assert endpoint_of(wanted, children.service) == "kv.ns.svc.cluster.local:65432"


def test_a_template_replaces_its_nine_fields_even_when_empty() -> None:
    store = Workload({**ON_PODS.pod_spec, "nodeSelector": {"a": "b"}, "schedulerName": "mine"}, ON_PODS.service_spec)
    spec = children_for(backend(template={"priorityClassName": "high"}), store, None).workload["spec"]
    pod = spec["template"]["spec"]
    assert "nodeSelector" not in pod
    assert (pod["priorityClassName"], pod["schedulerName"], pod["terminationGracePeriodSeconds"]) == (
        "high",
        "mine",
        30,
    )
