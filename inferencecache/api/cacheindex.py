"""CacheIndex: the cluster-wide view of the prefix index, one object that the controller writes (spec 01 §5)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.model import AGE, Column, CustomObject, CustomResource, Int64, Model, Schema, Text, Time


class CacheIndexSpec(Model):
    """Nothing to configure."""


class ReplicaStatus(Model):
    """One engine replica that reports to the index."""

    id: Annotated[Text, Schema(required=True)] = ""
    """Name of the engine's Pod."""
    tenant: Text | None = None
    """Namespace of the engine."""
    pressure: Text | None = None
    """Load, as a decimal number."""
    cache_memory_bytes: Int64 | None = None
    """Memory of the engine's KV cache."""
    hit_rate: Text | None = None
    """Absent means not reported; "0" is a real zero."""
    last_update: Time | None = None
    """When this row last changed."""


class TenantStatus(Model):
    """One tenant of the index."""

    id: Annotated[Text, Schema(required=True)] = ""
    """Empty for traffic without a tenant."""
    index_entries: Int64 | None = None
    """Distinct prefixes of the tenant."""
    hit_rate: Text | None = None
    """Absent means not reported."""
    memory_used: Int64 | None = None
    """Deprecated; always 0."""


class PrefixSummary(Model):
    """Counts of prefixes."""

    total: Annotated[Int64, Schema(required=True)] = 0
    """All prefixes."""
    hot: Annotated[Int64, Schema(required=True)] = 0
    """Prefixes in frequent use; 0 today."""


class Prefixes(Model):
    """Prefixes in the index."""

    summary: PrefixSummary | None = None
    """Counts over all tenants."""


class CacheIndexStatus(Model):
    """What the index server reported."""

    replicas: Annotated[tuple[ReplicaStatus, ...] | None, Schema(list_map_keys=("id",))] = None
    """Engine replicas that reported load."""
    tenants: Annotated[tuple[TenantStatus, ...] | None, Schema(list_map_keys=("id",))] = None
    """What each tenant has in the index."""
    prefixes: Prefixes | None = None
    """Prefixes in the index."""
    observed_server: Text | None = None
    """Where the report came from."""
    last_updated: Time | None = None
    """When anything but a time last changed."""


class CacheIndex(CustomObject):
    """The cluster-wide view of the prefix index; the one object `cluster-default` is written by the controller."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="CacheIndex",
        plural="cacheindices",
        short_names=("ci",),
        namespaced=False,
        spec_required=False,
        columns=(
            Column("Prefixes", ".status.prefixes.summary.total", "integer"),
            Column("Changed", ".status.lastUpdated", "date"),
            AGE,
        ),
    )

    spec: CacheIndexSpec = CacheIndexSpec()
    status: CacheIndexStatus = CacheIndexStatus()
