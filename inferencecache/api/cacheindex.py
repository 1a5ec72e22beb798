"""CacheIndex: the cluster-wide view of the prefix index, one object that the controller writes (spec 01 §5)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.model import AGE, Column, CustomObject, CustomResource, Int64, Model, Schema, Text, Time


class CacheIndexSpec(Model):
    """Nothing to configure."""


class ReplicaStatus(Model):
    """One engine replica that reports to the index."""

    id: Annotated[Text, Schema(required=True)] = ""
    tenant: Text | None = None
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
    hit_rate: Text | None = None
    memory_used: Int64 | None = None
    """Deprecated; always 0."""


class PrefixSummary(Model):
    """Counts of prefixes."""

    total: Annotated[Int64, Schema(required=True)] = 0
    hot: Annotated[Int64, Schema(required=True)] = 0


class Prefixes(Model):
    """Prefixes in the index."""

    summary: PrefixSummary | None = None


class CacheIndexStatus(Model):
    """What the index server reported."""

    replicas: Annotated[tuple[ReplicaStatus, ...] | None, Schema(list_map_key="id")] = None
    tenants: Annotated[tuple[TenantStatus, ...] | None, Schema(list_map_key="id")] = None
    prefixes: Prefixes | None = None
    observed_server: Text | None = None
    """Where the report came from."""
    last_updated: Time | None = None


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
