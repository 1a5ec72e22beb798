"""CacheBackends for tests, written as their YAML would be."""

from __future__ import annotations

from typing import Any

from inferencecache.api.cachebackend import CacheBackend

MANAGED = {"provider": "LMCacheServer", "ownership": "Managed"}


def backend(
    *,
    status: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    generation: int = 1,
    name: str = "kv",
    deleted: str | None = None,
    **spec: Any,
) -> CacheBackend:
    """A vLLM backend; keyword arguments are fields of its spec."""
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": "u-1",
        "generation": generation,
        "annotations": annotations or {},
        "deletionTimestamp": deleted,
    }
    spec = {"runtime": "VLLM", "type": "LMCache", **spec}
    return CacheBackend.decode({"metadata": metadata, "spec": spec, "status": status or {}})
