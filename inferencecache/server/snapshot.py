"""GET /snapshot: the whole index in numbers, for the controller (spec 06 §4.2).

The spelling of the keys is frozen. Absent and zero mean different things to the reader: presence bits say whether a
replica ever sent stats, and an instant that never was is the year 1, never a missing key.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct, field

from inferencecache.server.index import ReplicaRow, Snapshot, Stats, TenantRow

NEVER: Final = "0001-01-01T00:00:00Z"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_STATS: Final = Stats(cache_memory_bytes=0, hit_rate=0.0, pressure=0.0)


class _Replica(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    replica_id: str
    tenant: str = ""
    cache_memory_bytes: int
    hit_rate: float
    pressure: float
    last_update: str
    prefix_count: int
    last_event_at: str
    stats_reported: bool = False
    t2_hit_tokens: int = field(default=0, name="t2HitTokens")
    t2_query_tokens: int = field(default=0, name="t2QueryTokens")


class _Tenant(Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    tenant_id: str
    index_entries: int
    hit_rate: float
    hit_rate_reported: bool = False
    memory_used: int


class _Document(Struct, rename="camel", frozen=True):
    replicas: list[_Replica] | None
    tenants: list[_Tenant] | None
    total_prefixes: int
    hot_prefixes: int


def render(snapshot: Snapshot) -> bytes:
    """The JSON document of `snapshot`. An empty list is null, as its readers know it."""
    return msgspec.json.encode(
        _Document(
            replicas=[_replica(row) for row in snapshot.replicas] or None,
            tenants=[_tenant(row) for row in snapshot.tenants] or None,
            total_prefixes=snapshot.total_prefixes,
            hot_prefixes=0,
        )
    )


def _replica(row: ReplicaRow) -> _Replica:
    stats = row.stats or _NO_STATS
    return _Replica(
        replica_id=row.replica_id,
        tenant=row.tenant,
        cache_memory_bytes=stats.cache_memory_bytes,
        hit_rate=_shortest(stats.hit_rate),
        pressure=_shortest(stats.pressure),
        last_update=_rfc3339(row.last_update_us),
        prefix_count=row.prefix_count,
        last_event_at=_rfc3339(row.last_event_us),
        stats_reported=row.stats is not None,
        t2_hit_tokens=stats.t2_hit_tokens,
        t2_query_tokens=stats.t2_query_tokens,
    )


def _tenant(row: TenantRow) -> _Tenant:
    return _Tenant(
        tenant_id=row.tenant,
        index_entries=row.index_entries,
        hit_rate=_shortest(row.hit_rate or 0.0),
        hit_rate_reported=row.hit_rate is not None,
        memory_used=0,
    )


def _rfc3339(instant_us: int | None) -> str:
    if instant_us is None:
        return NEVER
    return (_EPOCH + timedelta(microseconds=instant_us)).isoformat().replace("+00:00", "Z")


def _shortest(rate: float) -> float:
    """The shortest decimal of this float32: rates travel as such, and 0.8 should not read 0.800000011920929."""
    packed = struct.pack("f", rate)
    return next(short for digits in (6, 7, 8, 9) if struct.pack("f", short := float(f"{rate:.{digits}g}")) == packed)
