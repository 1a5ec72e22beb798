"""The server's own series (spec 06 §7), in a registry of their own.

Some labels come from callers: every request names a model. So that nobody can fill the registry by making names up, the
first thousand distinct models have a series each and all others share the label value `other`. An overlong name counts
as one of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from inferencecache.server.index import Eviction, EvictionReason

# Go clients expose no `_created` series; here they would double what a scrape carries.
disable_created_metrics()  # type: ignore[no-untyped-call]

MAX_MODELS: Final = 1000
MAX_MODEL_CHARACTERS: Final = 256
OTHER: Final = "other"

_LOOKUP_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)


class ModelLabels:
    """The label value of each model: its name, or `other` once there are too many."""

    def __init__(self, limit: int = MAX_MODELS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, model: str) -> str:
        """The label value for `model`, for as long as this process lives."""
        if model in self._known:
            return model
        if len(self._known) >= self._limit or len(model) > MAX_MODEL_CHARACTERS:
            return OTHER
        self._known.add(model)
        return model


class ServerMetrics:
    """All series of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.up = Gauge("inferencecache_server_up", "1 while the server serves.", registry=registry)
        self.grpc_tls_enabled = Gauge(
            "inferencecache_server_grpc_tls_enabled", "1 if the gRPC listener speaks TLS.", registry=registry
        )
        self.snapshot_auth = _auth("snapshot", registry)
        self.policy_auth = _auth("policy", registry)
        self.probe_auth = _auth("probe", registry)
        self.dump_auth = _auth("dump", registry)
        self.ingestion_auth = Counter(
            "inferencecache_ingestion_auth",
            "Reports and events by the outcome of their caller's authentication.",
            ("result",),
            registry=registry,
        )
        self._tenant_evictions = Counter(
            "inferencecache_tenant_evictions",
            "Keys evicted because a tenant was over its quota.",
            ("tenant_id", "reason"),
            registry=registry,
        )
        self._index_evictions = Counter(
            "inferencecache_index_evictions",
            "Holds evicted from the index, by the algorithm in force and why.",
            ("algorithm", "reason"),
            registry=registry,
        )
        self.dropped_entries = Counter(
            "inferencecache_report_entries_dropped",
            "Reported prefixes that could not be used, by reason.",
            ("reason",),
            registry=registry,
        )
        self.clamped_timestamps = Counter(
            "inferencecache_report_timestamps_clamped",
            "Reports and events from a producer whose clock is ahead of the server's.",
            registry=registry,
        )
        self.shed_lookups = Counter(
            "inferencecache_lookup_route_shed",
            "LookupRoute calls without a hint because too many prompts were being tokenized.",
            registry=registry,
        )
        self.internal_errors = Counter(
            "inferencecache_server_internal_errors",
            "Requests that met a programming error and were answered without a hint.",
            ("rpc",),
            registry=registry,
        )
        self._models = ModelLabels()
        self._calls = Counter(
            "inferencecache_lookup_route_calls",
            "LookupRoute calls by outcome; hint_used says whether any replica was named.",
            ("model", "reason_code", "hint_used"),
            registry=registry,
        )
        self._latency = Histogram(
            "inferencecache_lookup_route_latency_seconds",
            "How long LookupRoute took, tokenization included.",
            ("model",),
            buckets=_LOOKUP_SECONDS,
            registry=registry,
        )
        # Resolving labels costs as much as a short lookup: each series is resolved once.
        self._call_series: dict[tuple[str, str, bool], Counter] = {}
        self._latency_series: dict[str, Histogram] = {}

    def looked_up(self, model: str, reason_code: str, *, hinted: bool, seconds: float) -> None:
        """Count one LookupRoute."""
        label = self._models.of(model)
        key = (label, reason_code, hinted)
        calls = self._call_series.get(key)
        if calls is None:
            calls = self._call_series[key] = self._calls.labels(label, reason_code, "true" if hinted else "false")
        calls.inc()
        latency = self._latency_series.get(label)
        if latency is None:
            latency = self._latency_series[label] = self._latency.labels(label)
        latency.observe(seconds)

    def evicted(self, eviction: Eviction) -> None:
        """Count what the index removed: keys of a tenant over its quota, else holds."""
        if eviction.reason is EvictionReason.OVER_ENTRIES:
            self._tenant_evictions.labels(eviction.tenant, eviction.reason).inc(eviction.removed)
        else:
            self._index_evictions.labels(eviction.algorithm, eviction.reason).inc(eviction.removed)

    def watch_entries(self, entries_by_model: Callable[[], Mapping[str, int]]) -> None:
        """Publish the index's distinct keys per model, read at each scrape."""
        self.registry.register(_IndexEntries(entries_by_model, self._models))

    def watch_names(self, name_bytes: Callable[[], int]) -> None:
        """Publish what the index's names take, read at each scrape."""
        gauge = Gauge(
            "inferencecache_index_name_bytes",
            "Memory that the names of tenants, models, hash schemes, adapters and replicas take in the index.",
            registry=self.registry,
        )
        gauge.set_function(name_bytes)

    def exposition(self) -> bytes:
        """All series in Prometheus' text format. With many models this takes long, and may be done in any thread."""
        return generate_latest(self.registry)


class _IndexEntries(Collector):
    def __init__(self, read: Callable[[], Mapping[str, int]], models: ModelLabels) -> None:
        self._read = read
        self._models = models

    def collect(self) -> Iterable[Metric]:
        totals: dict[str, int] = {}
        # A copy, as the index goes on changing while another thread makes the text.
        for model, entries in dict(self._read()).items():
            label = self._models.of(model)
            totals[label] = totals.get(label, 0) + entries
        family = GaugeMetricFamily(
            "inferencecache_index_entries", "Distinct keys in the index per model.", labels=("model",)
        )
        for label, entries in totals.items():
            family.add_metric((label,), entries)
        yield family


def _auth(endpoint: str, registry: CollectorRegistry) -> Counter:
    return Counter(
        f"inferencecache_{endpoint}_auth",
        f"Requests to /{endpoint} by the outcome of their authentication.",
        ("result",),
        registry=registry,
    )
