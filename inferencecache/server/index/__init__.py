"""The in-memory prefix index: which replica holds which prefix, and what that is worth (spec 06 §6)."""

from __future__ import annotations

from inferencecache.server.index.index import MAX_AHEAD_US, PrefixIndex
from inferencecache.server.index.model import (
    RESERVED_TENANT,
    Code,
    Eviction,
    EvictionReason,
    Holds,
    Outcome,
    Query,
    ReplicaRow,
    ReplicaScore,
    Report,
    Scope,
    Snapshot,
    Stats,
    TenantRow,
    TenantRules,
)
from inferencecache.server.index.ranking import Ranker

__all__ = [
    "MAX_AHEAD_US",
    "RESERVED_TENANT",
    "Code",
    "Eviction",
    "EvictionReason",
    "Holds",
    "Outcome",
    "PrefixIndex",
    "Query",
    "Ranker",
    "ReplicaRow",
    "ReplicaScore",
    "Report",
    "Scope",
    "Snapshot",
    "Stats",
    "TenantRow",
    "TenantRules",
]
