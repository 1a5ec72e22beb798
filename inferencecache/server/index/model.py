"""What goes into the index and what comes out of it (spec 06 §6).

All instants are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple, Protocol

RESERVED_TENANT: Final = "inferencecache.io/probe"
"""The functional probe's tenant: swept like any other, but never counted, shown, limited or evicted for others."""


class Scope(NamedTuple):
    """Who may match whom: holds of different scopes never meet."""

    tenant: str
    model: str
    hash_scheme: str


class Stats(NamedTuple):
    """A replica's load, as it reported it."""

    cache_memory_bytes: int
    hit_rate: float
    pressure: float
    t2_hit_tokens: int = 0
    t2_query_tokens: int = 0


class Holds(NamedTuple):
    """Blocks of one adapter in one tier; `token_counts[i]` is the tokens up to the end of the block of `hashes[i]`."""

    adapter_id: str
    tier: int
    hashes: Sequence[bytes]
    token_counts: Sequence[int]


class Report(NamedTuple):
    """What one replica says of itself: a delta; blocks it does not name stay."""

    replica_id: str
    tenant: str
    model: str
    hash_scheme: str
    timestamp_us: int
    holds: Sequence[Holds]
    stats: Stats | None


class Query(NamedTuple):
    """What a lookup asks: the chain if there is one, else the exact hash."""

    scope: Scope
    adapter_id: str
    chain: Sequence[bytes]
    chain_counts: Sequence[int]
    exact: bytes
    ttft_ms: int


class Code(Enum):
    """What a lookup came to; NONE is nothing at all."""

    NONE = "NONE"
    PREFIX_MATCH = "PREFIX_MATCH"
    TENANT_HOT = "TENANT_HOT"
    UNKNOWN_TENANT = "UNKNOWN_TENANT"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    UNKNOWN_HASH_SCHEME = "UNKNOWN_HASH_SCHEME"


class ReplicaScore(NamedTuple):
    """One replica's worth for a request; `run` is the number of leading blocks that counted, 1 for an exact match."""

    replica_id: str
    score: float
    matched_tokens: int
    hit_probability: float
    tier: int
    run: int


class Outcome(NamedTuple):
    """The answer to a `Query`, best replica first."""

    code: Code
    scores: list[ReplicaScore]


class TenantRules(Protocol):
    """What the index asks of a tenant's policy, at the moment it matters."""

    def ttl_us(self, tenant: str) -> int:
        """How long a hold stays usable."""

    def is_lfu(self, tenant: str) -> bool:
        """Whether the least used hold goes first at the cap."""

    def max_entries(self, tenant: str) -> int | None:
        """The quota of distinct keys; None is unbounded."""


class EvictionReason(StrEnum):
    """The index was full, the holds were too old, their tenant was over its quota, or names took too much memory."""

    CAP = "cap"
    TTL = "ttl"
    OVER_ENTRIES = "over_entries"
    NAMES = "names"


class Eviction(NamedTuple):
    """What one operation removed of one tenant: keys for the reason `over_entries`, else holds."""

    tenant: str
    algorithm: str
    reason: EvictionReason
    removed: int


class ReplicaRow(NamedTuple):
    """One replica of one tenant over all its models; None where it never sent stats or holds nothing."""

    tenant: str
    replica_id: str
    stats: Stats | None
    last_update_us: int | None
    prefix_count: int
    last_event_us: int | None


class TenantRow(NamedTuple):
    """One tenant's distinct keys, and the mean hit rate of its replicas that sent stats."""

    tenant: str
    index_entries: int
    hit_rate: float | None


class Snapshot(NamedTuple):
    """The index in numbers: replicas by (tenant, replica id), tenants by id."""

    replicas: Sequence[ReplicaRow]
    tenants: Sequence[TenantRow]
    total_prefixes: int
