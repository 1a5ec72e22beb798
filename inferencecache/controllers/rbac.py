"""What the reconcilers may do in a cluster: the rules of the controller's ClusterRole, next to the code they serve.

Only what some line of code asks for is here (spec 05 §1.4). Children are written by server-side apply and patches, so
nothing needs `update`; the one exception is the `finalizers` subresource, which the API server checks when an owner
reference blocks its owner's deletion. What the process needs in its own namespace (the Lease, the certificates' Secret)
belongs to whoever composes the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Pod, ReplicaSet, Service, StatefulSet
from inferencecache.kube.resource import Resource

_READ = ("get", "list", "watch")
_OWN = ("create", "delete", "get", "list", "patch", "watch")


def rbac_rules() -> list[Mapping[str, Any]]:
    """The rules, in the shape of `ClusterRole.rules`."""
    backends = CacheBackend.resource
    told = [kind.resource for kind in (CacheIndex, CacheTenant, PDTopology, PromptTemplate)]
    return [
        _rule((Pod.resource,), _READ),
        _rule((ReplicaSet.resource,), _READ),
        *(_rule((kind.resource,), _OWN) for kind in (Service, Deployment, StatefulSet, HorizontalPodAutoscaler)),
        _rule((EVENTS,), ("create", "patch")),
        _rule((backends,), _READ),
        _rule((backends,), ("patch",), subresource="status"),
        _rule((backends,), ("update",), subresource="finalizers"),
        _rule((CacheIndex.resource,), ("create",)),
        _rule((*told, CachePolicy.resource), _READ),
        _rule(told, ("patch",), subresource="status"),
    ]


def _rule(resources: Iterable[Resource], verbs: Iterable[str], *, subresource: str = "") -> dict[str, Any]:
    listed = list(resources)
    tail = f"/{subresource}" if subresource else ""
    return {
        "apiGroups": sorted({resource.group for resource in listed}),
        "resources": [resource.plural + tail for resource in listed],
        "verbs": list(verbs),
    }
