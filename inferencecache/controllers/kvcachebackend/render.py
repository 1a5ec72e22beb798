"""The objects that make up a managed backend, as the manifests a user would write (spec 10 §14)."""

from __future__ import annotations

from typing import Final

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend import accounts, leader, members
from inferencecache.controllers.kvcachebackend.objects import Settings
from inferencecache.kube.drift import FieldPath
from inferencecache.kube.kinds import DaemonSet, Deployment, Role, RoleBinding, Service
from inferencecache.kube.resource import Manifest

AUTHORITATIVE: Final[dict[str, tuple[FieldPath, ...]]] = {
    Deployment.resource.kind: (("spec", "strategy"), ("spec", "template", "spec")),
    DaemonSet.resource.kind: (("spec", "template", "spec"),),
    Service.resource.kind: (("spec", "ports"), ("spec", "selector"), ("spec", "externalIPs")),
    Role.resource.kind: (("rules",),),
    RoleBinding.resource.kind: (("subjects",),),
}
"""What no other writer may add to, by kind of object."""


def render(backend: KVCacheBackend, settings: Settings, live_leader: Manifest | None = None) -> list[Manifest]:
    """All objects, in the order in which they are needed; nothing for an external backend.

    `live_leader` is the leader's Deployment as it is, on which depends how many leaders there may be for now.
    """
    managed = backend.managed
    if managed is None:
        return []
    replicas = leader.replicas_for_now(managed, live_leader)
    return [
        *(accounts.election_objects(backend, settings) if managed.elects else ()),
        leader.service(backend, settings),
        leader.deployment(backend, managed, settings, replicas),
        *members.daemon_sets(backend, managed, settings),
    ]
