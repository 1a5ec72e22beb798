"""The server's snapshot, decoded (spec 05 §7.2).

Servers and controllers are upgraded apart from one another, so unknown keys are skipped and every key may be missing.
An instant that never was arrives as the year 1; in here it is None. What a server repeats of a replica may be anything
that this one reported, and must not cost all others their row: a negative amount is none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from inferencecache.kube.errors import KubeError

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Reported = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

NEVER: Final = datetime(1, 1, 1, tzinfo=UTC)


class SnapshotError(KubeError):
    """The server's document cannot be read; the message names the field."""


class ReplicaRow(Struct, rename="camel", kw_only=True, frozen=True):
    """What one engine replica reported: `replica_id` names its Pod, `tenant` that Pod's namespace."""

    replica_id: str = ""
    tenant: str = ""
    cache_memory_bytes: Reported = 0
    hit_rate: float = 0.0
    pressure: float = 0.0
    last_update: datetime = NEVER
    prefix_count: Count = 0
    last_event_at: datetime = NEVER
    stats_reported: bool = False
    t2_hit_tokens: Reported = field(default=0, name="t2HitTokens")
    t2_query_tokens: Reported = field(default=0, name="t2QueryTokens")

    def __post_init__(self) -> None:
        for name in ("cache_memory_bytes", "t2_hit_tokens", "t2_query_tokens"):
            if getattr(self, name) < 0:
                force_setattr(self, name, 0)

    @property
    def updated(self) -> datetime | None:
        """When it last reported load; None for never."""
        return _instant(self.last_update)

    @property
    def last_event(self) -> datetime | None:
        """When its engine last told of its cache; None for never."""
        return _instant(self.last_event_at)


class TenantRow(Struct, rename="camel", kw_only=True, frozen=True):
    """What one tenant holds; the empty id is traffic without a tenant."""

    tenant_id: str = ""
    index_entries: Count = 0
    hit_rate: float = 0.0
    hit_rate_reported: bool = False


class Snapshot(Struct, rename="camel", kw_only=True, frozen=True):
    """The whole index in numbers."""

    replicas: tuple[ReplicaRow, ...] | None = None
    tenants: tuple[TenantRow, ...] | None = None
    total_prefixes: Count = 0
    hot_prefixes: Count = 0


def parse(body: bytes) -> Snapshot:
    """The snapshot in a body. Raises `SnapshotError`."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"the server's snapshot cannot be read: {error}") from error


_decoder: Final = msgspec.json.Decoder(Snapshot)


def _instant(time: datetime) -> datetime | None:
    known = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return known if known.year > 1 else None
