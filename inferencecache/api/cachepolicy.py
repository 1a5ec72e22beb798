"""CachePolicy: how the index of one namespace evicts and answers lookups (spec 01 §5)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from inferencecache.api import rules
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
)


class Strategy(Model):
    """Which lookup strategies are used."""

    enable_chain_matching: Annotated[Flag | None, Schema(default=True)] = None
    """Match chains of block hashes."""
    require_chain: Annotated[Flag | None, Schema(default=False)] = None
    """Answer only from chain matches."""
    enable_tenant_hot: Annotated[Flag | None, Schema(default=True)] = None
    """Fall back to replicas that are hot for the tenant."""


class CachePolicySpec(Model):
    """Eviction and lookup settings."""

    eviction: Annotated[Text | None, Schema(default="LRU", enum=("LRU", "LFU"))] = None
    """Which entries go first."""
    eviction_ttl: Annotated[Duration | None, Field(alias="evictionTTL")] = None
    """How long an unused entry lives. The server's 30m when unset."""
    minimum_prefix_tokens: Annotated[Int32 | None, Schema(minimum=0)] = None
    """Shorter requests get no hint."""
    minimum_matched_tokens: Annotated[Int32 | None, Schema(default=64, minimum=0)] = None
    """Shorter matches give no hint; 0 disables."""
    routing_floor_score: Annotated[
        Text | None, Schema(default="0.1", pattern=r"^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$")
    ] = None
    """Lower scores give no hint; "0" disables."""
    lookup_timeout_ms: Annotated[Int32 | None, Schema(minimum=0)] = None
    """Budget of a lookup in milliseconds; 0 or absent is unbounded."""
    strategy: Strategy | None = None
    """Which lookup strategies are used."""
    affinity_routing: Annotated[Text | None, Schema(default="Enabled", enum=("Enabled", "Disabled"))] = None
    """Keep a session on its replica."""


class CachePolicyStatus(Model):
    """Reserved."""

    observed_generation: Int64 | None = None
    """Reserved."""
    conditions: Annotated[tuple[Condition, ...] | None, Schema(list_map_keys=("type",))] = None
    """Reserved."""


class CachePolicy(CustomObject):
    """How the index of one namespace evicts and answers lookups; one per namespace."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="CachePolicy",
        plural="cachepolicies",
        short_names=("cpol",),
        columns=(Column("Eviction", ".spec.eviction"), AGE),
    )

    spec: Annotated[CachePolicySpec, Schema(rules=(rules.CHAIN_NEEDS_MATCHING,))] = CachePolicySpec()
    status: CachePolicyStatus = CachePolicyStatus()
