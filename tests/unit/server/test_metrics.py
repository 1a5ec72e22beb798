"""The server's series: names, labels, and that no caller can make them grow without bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferencecache.server.index import Eviction, EvictionReason
from inferencecache.server.metrics import MAX_MODEL_CHARACTERS, MAX_MODELS, ServerMetrics


def _samples(metrics: ServerMetrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.name == name
    }


def _models(metrics: ServerMetrics, name: str) -> dict[str, float]:
    return {dict(labels)["model"]: value for labels, value in _samples(metrics, name).items()}


def test_every_documented_series_has_its_name_and_labels() -> None:
    metrics = ServerMetrics()
    metrics.watch_entries(lambda: {"m": 3})
    metrics.watch_names(lambda: 5)
    metrics.up.set(1)
    metrics.grpc_tls_enabled.set(0)
    metrics.looked_up("m", "PREFIX_MATCH", hinted=True, seconds=0.0004)
    metrics.evicted(Eviction("t", "lru", EvictionReason.OVER_ENTRIES, 2))
    metrics.evicted(Eviction("t", "lfu", EvictionReason.CAP, 3))
    for counter in (metrics.snapshot_auth, metrics.policy_auth, metrics.probe_auth):
        counter.labels("ok").inc()

    def only(name: str) -> tuple[dict[str, str], float]:
        ((labels, value),) = _samples(metrics, name).items()
        return dict(labels), value

    assert only("inferencecache_server_up") == ({}, 1)
    assert only("inferencecache_server_grpc_tls_enabled") == ({}, 0)
    assert only("inferencecache_index_entries") == ({"model": "m"}, 3)
    assert only("inferencecache_index_name_bytes") == ({}, 5)
    assert only("inferencecache_lookup_route_calls_total") == (
        {"model": "m", "reason_code": "PREFIX_MATCH", "hint_used": "true"},
        1,
    )
    assert only("inferencecache_lookup_route_latency_seconds_count") == ({"model": "m"}, 1)
    assert only("inferencecache_tenant_evictions_total") == ({"tenant_id": "t", "reason": "over_entries"}, 2)
    assert only("inferencecache_index_evictions_total") == ({"algorithm": "lfu", "reason": "cap"}, 3)
    for endpoint in ("snapshot", "policy", "probe"):
        assert only(f"inferencecache_{endpoint}_auth_total") == ({"result": "ok"}, 1)


def test_every_series_is_explained_to_operators() -> None:
    metrics = ServerMetrics()
    metrics.watch_entries(dict)
    metrics.watch_names(int)
    guide = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    names = [
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in metrics.registry.collect()
        if family.name.startswith("inferencecache_")
    ]
    assert names
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_latency_has_the_documented_buckets() -> None:
    metrics = ServerMetrics()
    metrics.looked_up("m", "NO_HINT", hinted=False, seconds=0.0004)
    buckets = _samples(metrics, "inferencecache_lookup_route_latency_seconds_bucket")
    bounds = {float(dict(labels)["le"]): count for labels, count in buckets.items()}
    assert sorted(bounds) == [
        *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
        float("inf"),
    ]
    assert next(bound for bound, count in sorted(bounds.items()) if count) == 0.0005


def test_the_process_describes_itself_as_every_exporter_does() -> None:
    text = ServerMetrics().exposition().decode()
    for series in ("process_cpu_seconds_total", "process_resident_memory_bytes", "python_gc_collections_total"):
        assert f"\n{series}" in text


def test_no_series_carries_its_time_of_creation() -> None:
    metrics = ServerMetrics()
    metrics.looked_up("m", "NO_HINT", hinted=False, seconds=0.0)
    assert "_created" not in metrics.exposition().decode()


def test_ten_thousand_models_are_a_thousand_series_and_one_for_the_others() -> None:
    metrics = ServerMetrics()
    for number in range(10_000):
        for _ in range(2):
            metrics.looked_up(f"model-{number}", "NO_HINT", hinted=False, seconds=0.0)
    calls = _models(metrics, "inferencecache_lookup_route_calls_total")
    assert len(calls) == MAX_MODELS + 1
    assert sum(calls.values()) == 20_000
    assert calls["other"] == 2 * (10_000 - MAX_MODELS)
    assert calls["model-0"] == 2


@pytest.mark.parametrize(("length", "label_is_name"), [(MAX_MODEL_CHARACTERS, True), (MAX_MODEL_CHARACTERS + 1, False)])
def test_an_overlong_model_is_one_of_the_others(length: int, label_is_name: bool) -> None:
    metrics = ServerMetrics()
    metrics.looked_up("m" * length, "NO_HINT", hinted=False, seconds=0.0)
    assert set(_models(metrics, "inferencecache_lookup_route_calls_total")) == {
        "m" * length if label_is_name else "other"
    }


@pytest.mark.parametrize("model", ["", 'quote"back\\slash\nline', "{}", "模型"])
def test_any_model_name_survives_the_text_format(model: str) -> None:
    metrics = ServerMetrics()
    metrics.looked_up(model, "NO_HINT", hinted=False, seconds=0.0)
    assert _models(metrics, "inferencecache_lookup_route_calls_total") == {model: 1}


def test_entries_of_models_without_a_series_add_up_and_drained_models_stay_at_zero() -> None:
    metrics = ServerMetrics()
    entries = {f"model-{number}": 2 for number in range(MAX_MODELS + 5)}
    metrics.watch_entries(lambda: entries)
    gauges = _models(metrics, "inferencecache_index_entries")
    assert (len(gauges), gauges["other"]) == (MAX_MODELS + 1, 10)
    entries["model-0"] = 0
    assert _models(metrics, "inferencecache_index_entries")["model-0"] == 0


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.looked_up("m", "NO_HINT", hinted=False, seconds=0.0)
    assert _models(second, "inferencecache_lookup_route_calls_total") == {}
