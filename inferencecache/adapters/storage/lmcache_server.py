"""A managed LMCache server: one in-memory store behind a ClusterIP Service (spec 04 §8)."""

from __future__ import annotations

from typing import Final

from inferencecache.adapters.registry import Workload, storage
from inferencecache.adapters.storage.workload import container, declared, resources, service_port
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage, ServerSpec

# Server and client speak a versioned wire protocol and fail silently when they differ, so the tag must never float.
DEFAULT_IMAGE: Final = "lmcache/standalone:v0.4.7"
PORT: Final = 65432
_COMMAND: Final = ("lmcache_server", "0.0.0.0", str(PORT), "cpu")


@storage.register
class ManagedLMCacheServer:
    """The adapter for (LMCacheServer, Managed)."""

    def supports(self, storage: RemoteStorage) -> bool:
        return storage.provider == c.PROVIDER_LMCACHE_SERVER and storage.managed

    def render(self, backend: CacheBackend) -> Workload:
        block = declared(backend).lm_cache_server or ServerSpec()
        server = container(
            "lmcache-server",
            image=block.image or DEFAULT_IMAGE,
            argv=block.command or _COMMAND,
            ports={"lmcache": PORT},
            resources=resources(backend),
            first_check_after=5,
        )
        return Workload(
            pod_spec={"containers": [server]},
            service_spec={"type": "ClusterIP", "ports": [service_port("lmcache", PORT)]},
        )
