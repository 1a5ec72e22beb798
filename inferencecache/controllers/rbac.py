"""What the reconcilers may do: the rules of the controller's roles, one set per half, next to the code they serve.

Only what some line of code asks for is here (spec 05 §1.4, spec 10 §15). Children are written by server-side apply and
patches, so nothing needs `update`; the one exception is the `finalizers` subresource, which the API server checks when
an owner reference blocks its owner's deletion. What the process needs in its own namespace (the Lease, the
certificates' Secret) belongs to whoever composes the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import (
    ConfigMap,
    DaemonSet,
    Deployment,
    HorizontalPodAutoscaler,
    Lease,
    Pod,
    ReplicaSet,
    Role,
    RoleBinding,
    Service,
    ServiceAccount,
    StatefulSet,
)
from inferencecache.kube.resource import Resource

_FOLLOW = ("list", "watch")
_READ = ("get", "list", "watch")
_OWN = ("create", "delete", "get", "list", "patch", "watch")


def rbac_rules() -> list[Mapping[str, Any]]:
    """The rules of the half of inferencecache.io, for a ClusterRole."""
    backends = CacheBackend.resource
    told = [kind.resource for kind in (CacheIndex, CacheTenant, PDTopology, PromptTemplate)]
    return [
        _rule((Pod.resource,), _FOLLOW),
        _rule((CachePolicy.resource,), _FOLLOW),
        _rule((ReplicaSet.resource,), _READ),
        *(_rule((kind.resource,), _OWN) for kind in (Service, Deployment, StatefulSet, HorizontalPodAutoscaler)),
        _rule((EVENTS,), ("create", "patch")),
        # Patched is the finalizer of a backend on a pool, whose Binding it claims in that one's status.
        _rule((backends,), (*_READ, "patch")),
        _rule((backends,), ("patch",), subresource="status"),
        _rule((KVCachePool.resource,), _FOLLOW),
        _rule((KVCachePoolBinding.resource,), _READ),
        _rule((KVCachePoolBinding.resource,), ("patch",), subresource="status"),
        _rule((backends,), ("update",), subresource="finalizers"),
        _rule((CacheIndex.resource,), ("create",)),
        _rule(told, _READ),
        _rule(told, ("patch",), subresource="status"),
    ]


def pool_rules() -> list[Mapping[str, Any]]:
    """The rules of the half of worker.gpustack.ai, for a ClusterRole."""
    kinds = [kind.resource for kind in (KVCacheBackend, KVCachePool, KVCachePoolBinding)]
    return [
        # Patched are finalizers. No owner reference blocks a deletion here, so their subresource is not needed.
        _rule(kinds, (*_READ, "patch")),
        _rule(kinds, ("patch",), subresource="status"),
        # Those of a cluster-scoped object are in the namespace default.
        _rule((EVENTS,), ("create", "patch")),
    ]


def store_rules() -> list[Mapping[str, Any]]:
    """The rules of the half of worker.gpustack.ai where its stores run, for a Role in that namespace."""
    workloads = (Deployment, DaemonSet, Service, ServiceAccount, Role, RoleBinding)
    return [
        *(_rule((kind.resource,), _OWN) for kind in workloads),
        _rule((ConfigMap.resource,), ("create", "get", "list", "patch", "watch")),
        # Members are replaced by deleting their Pods.
        _rule((Pod.resource,), (*_READ, "delete", "patch")),
        # Nobody can grant what they may not do: a leader elects itself by a Lease, and labels its own Pod.
        _rule((Lease.resource,), ("create", "get", "update")),
    ]


def _rule(resources: Iterable[Resource], verbs: Iterable[str], *, subresource: str = "") -> dict[str, Any]:
    listed = list(resources)
    tail = f"/{subresource}" if subresource else ""
    return {
        "apiGroups": sorted({resource.group for resource in listed}),
        "resources": [resource.plural + tail for resource in listed],
        "verbs": list(verbs),
    }
