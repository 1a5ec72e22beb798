"""The parts of core/v1 that a CacheBackend embeds, as far as a CRD schema must know them.

They are passed on to Pods as they were written; the product itself reads resources and environment variables only.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.model import Flag, Int32, Int64, Model, Schema, Text
from inferencecache.api.quantity import Quantity
from inferencecache.api.rules import NO_CLAIMS


class ResourceClaim(Model):
    """A reference to a dynamic resource claim of the Pod."""

    name: Annotated[Text, Schema(required=True)] = ""
    request: Text | None = None


class ResourceRequirements(Model):
    """Compute resources of a container."""

    limits: dict[Text, Quantity] | None = None
    """The most the container may use."""
    requests: dict[Text, Quantity] | None = None
    """What the container is guaranteed."""
    claims: Annotated[tuple[ResourceClaim, ...] | None, Schema(list_map_keys=("name",), rules=(NO_CLAIMS,))] = None
    """Dynamic resource claims; refused at admission until they are supported end to end."""


class ObjectFieldSelector(Model):
    """A field of the Pod."""

    atomic: ClassVar[bool] = True
    api_version: Text | None = None
    field_path: Annotated[Text, Schema(required=True)] = ""


class ResourceFieldSelector(Model):
    """A resource of a container."""

    atomic: ClassVar[bool] = True
    container_name: Text | None = None
    resource: Annotated[Text, Schema(required=True)] = ""
    divisor: Quantity | None = None


class KeySelector(Model):
    """A key of a ConfigMap or Secret."""

    atomic: ClassVar[bool] = True
    name: Annotated[Text, Schema(default="")] = ""
    key: Annotated[Text, Schema(required=True)] = ""
    optional: Flag | None = None


class FileKeySelector(Model):
    """A key of an environment file in a volume."""

    atomic: ClassVar[bool] = True
    volume_name: Annotated[Text, Schema(required=True)] = ""
    path: Annotated[Text, Schema(required=True)] = ""
    key: Annotated[Text, Schema(required=True)] = ""
    optional: Annotated[Flag | None, Schema(default=False)] = None


class EnvVarSource(Model):
    """Where the value of an environment variable comes from; exactly one source."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(Model):
    """An environment variable of a container."""

    name: Annotated[Text, Schema(required=True)] = ""
    value: Text | None = None
    value_from: EnvVarSource | None = None


class LocalObjectReference(Model):
    """The name of an object in the same namespace."""

    atomic: ClassVar[bool] = True
    name: Annotated[Text, Schema(default="")] = ""


class LabelSelectorRequirement(Model):
    """One expression of a label selector."""

    key: Annotated[Text, Schema(required=True)] = ""
    operator: Annotated[Text, Schema(required=True)] = ""
    values: Annotated[tuple[Text, ...] | None, Schema(atomic=True)] = None


class LabelSelector(Model):
    """A label query."""

    atomic: ClassVar[bool] = True
    match_labels: dict[Text, Text] | None = None
    match_expressions: Annotated[tuple[LabelSelectorRequirement, ...] | None, Schema(atomic=True)] = None


class NodeSelectorTerm(Model):
    """Requirements a node must meet."""

    atomic: ClassVar[bool] = True
    match_expressions: Annotated[tuple[LabelSelectorRequirement, ...] | None, Schema(atomic=True)] = None
    match_fields: Annotated[tuple[LabelSelectorRequirement, ...] | None, Schema(atomic=True)] = None


class NodeSelector(Model):
    """Terms of which a node must meet one."""

    atomic: ClassVar[bool] = True
    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Schema(required=True, atomic=True)] = ()


class PreferredSchedulingTerm(Model):
    """A weighted node preference."""

    weight: Annotated[Int32, Schema(required=True)] = 0
    preference: Annotated[NodeSelectorTerm, Schema(required=True)] = NodeSelectorTerm()


class NodeAffinity(Model):
    """Node affinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredSchedulingTerm, ...] | None, Schema(atomic=True)
    ] = None


class PodAffinityTerm(Model):
    """Pods to be near to, or away from."""

    label_selector: LabelSelector | None = None
    namespaces: Annotated[tuple[Text, ...] | None, Schema(atomic=True)] = None
    topology_key: Annotated[Text, Schema(required=True)] = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: Annotated[tuple[Text, ...] | None, Schema(atomic=True)] = None
    mismatch_label_keys: Annotated[tuple[Text, ...] | None, Schema(atomic=True)] = None


class WeightedPodAffinityTerm(Model):
    """A weighted Pod preference."""

    weight: Annotated[Int32, Schema(required=True)] = 0
    pod_affinity_term: Annotated[PodAffinityTerm, Schema(required=True)] = PodAffinityTerm()


class PodAffinity(Model):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...] | None, Schema(atomic=True)
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[WeightedPodAffinityTerm, ...] | None, Schema(atomic=True)
    ] = None


class Affinity(Model):
    """Scheduling constraints."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Model):
    """A tolerated taint."""

    key: Text | None = None
    operator: Text | None = None
    value: Text | None = None
    effect: Text | None = None
    toleration_seconds: Int64 | None = None


class TopologySpreadConstraint(Model):
    """How Pods spread over a topology."""

    max_skew: Annotated[Int32, Schema(required=True)] = 0
    topology_key: Annotated[Text, Schema(required=True)] = ""
    when_unsatisfiable: Annotated[Text, Schema(required=True)] = ""
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: Text | None = None
    node_taints_policy: Text | None = None
    match_label_keys: Annotated[tuple[Text, ...] | None, Schema(atomic=True)] = None


class SELinuxOptions(Model):
    """SELinux context."""

    user: Text | None = None
    role: Text | None = None
    type: Text | None = None
    level: Text | None = None


class WindowsOptions(Model):
    """Windows-specific options."""

    gmsa_credential_spec_name: Text | None = None
    gmsa_credential_spec: Text | None = None
    run_as_user_name: Text | None = None
    host_process: Flag | None = None


class Profile(Model):
    """A seccomp or AppArmor profile."""

    type: Annotated[Text, Schema(required=True)] = ""
    localhost_profile: Text | None = None


class Sysctl(Model):
    """A kernel parameter."""

    name: Annotated[Text, Schema(required=True)] = ""
    value: Annotated[Text, Schema(required=True)] = ""


class PodSecurityContext(Model):
    """Pod-level security attributes."""

    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsOptions | None = None
    run_as_user: Int64 | None = None
    run_as_group: Int64 | None = None
    run_as_non_root: Flag | None = None
    supplemental_groups: Annotated[tuple[Int64, ...] | None, Schema(atomic=True)] = None
    supplemental_groups_policy: Text | None = None
    fs_group: Int64 | None = None
    fs_group_change_policy: Text | None = None
    se_linux_change_policy: Text | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    sysctls: Annotated[tuple[Sysctl, ...] | None, Schema(atomic=True)] = None
