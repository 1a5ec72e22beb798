"""A managed Redis: an in-memory store behind a ClusterIP Service, for engines that speak RESP (spec 04 §8)."""

from __future__ import annotations

from typing import Final

from inferencecache.adapters.registry import Workload, storage
from inferencecache.adapters.storage.workload import container, declared, resources, service_port
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, RedisSpec, RemoteStorage
from inferencecache.api.quantity import Quantity

DEFAULT_IMAGE: Final = "docker.io/library/redis:7.4-alpine"
PORT: Final = 6379
_DEFAULT_LIMIT: Final = 8 * 2**30


@storage.register
class ManagedRedis:
    """The adapter for (Redis, Managed)."""

    def supports(self, storage: RemoteStorage) -> bool:
        return storage.provider == c.PROVIDER_REDIS and storage.managed

    def render(self, backend: CacheBackend) -> Workload:
        block = declared(backend).redis or RedisSpec()
        server = container(
            "redis-l2",
            image=block.image or DEFAULT_IMAGE,
            argv=[
                "redis-server",
                *("--save", ""),
                *("--appendonly", "no"),
                *("--protected-mode", "no"),
                *("--maxmemory", str(max_memory(block))),
                *("--maxmemory-policy", "allkeys-lru"),
            ],
            through_entry_point=True,  # it gives up root before it starts the server
            ports={"redis": PORT},
            resources=resources(backend),
            first_check_after=3,
        )
        return Workload(
            pod_spec={"containers": [server]},
            service_spec={"type": "ClusterIP", "ports": [service_port("redis", PORT)]},
        )


def max_memory(block: RedisSpec) -> int:
    """Bytes of data Redis may hold: four fifths of the container's memory limit, the rest is its own overhead.

    Requests never size it. Without a limit above zero, the default limit of 8 GiB is the base.
    """
    limits = (block.resources and block.resources.limits) or {}
    given = int(limits.get("memory", Quantity(0)))
    limit = given if given > 0 else _DEFAULT_LIMIT
    return limit - limit // 5
