"""Backends and Pod specs for the adapters' tests, as short as a test can say them."""

from __future__ import annotations

from typing import Any

from inferencecache.api.cachebackend import CacheBackend

MANAGED = {"provider": "LMCacheServer", "ownership": "Managed"}
REDIS = {"provider": "Redis", "ownership": "Managed"}


def backend(runtime: str = "VLLM", *, annotations: dict[str, str] | None = None, **spec: Any) -> CacheBackend:
    """A CacheBackend `primary` in `engines`, of this runtime and with these spec fields in JSON spelling."""
    metadata = {"name": "primary", "namespace": "engines", "uid": "1", "annotations": annotations or {}}
    return CacheBackend.decode({"metadata": metadata, "spec": {"runtime": runtime, **spec}})


def pod_spec(name: str = "vllm", **engine: Any) -> dict[str, Any]:
    """A Pod spec whose only container is the engine."""
    return {"containers": [{"name": name, "image": "engine:1", **engine}]}


def variables(container: dict[str, Any]) -> dict[str, str]:
    """A container's plain variables."""
    return {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}
