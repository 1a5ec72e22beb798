"""Where a pass looks: pools, Bindings and backends in caches, and live where a cache's silence would decide something.

A cache may lag behind the API server. What it shows happened; what it does not show may have happened since. So
presence is taken from the cache, which costs no request, and absence, upon which finalizers are dropped, is asked for
live.
Nothing here wakes a pass when a backend changes: passes look again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.resource import Key

_BY_BACKEND: Final = "backend"
_BY_POOL: Final = "pool"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pass may look at."""

    client: Client
    pools: Informer[KVCachePool]
    bindings: Informer[KVCachePoolBinding]
    backends: Informer[KVCacheBackend]

    @classmethod
    def of(cls, client: Client, cache: Cache) -> Surroundings:
        """Have a cache follow all that is looked at; the kinds may be missing from the cluster."""
        return cls(
            client,
            cache.informer(KVCachePool, optional=True, indexes={_BY_BACKEND: _backends}),
            cache.informer(KVCachePoolBinding, optional=True, indexes={_BY_POOL: _pool}),
            cache.informer(KVCacheBackend, optional=True),
        )

    def bindings_of(self, pool: str) -> list[KVCachePoolBinding]:
        """The Bindings that name a pool."""
        return self.bindings.by_index(_BY_POOL, pool)

    def snapshot(self, backend: str) -> Snapshot:
        """Everything that is claimed on a backend's master."""
        pools = self.pools.by_index(_BY_BACKEND, backend)
        return Snapshot.of(pools, (one for pool in pools for one in self.bindings_of(pool.metadata.name)))

    async def pool_is_gone(self, key: Key) -> bool:
        """Whether there is no such pool."""
        return self.pools.get(key) is None and await self._absent(KVCachePool, key)

    async def backend(self, name: str) -> KVCacheBackend | None:
        """The backend; None if there is none."""
        key = Key("", name)
        found = self.backends.get(key)
        if found is not None:
            return found
        try:
            return await self.client.get(KVCacheBackend, key)
        except NotFound:
            return None

    async def _absent(self, kind: type[KVCachePool], key: Key) -> bool:
        try:
            await self.client.get(kind, key)
        except NotFound:
            return True
        return False


def pool_needs_a_pass(change: Change[KVCachePool]) -> bool:
    """A new pool, a changed spec, or the start of a deletion; not what passes write, and not the end (spec 10 §3)."""
    if change.new is None:
        return False
    return change.old is None or _moved(change)


def binding_needs_a_pass(change: Change[KVCachePoolBinding]) -> bool:
    """Anything but what passes write: a Binding comes, goes, changes its spec, or workloads take it up or leave it."""
    if change.new is None or change.old is None:
        return True
    return _moved(change) or change.old.status.used_by != change.new.status.used_by


def _moved(change: Change[KVCachePool] | Change[KVCachePoolBinding]) -> bool:
    if change.old is None or change.new is None:
        return True
    before, after = change.old.metadata, change.new.metadata
    return (before.generation, before.deletion_timestamp) != (after.generation, after.deletion_timestamp)


def pool_of(binding: KVCachePoolBinding) -> Iterable[Key]:
    """The pool that a Binding names, whether it exists or not."""
    return (Key("", binding.pool),) if binding.pool else ()


def _backends(pool: KVCachePool) -> Iterable[str]:
    return pool.spec.backends


def _pool(binding: KVCachePoolBinding) -> Iterable[str]:
    return (binding.pool,)
