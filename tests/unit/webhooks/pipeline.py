"""A CacheBackend from a user's YAML to what a cluster would make of it, by the product's own pure functions."""

from __future__ import annotations

import copy
from typing import Any

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.model import DecodeError
from inferencecache.api.schema import apply_defaults, prune
from inferencecache.api.schema_check import check_schema
from inferencecache.controllers.cachebackend.children import children_for
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.controllers.cachebackend.published import as_published
from inferencecache.webhooks.injection import Injection, inject
from inferencecache.webhooks.pods import view_of
from inferencecache.webhooks.validation import validate_cache_backend
from tests.unit.webhooks.stand_ins import SETTINGS

Json = dict[str, Any]


def stored(spec: Json, **metadata: Any) -> Json:
    """The object after schema defaults, the defaulting webhook and schema defaults again."""
    meta = {"name": "kv", "namespace": "ns", **metadata}
    manifest = apply_defaults(CacheBackend, prune(CacheBackend, {"metadata": meta, "spec": spec}))
    return apply_defaults(CacheBackend, default_cache_backend(manifest))


def readable(manifest: Json) -> CacheBackend | None:
    """The model, or None for what the API server or the decoder turns away by its types and bounds."""
    if any(not finding.by_rule for finding in check_schema(CacheBackend, manifest)):
        return None
    try:
        return CacheBackend.decode(manifest)
    except DecodeError:
        return None


def admitted(manifest: Json) -> CacheBackend | None:
    """The model, or None for what schema, decoder or webhook refuse."""
    backend = readable(manifest)
    if backend is None or check_schema(CacheBackend, manifest):
        return None
    return backend if validate_cache_backend(backend, runtimes=load_adapters()[0]).allowed else None


def rendered(backend: CacheBackend) -> list[Json]:
    """The children that the operator would write."""
    plan = plan_for(backend, *load_adapters())
    assert not plan.broken
    if plan.store is None:
        return []
    children = children_for(backend, plan.store, live_replicas=None)
    return [child for child in (children.workload, children.service, children.autoscaler) if child]


def wired(pod: Json, backend: CacheBackend) -> Injection:
    """What the Pod webhook makes of a Pod, once the backend's endpoint is published. The argument is not changed."""
    before = copy.deepcopy(pod)
    runtimes, storage = load_adapters()
    done = inject(pod, view_of(pod), "ns", [as_published(backend, runtimes, storage)], runtimes, SETTINGS)
    assert pod == before
    return done


def engine_pod(container: str = "main", **engine: Any) -> Json:
    """A Pod that the selector `app: engine` matches, with a GPU."""
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": "ns", "labels": {"app": "engine"}},
        "spec": {"containers": [{"name": container, "image": "engine:1", "resources": gpu, **engine}]},
    }
