"""The names of all series that the product exports, asked of the code that does."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry

import inferencecache.controllers  # its series are in the default registry
import inferencecache.webhooks.metrics  # noqa: F401 - so are these
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.store.metrics import StoreMetrics

OF_ENGINES = {"vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits"}
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exported() -> set[str]:
    """The names of all series that controller and server may have."""
    server = ServerMetrics()
    server.watch_entries(dict)
    server.watch_names(int)
    StoreMetrics(server.registry, lambda: 0)
    names = {name for registry in (REGISTRY, server.registry) for name in _names(registry)}
    return names | {f"{name}{suffix}" for name in OF_ENGINES for suffix in ("", "_total")}


def _names(registry: CollectorRegistry) -> Iterator[str]:
    for family in registry.collect():
        for suffix in _SUFFIXES.get(family.type, ("",)):
            yield family.name + suffix
