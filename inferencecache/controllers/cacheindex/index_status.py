"""The status of the CacheIndex `cluster-default`: what the server reported, ready for `kubectl` (spec 05 §7.2).

Times move with every report and say nothing new, so a status that differs in times only is not written.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from inferencecache.api.cacheindex import CacheIndexStatus
from inferencecache.controllers.cacheindex.rates import rate_text
from inferencecache.controllers.cacheindex.snapshot import ReplicaRow, Snapshot, TenantRow
from inferencecache.kube.conditions import timestamp


def index_status(before: CacheIndexStatus, snapshot: Snapshot, url: str, now: datetime) -> dict[str, Any] | None:
    """The fields to write, or None if the status says all that already.

    Args:
        before: the present status.
        snapshot: what the server reported.
        url: where it did so.
        now: becomes `lastUpdated`.
    """
    after: dict[str, Any] = {
        "replicas": _replicas(snapshot.replicas or ()) or None,
        "tenants": _tenants(snapshot.tenants or ()) or None,
        "prefixes": {"summary": {"total": snapshot.total_prefixes, "hot": snapshot.hot_prefixes}},
        "observedServer": url,
    }
    if _timeless(after) == _timeless(before.manifest()):
        return None
    return {**after, "lastUpdated": timestamp(now)}


def _replicas(rows: tuple[ReplicaRow, ...]) -> list[dict[str, Any]]:
    """One row per id that reported load; of several tenants' the last, by tenant, as the list is keyed by id."""
    by_id = {row.replica_id: row for row in sorted(rows, key=lambda row: row.tenant) if row.replica_id and row.updated}
    return [_replica(by_id[replica_id]) for replica_id in sorted(by_id)]


def _replica(row: ReplicaRow) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": row.replica_id,
        "pressure": rate_text(row.pressure),
        "hitRate": rate_text(row.hit_rate),
    }
    if row.tenant:
        told["tenant"] = row.tenant
    if row.cache_memory_bytes:
        told["cacheMemoryBytes"] = row.cache_memory_bytes
    if row.updated is not None:
        told["lastUpdate"] = timestamp(row.updated)
    return told


def _tenants(rows: tuple[TenantRow, ...]) -> list[dict[str, Any]]:
    return list({row.tenant_id: _tenant(row) for row in rows}.values())


def _tenant(row: TenantRow) -> dict[str, Any]:
    told: dict[str, Any] = {"id": row.tenant_id, "indexEntries": row.index_entries, "memoryUsed": 0}
    # A server from before the presence bit says only what is not zero.
    if row.hit_rate_reported or row.hit_rate != 0:
        told["hitRate"] = rate_text(row.hit_rate)
    return told


def _timeless(status: dict[str, Any]) -> dict[str, Any]:
    replicas = [{k: v for k, v in row.items() if k != "lastUpdate"} for row in status.get("replicas") or ()]
    kept = {k: v for k, v in status.items() if v is not None and k not in ("replicas", "lastUpdated")}
    return {**kept, "replicas": replicas}
