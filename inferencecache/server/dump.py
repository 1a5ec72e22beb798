"""The whole index in the words of its producers, for a server that starts empty.

Each message is an ordinary `CacheStateUpdate`: feeding all of them to an index gives the same answers as the index they
came from, as far as lookups go.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.server.index import PrefixIndex, Report
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheStateUpdate


def updates(index: PrefixIndex) -> Iterator[CacheStateUpdate]:
    """Everything `index` holds, in messages of about a thousand holds; may be walked while the index changes."""
    return map(written, index.dump())


def written(report: Report) -> CacheStateUpdate:
    """The update that `reports.read` takes for `report`."""
    update = CacheStateUpdate(
        replica_id=report.replica_id,
        tenant_id=report.tenant,
        model_id=report.model,
        hash_scheme=report.hash_scheme,
        timestamp_us=report.timestamp_us,
    )
    add = update.prefixes.add
    for adapter_id, tier, hashes, token_counts in report.holds:
        for prefix_hash, token_count in zip(hashes, token_counts, strict=True):
            add(prefix_hash=prefix_hash, token_count=token_count, tier=tier, adapter_id=adapter_id)
    if report.stats is not None:
        update.stats.replica_id = report.replica_id
        update.stats.cache_memory_bytes = report.stats.cache_memory_bytes
        update.stats.hit_rate = report.stats.hit_rate
        update.stats.pressure = report.stats.pressure
        update.stats.t2_hit_tokens = report.stats.t2_hit_tokens
        update.stats.t2_query_tokens = report.stats.t2_query_tokens
    return update
