"""CacheBackend: an engine-side cache, an optional remote tier, and how engines use them (seed: Spec; spec 01 §2–§3).

Fields that a user may leave out are `None` when absent. The properties at the end of `CacheBackend` give the effective
values for objects that bypassed the API server's defaulting, so that no reader has to know the fallbacks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from pydantic import Field

from inferencecache.api import constants as c
from inferencecache.api import rules
from inferencecache.api.core import (
    Affinity,
    EnvVar,
    LocalObjectReference,
    PodSecurityContext,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
)
from inferencecache.api.duration import Duration
from inferencecache.api.model import (
    AGE,
    Column,
    Condition,
    CustomObject,
    CustomResource,
    Flag,
    Int32,
    Int64,
    Model,
    Schema,
    Text,
    Time,
)
from inferencecache.api.quantity import Quantity

DEFAULT_FIRST_EVENT_TIMEOUT: Final = timedelta(minutes=5)


class HostMemory(Model):
    """Cache in the host memory of the engine's node."""

    capacity: Annotated[Quantity | None, Schema(rules=(rules.POSITIVE_CAPACITY,))] = None
    """How much host memory the cache may use, as 20Gi."""


class LMCacheSpec(Model):
    """Settings of the LMCache client in the engine."""

    chunk_size_tokens: Annotated[Int32 | None, Schema(minimum=1)] = None
    """Tokens per cached chunk. 256 when unset."""
    host_memory: HostMemory | None = None
    """Cache in host memory."""
    worker_image: Text | None = None
    """Image of the SGLang multi-process worker. The engine's image when unset."""
    worker_port: Annotated[Int32 | None, Schema(minimum=1, maximum=65535)] = None
    """Loopback port between SGLang and its worker. 5555 when unset."""
    remote_serde: Text | None = None
    """Serializer of remote entries (vLLM). naive when unset."""


_Command = Annotated[tuple[Annotated[Text, Schema(min_length=1)], ...] | None, Schema(min_items=1)]


class RedisSpec(Model):
    """A managed Redis."""

    image: Text | None = None
    """Container image."""
    resources: ResourceRequirements | None = None
    """Resources of the Redis container; its memory limit also sizes the store."""


class ServerSpec(Model):
    """A managed cache server."""

    image: Text | None = None
    """Container image."""
    command: _Command = None
    """The whole argument vector; ports and probes do not follow it."""
    resources: ResourceRequirements | None = None
    """Resources of the server's container."""


class PoolBindingReference(Model):
    """The name of a KVCachePoolBinding in the backend's namespace."""

    name: Annotated[Text, Schema(required=True, min_length=1)] = ""
    """The Binding."""


class RemoteStorage(Model):
    """An optional remote tier behind the engine-side cache."""

    provider: Annotated[
        Text, Schema(required=True, enum=(c.PROVIDER_REDIS, c.PROVIDER_LMCACHE_SERVER, c.PROVIDER_MOONCAKE))
    ] = ""
    """The technology of the remote tier."""
    ownership: Annotated[Text, Schema(required=True, enum=(c.OWNERSHIP_MANAGED, c.OWNERSHIP_EXTERNAL))] = ""
    """Managed: the controller runs it. External: somebody else does, at `endpoint`."""
    endpoint: Text | None = None
    """host:port of an External store; refused for Managed."""
    redis: RedisSpec | None = None
    """Settings of a managed Redis."""
    lm_cache_server: ServerSpec | None = None
    """Settings of a managed LMCache server."""
    mooncake: ServerSpec | None = None
    """Settings of a managed Mooncake master."""
    pool_binding_ref: PoolBindingReference | None = None
    """Use the KV cache pool of a Binding in place of a master of its own (Mooncake, Managed)."""

    @property
    def managed(self) -> bool:
        """The controller owns the store."""
        return self.ownership == c.OWNERSHIP_MANAGED

    @property
    def external(self) -> bool:
        """Somebody else owns the store."""
        return self.ownership == c.OWNERSHIP_EXTERNAL

    @property
    def provider_block(self) -> RedisSpec | ServerSpec | None:
        """The typed block of the selected provider."""
        blocks: dict[str, RedisSpec | ServerSpec | None] = {
            c.PROVIDER_REDIS: self.redis,
            c.PROVIDER_LMCACHE_SERVER: self.lm_cache_server,
            c.PROVIDER_MOONCAKE: self.mooncake,
        }
        return blocks.get(self.provider)


class Observation(Model):
    """What engine events are observed, and how long to wait for the first."""

    model_id: Annotated[Text | None, Field(alias="modelID")] = None
    """The model's identity in the index. Without it no subscriber is injected."""
    first_event_timeout: Annotated[Duration | None, Schema(default="5m")] = None
    """How long an available backend may go without its first KV event before it is degraded."""


class Autoscaling(Model):
    """Autoscaling of the managed workload."""

    min_replicas: Annotated[Int32 | None, Schema(minimum=1)] = None
    """Lower bound; the replicas of the first apply when unset."""
    max_replicas: Annotated[Int32, Schema(required=True, minimum=1)] = 0
    """Upper bound."""
    target_cpu_utilization_percent: Annotated[
        Int32 | None, Field(alias="targetCPUUtilizationPercent"), Schema(minimum=1, maximum=100)
    ] = None
    """Target average CPU utilization per Pod, in percent. 80 when unset."""


class EngineOverrides(Model):
    """Changes to what the webhook injects into the engine container; reserved flags and variables are refused."""

    args: tuple[Text, ...] | None = None
    """Args to add, or to put in place of injected ones."""
    suppress_args: tuple[Text, ...] | None = None
    """Flags that must not be injected."""
    env: tuple[EnvVar, ...] | None = None
    """Variables to add, or to put in place of injected ones."""
    suppress_env: tuple[Text, ...] | None = None
    """Names of variables that must not be injected."""


class Integration(Model):
    """How engines take part."""

    mode: Annotated[Text | None, Schema(default=c.MODE_OFFLOAD, enum=(c.MODE_OFFLOAD, c.MODE_EVENTS_ONLY))] = None
    """Offload: routing and KV offload. EventsOnly: routing only."""
    role: Annotated[
        Text | None,
        Schema(default=c.ROLE_READ_WRITE, enum=(c.ROLE_READ_ONLY, c.ROLE_WRITE_ONLY, c.ROLE_READ_WRITE)),
    ] = None
    """Whether engines read from the cache, write to it, or both."""
    fail_open: Annotated[Flag | None, Schema(default=True)] = None
    """Engines fall back to local prefill when the cache is unreachable."""
    engine_overrides: EngineOverrides | None = None
    """Changes to the injected args and variables."""
    engine_host_network: Flag | None = None
    """Move wired engine Pods onto the host network (Mooncake only)."""


class EngineSelector(Model):
    """Which engine Pods belong to this backend."""

    match_labels: dict[Text, Text] | None = None
    """Labels that must all be on the Pod. Empty selects none."""


HICACHE_WRITE_POLICIES: Final = ("write_back", "write_through", "write_through_selective")
HICACHE_IO_BACKENDS: Final = ("direct", "kernel", "kernel_ascend")
HICACHE_MEMORY_LAYOUTS: Final = ("layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head")

_RATIO: Final = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_ratio(text: str) -> float | None:
    """A ratio of HiCache: a finite number above zero, or None if the text is none, or one too large or too small."""
    number = float(text) if _RATIO.fullmatch(text) else 0.0
    return number if 0 < number < math.inf else None


class HiCache(Model):
    """SGLang's native host cache. Exactly one of sizeGB and ratio."""

    size_gb: Annotated[Int32 | None, Field(alias="sizeGB"), Schema(minimum=1)] = None
    """Host cache size in decimal GB."""
    ratio: Text | None = None
    """Host cache size as a multiple of the device cache: a number above zero."""
    write_policy: Annotated[Text | None, Schema(enum=HICACHE_WRITE_POLICIES)] = None
    """When entries go to the host."""
    io_backend: Annotated[Text | None, Schema(enum=HICACHE_IO_BACKENDS)] = None
    """How entries are copied."""
    memory_layout: Annotated[Text | None, Schema(enum=HICACHE_MEMORY_LAYOUTS)] = None
    """Layout of the host cache."""


class Template(Model):
    """Pod-level settings of the managed workload. The first nine replace what is rendered, even when empty."""

    node_selector: Annotated[dict[Text, Text] | None, Schema(atomic=True)] = None
    """Labels a node must have."""
    affinity: Affinity | None = None
    """Nodes and Pods to be near to, or away from."""
    tolerations: tuple[Toleration, ...] | None = None
    """Taints that are tolerated."""
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    """How replicas spread over zones or nodes."""
    image_pull_secrets: tuple[LocalObjectReference, ...] | None = None
    """Secrets for the image's registry."""
    service_account_name: Text | None = None
    """The account the Pods run under."""
    security_context: PodSecurityContext | None = None
    """Security attributes of the whole Pod."""
    priority_class_name: Text | None = None
    """Priority of the Pods."""
    runtime_class_name: Text | None = None
    """Container runtime of the Pods."""
    scheduler_name: Text | None = None
    """Who schedules the Pods. default-scheduler when unset."""
    termination_grace_period_seconds: Annotated[Int64 | None, Schema(minimum=0)] = None
    """Seconds between the signal to stop and the end. 30 when unset."""


class CacheBackendSpec(Model):
    """The wanted cache."""

    runtime: Annotated[Text, Schema(required=True, enum=(c.RUNTIME_VLLM, c.RUNTIME_SGLANG))] = ""
    """The inference runtime."""
    type: Annotated[Text | None, Schema(default=c.TYPE_LMCACHE, enum=(c.TYPE_LMCACHE, c.TYPE_HICACHE))] = None
    """The engine-side cache."""
    lm_cache: LMCacheSpec | None = None
    """Settings of LMCache."""
    remote_storage: Annotated[RemoteStorage | None, Schema(rules=rules.STORAGE)] = None
    """The remote tier. Absent means host-only."""
    observation: Observation | None = None
    """Event observation."""
    deployment_kind: Annotated[
        Text | None, Schema(default=c.KIND_DEPLOYMENT, enum=(c.KIND_DEPLOYMENT, c.KIND_STATEFUL_SET))
    ] = None
    """Kind of the managed workload."""
    replicas: Annotated[Int32 | None, Schema(default=1, minimum=0)] = None
    """Replicas of the managed workload."""
    autoscaling: Annotated[Autoscaling | None, Schema(rules=(rules.ORDERED_REPLICAS,))] = None
    """Autoscaling of the managed workload."""
    integration: Integration | None = None
    """How engines take part."""
    engine_selector: EngineSelector | None = None
    """Which engine Pods belong to this backend."""
    hi_cache: HiCache | None = None
    """Settings of SGLang's native host cache."""
    template: Template | None = None
    """Pod-level settings of the managed workload."""
    allow_cross_namespace: Flag | None = None
    """Let `remoteStorage.endpoint` name a Service of another namespace."""


class IndexParticipation(Model):
    """What the prefix index holds of this backend's engines. Written by the index poller only."""

    prefix_count: Annotated[Int64, Schema(required=True, minimum=0)] = 0
    """Prefixes held by this backend's replicas."""
    last_event_at: Time | None = None
    """When an engine last reported an event; absent means never."""
    hit_rate: Text | None = None
    """Reserved; never set."""
    t2_hit_rate: Text | None = None
    """Hit rate of the remote tier in [0,1]; absent means it was never asked."""


class CacheBackendStatus(Model):
    """The observed cache."""

    endpoint: Text | None = None
    """The address engines use."""
    matched_engine_pods: Annotated[Int32 | None, Schema(minimum=0)] = None
    """Pods that match the selector; absent means not counted."""
    engine_selector_message: Text | None = None
    """Why no Pod matches, when some should."""
    fail_open: Flag | None = None
    """The effective fail-open mode."""
    observed_generation: Annotated[Int64 | None, Schema(minimum=0)] = None
    """The generation this status was derived from."""
    first_kv_event_observed_at: Annotated[Time | None, Field(alias="firstKVEventObservedAt")] = None
    """When a KV event was first seen; never cleared."""
    first_available_at: Time | None = None
    """When the backend was first available; the first-event timeout counts from here."""
    observed_server_instance: Text | None = None
    """The cache-server Pods that engines were last known to be connected to."""
    index_participation: IndexParticipation | None = None
    """What the prefix index holds of this backend's engines."""
    conditions: Annotated[tuple[Condition, ...] | None, Schema(list_map_keys=("type",))] = None
    """Conditions by type."""


class CacheBackend(CustomObject):
    """An engine-side KV cache, its optional remote tier, and the engines that use them."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="CacheBackend",
        plural="cachebackends",
        short_names=("cb",),
        spec_required=False,
        columns=(
            Column("Type", ".spec.type"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Matched", ".status.matchedEnginePods", "integer"),
            Column("Endpoint", ".status.endpoint"),
            Column("Prefixes", ".status.indexParticipation.prefixCount", "integer"),
            Column("LastEvent", ".status.indexParticipation.lastEventAt", "date"),
            AGE,
        ),
    )

    spec: Annotated[CacheBackendSpec, Schema(rules=rules.BACKEND)] = CacheBackendSpec()
    status: CacheBackendStatus = CacheBackendStatus()

    @property
    def pool_binding(self) -> str:
        """The name of the Binding whose pool is the remote tier; empty for a store of any other kind."""
        storage = self.spec.remote_storage
        return storage.pool_binding_ref.name if storage is not None and storage.pool_binding_ref is not None else ""

    @property
    def runtime_id(self) -> str:
        """The lower-case id that adapters are registered under; empty if no runtime is given."""
        return self.spec.runtime.lower()

    @property
    def cache_type(self) -> str:
        """The engine-side cache; empty counts as LMCache."""
        return self.spec.type or c.TYPE_LMCACHE

    @property
    def mode(self) -> str:
        """The integration mode; empty counts as Offload."""
        return (self.spec.integration and self.spec.integration.mode) or c.MODE_OFFLOAD

    @property
    def events_only(self) -> bool:
        """Only routing is wired."""
        return self.mode == c.MODE_EVENTS_ONLY

    @property
    def role(self) -> str:
        """The role of engines; empty counts as ReadWrite."""
        return (self.spec.integration and self.spec.integration.role) or c.ROLE_READ_WRITE

    @property
    def fail_open(self) -> bool:
        """Whether engines may serve without the cache; absent counts as true."""
        integration = self.spec.integration
        return True if integration is None or integration.fail_open is None else integration.fail_open

    @property
    def replicas(self) -> int:
        """The wanted replicas; absent counts as 1."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def stateful(self) -> bool:
        """The managed workload is a StatefulSet."""
        return self.spec.deployment_kind == c.KIND_STATEFUL_SET

    @property
    def model_id(self) -> str:
        """The observed model; empty if none is given."""
        return (self.spec.observation and self.spec.observation.model_id) or ""

    @property
    def first_event_timeout(self) -> timedelta:
        """How long to wait for the first event; absent or not positive counts as five minutes."""
        given = self.spec.observation and self.spec.observation.first_event_timeout
        return given.timedelta if given and given.nanoseconds > 0 else DEFAULT_FIRST_EVENT_TIMEOUT

    @property
    def selector(self) -> Mapping[str, str]:
        """The engine selector's labels; empty selects no Pod."""
        return (self.spec.engine_selector and self.spec.engine_selector.match_labels) or {}

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a Pod with these labels belongs to this backend: every pair present, and at least one asked for."""
        wanted = self.selector
        return bool(wanted) and all(key in labels and labels[key] == value for key, value in wanted.items())

    def competes_with(self, other: CacheBackend) -> bool:
        """Whether some Pod could match both selectors: both select something, and no label is asked to have two values.

        Namespaces are the caller's to compare.
        """
        mine, theirs = self.selector, other.selector
        return bool(mine and theirs) and all(theirs.get(key, value) == value for key, value in mine.items())

    @property
    def kernel_check_mode(self) -> str:
        """The kernel-check annotation; absent, empty or unknown counts as auto."""
        given = self.metadata.annotations.get(c.ANNOTATION_KERNEL_CHECK, "")
        return given if given in c.KERNEL_CHECK_MODES else "auto"
