"""Typed partial views of built-in kinds: each declares the fields somebody reads, and nothing else (decision F6).

What is not declared is skipped while decoding and costs neither time nor memory. Writes never go through these views:
they are applies and patches of plain manifests, so what was not decoded is never lost. Where a reconciler compares a
whole `spec`, the view keeps it as plain values.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from inferencecache.kube.resource import Kind, Resource, ResourceType


class View(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all views: immutable, camelCase on the wire, unknown fields skipped."""


class OwnerReference(View, frozen=True):
    """`metadata.ownerReferences[]`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(View, frozen=True):
    """`metadata`; absent strings are empty, absent maps and lists are empty."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ManagedFields(View, frozen=True):
    """`metadata.managedFields[]`: who set which fields, and how."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")


class ChildMeta(ObjectMeta, frozen=True):
    """`metadata` of kinds that are written as children, where ownership of fields is looked at."""

    managed_fields: tuple[ManagedFields, ...] = ()


class WorkloadStatus(View, frozen=True):
    """The counters that a Deployment and a StatefulSet have in common."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


class Namespace(View, frozen=True):
    """`v1` Namespace."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "Namespace", "namespaces", namespaced=False)
    metadata: ObjectMeta = ObjectMeta()


class ConfigMap(View, frozen=True):
    """`v1` ConfigMap."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "ConfigMap", "configmaps")
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


class Secret(View, frozen=True):
    """`v1` Secret; `data` values are base64 text."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "Secret", "secrets")
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


class Service(View, frozen=True):
    """`v1` Service with its whole spec."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "Service", "services")
    metadata: ChildMeta = ChildMeta()
    spec: dict[str, Any] = {}


class Deployment(View, frozen=True):
    """`apps/v1` Deployment with its whole spec."""

    resource: ClassVar[Resource] = ResourceType("apps", "v1", "Deployment", "deployments")
    metadata: ChildMeta = ChildMeta()
    spec: dict[str, Any] = {}
    status: WorkloadStatus = WorkloadStatus()


class StatefulSet(View, frozen=True):
    """`apps/v1` StatefulSet with its whole spec."""

    resource: ClassVar[Resource] = ResourceType("apps", "v1", "StatefulSet", "statefulsets")
    metadata: ChildMeta = ChildMeta()
    spec: dict[str, Any] = {}
    status: WorkloadStatus = WorkloadStatus()


class DaemonSetStatus(View, frozen=True):
    """The counters of a DaemonSet: nodes that want a Pod, and how many have which."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0
    number_available: int = 0


class DaemonSet(View, frozen=True):
    """`apps/v1` DaemonSet with its whole spec."""

    resource: ClassVar[Resource] = ResourceType("apps", "v1", "DaemonSet", "daemonsets")
    metadata: ChildMeta = ChildMeta()
    spec: dict[str, Any] = {}
    status: DaemonSetStatus = DaemonSetStatus()


class ReplicaSet(View, frozen=True):
    """`apps/v1` ReplicaSet, as a link between a Pod and its Deployment."""

    resource: ClassVar[Resource] = ResourceType("apps", "v1", "ReplicaSet", "replicasets")
    metadata: ObjectMeta = ObjectMeta()


class HorizontalPodAutoscaler(View, frozen=True):
    """`autoscaling/v2` HorizontalPodAutoscaler with its whole spec."""

    resource: ClassVar[Resource] = ResourceType(
        "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"
    )
    metadata: ChildMeta = ChildMeta()
    spec: dict[str, Any] = {}


class ServiceAccount(View, frozen=True):
    """`v1` ServiceAccount, as something to run under."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "ServiceAccount", "serviceaccounts")
    metadata: ChildMeta = ChildMeta()


class Role(View, frozen=True):
    """`rbac.authorization.k8s.io/v1` Role."""

    resource: ClassVar[Resource] = ResourceType("rbac.authorization.k8s.io", "v1", "Role", "roles")
    metadata: ChildMeta = ChildMeta()
    rules: tuple[dict[str, Any], ...] = ()


class RoleBinding(View, frozen=True):
    """`rbac.authorization.k8s.io/v1` RoleBinding."""

    resource: ClassVar[Resource] = ResourceType("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
    metadata: ChildMeta = ChildMeta()
    subjects: tuple[dict[str, Any], ...] = ()
    role_ref: dict[str, Any] = {}


class PodMeta(View, frozen=True):
    """The part of a Pod's metadata that a cluster-wide cache can afford."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: str | None = None


class EnvVar(View, frozen=True):
    """`env[]` of a container, as far as it is plain text."""

    name: str = ""
    value: str = ""


class Container(View, frozen=True):
    """A container of a Pod's spec: its name and its variables."""

    name: str = ""
    env: tuple[EnvVar, ...] = ()


class PodSpec(View, frozen=True):
    """`spec` of a Pod."""

    init_containers: tuple[Container, ...] = ()


class ContainerWaiting(View, frozen=True):
    """Why a container is not running yet, or again."""

    reason: str = ""


class ContainerTerminated(View, frozen=True):
    """How a container ended; `message` is what it left in its termination log."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(View, frozen=True):
    """Waiting, terminated, or neither: running, or not heard of yet."""

    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(View, frozen=True):
    """`status.containerStatuses[]` and `status.initContainerStatuses[]`."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(View, frozen=True):
    """`status.conditions[]` of a Pod."""

    type: str = ""
    status: str = ""


class PodStatus(View, frozen=True):
    """`status` of a Pod."""

    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether the Pod takes traffic."""
        return any(one.type == "Ready" and one.status == "True" for one in self.conditions)


class Pod(View, frozen=True):
    """`v1` Pod: who it is and whose, and how its containers are doing.

    Most of that is of interest for few Pods; a cluster-wide informer had better drop it from the others.
    """

    resource: ClassVar[Resource] = ResourceType("", "v1", "Pod", "pods")
    metadata: PodMeta = PodMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class LeaseSpec(View, frozen=True):
    """`spec` of a Lease; times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(View, frozen=True):
    """`coordination.k8s.io/v1` Lease."""

    resource: ClassVar[Resource] = ResourceType("coordination.k8s.io", "v1", "Lease", "leases")
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


def controller_of(obj: Kind) -> OwnerReference | None:
    """The owner reference that controls an object, if its view carries owner references and one does."""
    owners = getattr(obj.metadata, "owner_references", ())
    return next((owner for owner in owners if owner.controller), None)
