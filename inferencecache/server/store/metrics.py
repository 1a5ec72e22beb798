"""What the shared log tells about itself."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class StoreMetrics:
    """The series of one server's view of the log; `pending` is read at each scrape."""

    def __init__(self, registry: CollectorRegistry, pending: Callable[[], int]) -> None:
        self.up = Gauge(
            "inferencecache_index_store_up",
            "1 while the index store answers; at 0 the server goes on from memory.",
            registry=registry,
        )
        Gauge(
            "inferencecache_index_store_pending_records",
            "Accepted records that have not been read back from the shared log.",
            registry=registry,
        ).set_function(pending)
        self.applied = Counter(
            "inferencecache_index_store_applied_records",
            "Records of the shared log that were applied to this server's index.",
            registry=registry,
        )
        missed = Counter(
            "inferencecache_index_store_missed_records",
            "Records that do not reach every index: dropped from a full buffer, gone from the log before they were"
            " read, or not readable.",
            ("reason",),
            registry=registry,
        )
        self.overflowed = missed.labels("overflow")
        self.gone = missed.labels("gone")
        self.unreadable = missed.labels("unreadable")
