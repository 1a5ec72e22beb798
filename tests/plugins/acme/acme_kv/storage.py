"""The Acme store: one container behind a Service."""

from __future__ import annotations

from inferencecache.adapters.registry import Workload
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage


class AcmeStore:
    """The adapter for (AcmeStore, Managed)."""

    def protocols(self) -> dict[str, str]:
        return {"AcmeStore": "acme"}

    def supports(self, storage: RemoteStorage) -> bool:
        return storage.provider == "AcmeStore" and storage.managed

    def render(self, backend: CacheBackend) -> Workload:
        port = {"name": "acme", "containerPort": 7000}
        return Workload(
            pod_spec={"containers": [{"name": "acme-store", "image": "acme/store:1", "ports": [port]}]},
            service_spec={"type": "ClusterIP", "ports": [{"name": "acme", "port": 7000, "targetPort": "acme"}]},
        )
