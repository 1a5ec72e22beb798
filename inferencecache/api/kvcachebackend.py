"""KVCacheBackend: one Mooncake store, run by the operator (managed) or by somebody else (external) (spec 10 §2, §14).

A managed store has a leader, which keeps the ledger and the directory of objects, and groups of members, which lend it
memory. An external one is known by its two addresses only. The position of a member group in its list is its identity.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from inferencecache.api.core import LocalObjectReference, ResourceRequirements, Toleration
from inferencecache.api.kvcache import (
    CATEGORY,
    GROUP,
    TRANSPORTS,
    USED_BY_KEYS,
    VERSION,
    Endpoint,
    PoolCondition,
    UsedBy,
)
from inferencecache.api.model import AGE, Column, CustomObject, CustomResource, Flag, Int32, Model, Schema, Text
from inferencecache.api.quantity import Quantity

TYPE_MOONCAKE: Final = "Mooncake"
PROTOCOL_AUTO: Final = "Auto"
ELECTION_KUBERNETES: Final = "Kubernetes"
ELECTION_NONE: Final = "None"
ADDRESSING_SERVICE: Final = "Service"
ADDRESSING_LEASE: Final = "Lease"
ALLOCATION_RANDOM: Final = "Random"
ALLOCATION_FREE_RATIO_FIRST: Final = "FreeRatioFirst"
MEDIUM_DRAM: Final = "DRAM"
MEDIUM_VRAM: Final = "VRAM"

MAX_LEADERS: Final = 5
MAX_MEMBER_GROUPS: Final = 32

LEADER_VARIABLES: Final = frozenset({"KUBERNETES_POD_NAME", "KUBERNETES_POD_NAMESPACE", "KUBERNETES_POD_IP"})
"""Environment variables of a leader that are not a user's to set: by them it knows itself in an election."""
MEMBER_VARIABLES: Final = frozenset(
    {
        *("MOONCAKE_LOCAL_HOSTNAME", "MOONCAKE_TE_META_DATA_SERVER", "MOONCAKE_MASTER", "MOONCAKE_PROTOCOL"),
        *("MOONCAKE_GLOBAL_SEGMENT_SIZE", "MOONCAKE_LOCAL_BUFFER_SIZE", "MC_TE_METRIC"),
        *("MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"),
        *("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"),
        # With a file of its own a member reads none of these.
        "MOONCAKE_CONFIG_PATH",
    }
)
"""Environment variables of a member that are not a user's to set."""
MEMBER_SETTINGS: Final = frozenset(
    {
        *("local_hostname", "metadata_server", "master_server_address", "protocol"),
        *("global_segment_size", "local_buffer_size", "enable_ssd_offload", "ssd_offload_path"),
    }
)
"""Settings of a member that `extraArgs` must not override, as they say what those variables say."""

_Image = Annotated[Text | None, Schema(max_length=512)]


class Transport(Model):
    """How the bytes of the cache travel."""

    protocol: Annotated[Text, Schema(default=PROTOCOL_AUTO, enum=tuple(TRANSPORTS))] = PROTOCOL_AUTO
    """The transfer protocol. Auto is TCP."""


class EnvValue(Model):
    """An environment variable with a literal value."""

    name: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """The variable."""
    value: Text = ""
    """Its value; empty when left out."""


_ExtraArgs = dict[Text, Text]
_ExtraEnv = Annotated[tuple[EnvValue, ...], Schema(list_map_keys=("name",))]


class Leader(Model):
    """The master of a managed store."""

    replicas: Annotated[Int32, Schema(default=1, minimum=1, maximum=MAX_LEADERS)] = 1
    """Leader Pods, of which one serves; more than one needs an election."""
    election_backend: Annotated[
        Text, Schema(default=ELECTION_KUBERNETES, enum=(ELECTION_KUBERNETES, ELECTION_NONE))
    ] = ELECTION_KUBERNETES
    """Who elects the serving leader. None runs a single one."""
    member_addressing: Annotated[
        Text, Schema(default=ADDRESSING_SERVICE, enum=(ADDRESSING_SERVICE, ADDRESSING_LEASE))
    ] = ADDRESSING_SERVICE
    """How members find the leader: by its Service, or by the Lease of the election."""
    allocation_strategy: Annotated[
        Text,
        Schema(default=ALLOCATION_FREE_RATIO_FIRST, enum=(ALLOCATION_RANDOM, ALLOCATION_FREE_RATIO_FIRST)),
    ] = ALLOCATION_FREE_RATIO_FIRST
    """On which member a new object is placed."""
    multi_tenancy: Flag = True
    """Whether the store keeps a ledger of quotas per tenant. On when left out; needs Mooncake 0.3.12 or newer."""
    extra_args: _ExtraArgs = Field(default_factory=dict)
    """Flags of mooncake_master to add, by name; those the operator renders itself are refused."""
    extra_env: _ExtraEnv = ()
    """Environment variables to add."""
    resources: ResourceRequirements | None = None
    """Resources of the leader's container."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that are tolerated."""
    node_selector: Annotated[dict[Text, Text], Schema(atomic=True)] = Field(default_factory=dict)
    """Labels a node must have."""


class LocalDisk(Model):
    """A directory of the node that objects are moved to when memory is short."""

    path: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """Absolute path on the node."""
    capacity: Annotated[Quantity, Schema(required=True)] = Quantity(0)
    """How much of the disk may be used."""


class MemberGroup(Model):
    """Store processes on the nodes that a selector matches, one on each."""

    node_selector: Annotated[dict[Text, Text], Schema(required=True, atomic=True)] = Field(default_factory=dict)
    """Labels of the nodes that lend memory."""
    medium: Annotated[Text, Schema(required=True, enum=(MEDIUM_DRAM, MEDIUM_VRAM))] = ""
    """Which memory is lent. Cannot be changed."""
    capacity_per_member: Annotated[Quantity, Schema(required=True)] = Quantity(0)
    """How much memory each node lends."""
    local_buffer_size: Quantity | None = None
    """Memory of each member for transfers, beside what it lends."""
    image: _Image = None
    """Container image; the backend's when left out."""
    transport: Transport | None = None
    """How this group's bytes travel; as the backend says when left out."""
    extra_args: _ExtraArgs = Field(default_factory=dict)
    """Flags of the store process to add, by name."""
    extra_env: _ExtraEnv = ()
    """Environment variables to add."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that are tolerated."""
    fabric_interface_count: Annotated[Int32 | None, Schema(minimum=1)] = None
    """Fabric interfaces that each member asks for."""
    local_disks: Annotated[tuple[LocalDisk, ...], Schema(atomic=True)] = ()
    """A disk tier; at most one group may have it."""


class ScaleIn(Model):
    """How members leave."""

    grace_period_seconds: Annotated[Int32 | None, Schema(minimum=0, maximum=3600)] = None
    """Seconds a member may take to hand over before it is ended."""


class Managed(Model):
    """A store that the operator runs."""

    leader: Annotated[Leader, Schema(required=True)] = Leader()
    """The master."""
    members: Annotated[
        tuple[MemberGroup, ...], Schema(required=True, atomic=True, min_items=1, max_items=MAX_MEMBER_GROUPS)
    ] = ()
    """Who lends memory. A group is known by its position: add at the end, do not move."""
    scale_in: ScaleIn | None = None
    """How members leave."""

    @property
    def elects(self) -> bool:
        """Whether the leader is elected by a Lease."""
        return self.leader.election_backend == ELECTION_KUBERNETES

    @property
    def has_disk_tier(self) -> bool:
        """Whether some group moves objects to disk."""
        return any(group.local_disks for group in self.members)


class External(Model):
    """A store that somebody else runs."""

    endpoints: Annotated[tuple[Endpoint, ...], Schema(required=True, list_map_keys=("name",))] = ()
    """Its Client and its Admin address; both are needed."""


class Connection(Model):
    """Exactly one of managed and external."""

    managed: Managed | None = None
    """A store that the operator runs."""
    external: External | None = None
    """A store that somebody else runs."""


class KVCacheBackendSpec(Model):
    """The wanted store."""

    type: Annotated[Text, Schema(default=TYPE_MOONCAKE, enum=(TYPE_MOONCAKE,))] = TYPE_MOONCAKE
    """The store."""
    image: _Image = None
    """Image of leader and members; the operator's default when left out."""
    image_pull_policy: Annotated[Text | None, Schema(enum=("Always", "IfNotPresent", "Never"))] = None
    """When the image is pulled."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Schema(atomic=True, max_items=32)] = ()
    """Secrets for the image's registry, in the namespace of the operator."""
    transport: Annotated[Transport, Schema(default={})] = Transport()
    """How the bytes of the cache travel."""
    connection: Annotated[Connection, Schema(required=True)] = Connection()
    """The store: exactly one of managed and external."""


class Capacity(Model):
    """Memory that the members lend together; a figure is absent as long as it was not observed."""

    total: Quantity | None = None
    """Memory lent."""
    used: Quantity | None = None
    """Memory that objects take."""


class MemberStatus(Model):
    """One segment that a member lends."""

    segment_id: Annotated[Text, Field(alias="segmentID"), Schema(required=True)] = ""
    """The segment, as the store names it."""
    client_id: Annotated[Text, Field(alias="clientID")] = ""
    """The member's connection to the leader."""
    segment_name: Text = ""
    """Where the segment is reached."""
    node_name: Text = ""
    """The node that lends it."""
    medium: Text = ""
    """Which memory is lent."""
    protocol: Text = ""
    """How its bytes travel."""
    capacity: Quantity | None = None
    """How much is lent."""


class KVCacheBackendStatus(Model):
    """The observed store."""

    phase: Text = ""
    """Provisioning, Ready, Degraded, Error or Deleting."""
    phase_message: Text = ""
    """Why the phase is what it is."""
    conditions: Annotated[tuple[PoolCondition, ...], Schema(list_map_keys=("type",))] = ()
    """Conditions by type."""
    endpoints: Annotated[tuple[Endpoint, ...], Schema(list_map_keys=("name",))] = ()
    """The addresses of the store."""
    capacity: Capacity | None = None
    """Memory that the members lend together."""
    members: Annotated[tuple[MemberStatus, ...], Schema(list_map_keys=("segmentID",))] = ()
    """What each member lends."""
    used_by: Annotated[tuple[UsedBy, ...], Schema(list_map_keys=USED_BY_KEYS)] = ()
    """The pools that publish this store; it is not deleted before they are."""


class KVCacheBackend(CustomObject):
    """A store for KV caches: one that the operator runs, or the addresses of one that somebody else runs."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="KVCacheBackend",
        plural="kvcachebackends",
        short_names=("kvcb",),
        categories=(CATEGORY,),
        namespaced=False,
        group=GROUP,
        version=VERSION,
        columns=(
            Column("Type", ".spec.type"),
            Column("Phase", ".status.phase"),
            Column("Endpoint", ".status.endpoints[?(@.name=='Client')].address"),
            Column("Capacity", ".status.capacity.total"),
            AGE,
        ),
    )

    spec: KVCacheBackendSpec = KVCacheBackendSpec()
    status: KVCacheBackendStatus = KVCacheBackendStatus()

    @property
    def managed(self) -> Managed | None:
        """What the operator runs; None for a store that somebody else runs."""
        return self.spec.connection.managed

    @property
    def multi_tenant(self) -> bool | None:
        """Whether the store keeps a ledger of tenants, as declared; None for an external one."""
        return self.managed.leader.multi_tenancy if self.managed is not None else None

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports offered, in the store's words and the order of the member groups (spec 10 §12)."""
        groups = self.managed.members if self.managed is not None else ()
        chosen = [(group.transport or self.spec.transport).protocol for group in groups] or [
            self.spec.transport.protocol
        ]
        return tuple(TRANSPORTS[protocol] for protocol in chosen if protocol in TRANSPORTS)

    def address(self, name: str) -> str | None:
        """The published address of that name, `Client` or `Admin`; None as long as there is none."""
        return next((endpoint.address for endpoint in self.status.endpoints if endpoint.name == name), None)
