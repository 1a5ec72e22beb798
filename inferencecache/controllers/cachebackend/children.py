"""The objects that run a managed store, as the manifests a user would write (spec 05 §2.5–§2.7).

All children have the backend's name and namespace. `AUTHORITATIVE` lists the paths that this operator decides alone:
what others put there is taken out again, because it would change what the store is, where it runs or who reaches it.
Everywhere else what others set survives, their labels and annotations included (decision F1).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.adapters.registry import PodSpec, Workload
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.drift import FieldPath
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Service, StatefulSet
from inferencecache.kube.resource import Manifest, Resource, api_version

DEFAULT_CPU_TARGET: Final = 80

AUTHORITATIVE: Final[dict[str, tuple[FieldPath, ...]]] = {
    Deployment.resource.kind: (("spec", "strategy"), ("spec", "template", "spec")),
    StatefulSet.resource.kind: (("spec", "template", "spec"),),
    Service.resource.kind: (("spec", "ports"), ("spec", "selector"), ("spec", "externalIPs")),
    HorizontalPodAutoscaler.resource.kind: (("spec", "metrics"), ("spec", "behavior")),
}
"""What no other writer may add to, by kind of child."""

_TEMPLATE_REPLACES: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "imagePullSecrets",
    "serviceAccountName",
    "securityContext",
    "priorityClassName",
    "runtimeClassName",
)
_TEMPLATE_MAY_SET: Final = {"schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30}


@dataclass(frozen=True, slots=True)
class Children:
    """What a managed backend consists of; `autoscaler` is None when there must be none."""

    workload: Manifest
    service: Manifest
    autoscaler: Manifest | None


def children_for(backend: CacheBackend, store: Workload, live_replicas: int | None) -> Children:
    """The wanted children.

    Args:
        backend: whose store it is.
        store: what the storage adapter rendered.
        live_replicas: the replicas of the present workload, which an autoscaler may have set; None if there is none.
    """
    replicas = wanted_replicas(backend, store, live_replicas)
    workload = _stateful_set if backend.stateful else _deployment
    scaled = backend.spec.autoscaling is not None and not is_singleton(backend, store)
    return Children(
        workload=workload(backend, store, replicas),
        service=_service(backend, store),
        autoscaler=_autoscaler(backend) if scaled else None,
    )


def workload_kind(backend: CacheBackend) -> type[Deployment] | type[StatefulSet]:
    """The kind that runs the store."""
    return StatefulSet if backend.stateful else Deployment


def is_singleton(backend: CacheBackend, store: Workload) -> bool:
    """Whether more than one replica would split the store: it owns its node's ports, or its one worker per engine."""
    if backend.events_only:
        return False
    return bool(store.pod_spec.get("hostNetwork")) or (
        backend.runtime_id == "sglang" and backend.spec.type == c.TYPE_LMCACHE
    )


def wanted_replicas(backend: CacheBackend, store: Workload, live: int | None) -> int:
    """The replicas to have: fixed, or the autoscaler's choice raised to its floor; a singleton never above one."""
    if backend.spec.autoscaling is None:
        wanted = backend.replicas
    else:
        floor = backend.spec.autoscaling.min_replicas or 1
        wanted = floor if live is None else max(live, floor)
    return min(wanted, 1) if is_singleton(backend, store) else wanted


def endpoint_of(backend: CacheBackend, service: Manifest) -> str:
    """The address engines use: the Service's DNS name and its first port, without a scheme (spec 05 §2.8)."""
    ports = service.get("spec", {}).get("ports") or []
    if not ports:
        return ""
    return f"{backend.metadata.name}.{backend.metadata.namespace}.svc.cluster.local:{ports[0]['port']}"


def selector_labels(backend: CacheBackend) -> dict[str, str]:
    """The labels by which the Service and the workload find the store's Pods."""
    return {
        c.LABEL_NAME: c.CHILD_NAME,
        c.LABEL_INSTANCE: backend.metadata.name,
        c.LABEL_MANAGED_BY: c.CHILD_MANAGED_BY,
    }


def child_labels(backend: CacheBackend) -> dict[str, str]:
    """The labels of every child and of the store's Pods."""
    kind = {c.LABEL_BACKEND_TYPE: backend.spec.type} if backend.spec.type else {}
    return {**selector_labels(backend), **kind}


def _child(resource: Resource, backend: CacheBackend, spec: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": api_version(resource),
        "kind": resource.kind,
        "metadata": {
            "name": backend.metadata.name,
            "namespace": backend.metadata.namespace,
            "labels": child_labels(backend),
        },
        "spec": spec,
    }


def _deployment(backend: CacheBackend, store: Workload, replicas: int) -> Manifest:
    # Two Pods on the host network cannot share a node's ports, so the old one must be gone before the new one starts.
    strategy = "Recreate" if store.pod_spec.get("hostNetwork") else "RollingUpdate"
    spec = {**_workload_spec(backend, store, replicas), "strategy": {"type": strategy}}
    return _child(Deployment.resource, backend, spec)


def _stateful_set(backend: CacheBackend, store: Workload, replicas: int) -> Manifest:
    spec = {**_workload_spec(backend, store, replicas), "serviceName": backend.metadata.name}
    return _child(StatefulSet.resource, backend, spec)


def _workload_spec(backend: CacheBackend, store: Workload, replicas: int) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "selector": {"matchLabels": selector_labels(backend)},
        "template": {"metadata": {"labels": child_labels(backend)}, "spec": _pod_spec(backend, store.pod_spec)},
    }


def _pod_spec(backend: CacheBackend, rendered: PodSpec) -> PodSpec:
    spec = {"dnsPolicy": "ClusterFirst", **_TEMPLATE_MAY_SET, **copy.deepcopy(rendered)}
    template = backend.spec.template
    if template is None:
        return spec
    given: Mapping[str, Any] = template.manifest()
    for field in _TEMPLATE_REPLACES:
        spec.pop(field, None)
        if given.get(field):
            spec[field] = given[field]
    spec.update({field: given[field] for field in _TEMPLATE_MAY_SET if given.get(field) not in (None, "")})
    return spec


def _service(backend: CacheBackend, store: Workload) -> Manifest:
    return _child(
        Service.resource, backend, {**copy.deepcopy(store.service_spec), "selector": selector_labels(backend)}
    )


def _autoscaler(backend: CacheBackend) -> Manifest:
    wanted = backend.spec.autoscaling
    if wanted is None:
        raise ValueError(f"CacheBackend {backend.metadata.name} has no spec.autoscaling to render")
    target = workload_kind(backend).resource
    cpu = wanted.target_cpu_utilization_percent or DEFAULT_CPU_TARGET
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": cpu}},
    }
    spec = {
        "scaleTargetRef": {"apiVersion": api_version(target), "kind": target.kind, "name": backend.metadata.name},
        "minReplicas": wanted.min_replicas or 1,
        "maxReplicas": wanted.max_replicas,
        "metrics": [metric],
    }
    return _child(HorizontalPodAutoscaler.resource, backend, spec)
