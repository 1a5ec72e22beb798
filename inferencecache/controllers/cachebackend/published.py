"""A backend as the API server would hold it once it is applied and reconciled, for use without a cluster."""

from __future__ import annotations

from typing import Final

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.children import children_for, endpoint_of
from inferencecache.controllers.cachebackend.plan import plan_for

_NO_UID: Final = "00000000-0000-0000-0000-000000000000"


def as_published(backend: CacheBackend, runtimes: RuntimeRegistry, storage: StorageRegistry) -> CacheBackend:
    """The backend with a UID and, for a managed store, the endpoint; each only where it has none yet."""
    metadata, status = backend.metadata, backend.status
    if not metadata.uid:
        metadata = metadata.model_copy(update={"uid": _NO_UID})
    plan = plan_for(backend, runtimes, storage)
    if plan.store is not None and not (status.endpoint or "").strip():
        service = children_for(backend, plan.store, live_replicas=None).service
        status = status.model_copy(update={"endpoint": endpoint_of(backend, service)})
    return backend.model_copy(update={"metadata": metadata, "status": status})
