"""The accounts of leaders and members, with which a Lease decides who leads. Without an election there are none.

Leaders and members have different ones: with the leader's a member could take the Lease from the leader it follows
(spec 10 §14). Both are held to their backend's Lease where the API allows that; what is to be created has no name yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.objects import (
    COMPONENT_LEADER,
    COMPONENT_MEMBER,
    Settings,
    child,
    leader_name,
    members_name,
)
from inferencecache.kube.kinds import Lease, Pod, Role, RoleBinding, ServiceAccount
from inferencecache.kube.resource import Manifest, Resource


def election_objects(backend: KVCacheBackend, settings: Settings) -> list[Manifest]:
    """The accounts and what they may do."""
    name = backend.metadata.name
    lease = leader_name(name)
    leads = [
        _rule(Lease.resource, ["create"]),
        _rule(Lease.resource, ["get", "update"], [lease]),
        _rule(Pod.resource, ["patch"]),
    ]
    follows = [_rule(Lease.resource, ["get"], [lease])]
    return [
        *_account(backend, settings, lease, COMPONENT_LEADER, leads),
        *_account(backend, settings, members_name(name), COMPONENT_MEMBER, follows),
    ]


def pod_fields(account: str, *, mounted: bool) -> dict[str, Any]:
    """What a Pod spec says about its account: this one with its token, or no token at all."""
    if not mounted:
        return {"automountServiceAccountToken": False}
    return {"serviceAccountName": account, "automountServiceAccountToken": True}


def _account(
    backend: KVCacheBackend, settings: Settings, name: str, component: str, rules: list[dict[str, Any]]
) -> list[Manifest]:
    subject = {"kind": ServiceAccount.resource.kind, "name": name, "namespace": settings.namespace}
    role = {"apiGroup": Role.resource.group, "kind": Role.resource.kind, "name": name}
    return [
        child(ServiceAccount.resource, backend, settings, name, component=component),
        child(Role.resource, backend, settings, name, component=component, rules=rules),
        child(RoleBinding.resource, backend, settings, name, component=component, roleRef=role, subjects=[subject]),
    ]


def _rule(resource: Resource, verbs: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": list(verbs)}
    return {**rule, "resourceNames": list(names)} if names else rule
