"""Where a pass looks: pools, Bindings and backends in caches, and live where a cache's silence would decide something.

A cache may lag behind the API server. What it shows happened; what it does not show may have happened since. So
presence is taken from the cache, which costs no request, and absence, upon which finalizers are dropped, is asked for
live.
Nothing here wakes a pass when a backend changes: passes look again by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import StoredBackend, StoredBinding, StoredPool
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.resource import K, Key

_BY_BACKEND: Final = "backend"
_BY_POOL: Final = "pool"


class Surroundings:
    """What a pass may look at; the kinds may be missing from the cluster."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self.pools: Informer[StoredPool] = cache.informer(StoredPool, optional=True, indexes={_BY_BACKEND: _backends})
        self.bindings: Informer[StoredBinding] = cache.informer(StoredBinding, optional=True, indexes={_BY_POOL: _pool})
        self.backends: Informer[KVCacheBackend] = cache.informer(KVCacheBackend, optional=True)
        self._snapshots: dict[str, Snapshot] = {}
        self.pools.on_change(self._pool_changed)
        self.bindings.on_change(self._binding_changed)

    def bindings_of(self, pool: str) -> list[StoredBinding]:
        """The Bindings that name a pool."""
        return self.bindings.by_index(_BY_POOL, pool)

    def snapshot(self, backend: str) -> Snapshot:
        """Everything that is claimed on a backend's master.

        It is gathered anew when a claim changes, not when a figure does: what its objects say of the master may be old.
        """
        known = self._snapshots.get(backend)
        if known is None:
            known = self.present_snapshot(backend)
            if known.pools:
                self._snapshots[backend] = known
        return known

    def present_snapshot(self, backend: str) -> Snapshot:
        """The same, with objects that are as the caches have them now."""
        pools = self.pools.by_index(_BY_BACKEND, backend)
        return Snapshot.of(pools, (one for pool in pools for one in self.bindings_of(pool.metadata.name)))

    async def bindings_live(self) -> Sequence[StoredBinding]:
        """Every Binding there is, as the API server has it; none if it does not know the kind."""
        try:
            return await self._client.list(StoredBinding)
        except NotFound:
            return ()

    async def pool_is_gone(self, key: Key) -> bool:
        """Whether there is no such pool."""
        return self.pools.get(key) is None and await self._absent(StoredPool, key)

    async def backend(self, name: str) -> KVCacheBackend | None:
        """The backend; None if there is none. Its master is served, whatever else of it cannot be read."""
        key = Key("", name)
        found = self.backends.get(key)
        if found is not None:
            return found
        try:
            return await self._client.get(StoredBackend, key)
        except NotFound:
            return None

    async def _absent(self, kind: type[StoredPool], key: Key) -> bool:
        try:
            await self._client.get(kind, key)
        except NotFound:
            return True
        return False

    def _pool_changed(self, change: Change[StoredPool]) -> None:
        if _differ(change, _claims_of_pool):
            for pool in (change.old, change.new):
                self._forget(pool)

    def _binding_changed(self, change: Change[StoredBinding]) -> None:
        if _differ(change, _claims_of_binding):
            for binding in (change.old, change.new):
                if binding is not None:
                    self._forget(self.pools.get(Key("", binding.pool)))

    def _forget(self, pool: KVCachePool | None) -> None:
        for backend in pool.spec.backends if pool is not None else ():
            self._snapshots.pop(backend, None)


def pool_needs_a_pass(change: Change[StoredPool]) -> bool:
    """A new pool, a changed spec, or the start of a deletion; not what passes write, and not the end (spec 10 §3)."""
    return change.new is not None and _differ(change, _wish)


def binding_needs_a_pass(change: Change[StoredBinding]) -> bool:
    """Anything but what passes write: a Binding comes, goes, changes its spec, or workloads take it up or leave it."""
    return _differ(change, lambda binding: (_wish(binding), binding.status.used_by))


def pool_of(binding: KVCachePoolBinding) -> Iterable[Key]:
    """The pool that a Binding names, whether it exists or not."""
    return (Key("", binding.pool),) if binding.pool else ()


def _differ(change: Change[K], part: Callable[[K], object]) -> bool:
    """Whether an object came, went, or differs in a part of it."""
    if change.old is None or change.new is None:
        return True
    return part(change.old) != part(change.new)


def _wish(obj: KVCachePool | KVCachePoolBinding) -> object:
    """What users change of an object: its spec, and that it is to go."""
    return obj.metadata.generation, obj.metadata.deletion_timestamp


def _claims_of_pool(pool: KVCachePool) -> object:
    return _wish(pool), pool.metadata.finalizers, pool.status.domains


def _claims_of_binding(binding: KVCachePoolBinding) -> object:
    return _wish(binding), binding.metadata.finalizers, binding.status.used_by


def _backends(pool: KVCachePool) -> Iterable[str]:
    return pool.spec.backends


def _pool(binding: KVCachePoolBinding) -> Iterable[str]:
    return (binding.pool,)
