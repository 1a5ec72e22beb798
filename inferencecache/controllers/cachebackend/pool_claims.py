"""The claim of a backend on its Binding: an entry in the Binding's `status.usedBy`, which holds its deletion.

The entry is on a foreign object, so it needs a promise of its own to be taken off again: a finalizer on the backend,
put on before the first claim and taken off after the last. Backends without a pool never carry it. What is released is
read live: a cache that is behind would leave an entry that nobody takes off any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcache import UsedBy, used_by_patch
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import UNKNOWN_USER, StoredBinding, StoredPool
from inferencecache.controllers.cachebackend.pool import PoolChain
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.finalizers import add_finalizer, has_finalizer, remove_finalizer
from inferencecache.kube.informer import Informer
from inferencecache.kube.owner import OwnerIsLeaving
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status

FINALIZER: Final = f"{c.GROUP}/pool-binding"

_BY_POOL: Final = "pool-of-cachebackends"


def _pool(binding: KVCachePoolBinding) -> Iterable[str]:
    return (binding.pool,)


class Pools:
    """The Bindings and pools that backends are on, and the claims of backends on them."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self.bindings: Informer[StoredBinding] = cache.informer(StoredBinding, optional=True, indexes={_BY_POOL: _pool})
        self.pools: Informer[StoredPool] = cache.informer(StoredPool, optional=True)
        self._backends: Informer[CacheBackend] = cache.informer(CacheBackend)

    def chain(self, backend: CacheBackend) -> PoolChain:
        """A backend's Binding and pool, as the caches have them."""
        binding = self.bindings.get(Key(backend.metadata.namespace, backend.pool_binding))
        return PoolChain(backend, binding, self.pools.get(Key("", binding.pool)) if binding is not None else None)

    # -------------------------------------------------------------------------------------------------------- claims

    async def hold(self, backend: CacheBackend) -> None:
        """Claim the backend's Binding, and release any other. A Binding that is gone, or on its way, is left alone.

        Raises `OwnerIsLeaving`: no promise, no claim.
        """
        await self._promise(backend)
        if backend.status.observed_generation != backend.metadata.generation > 1:
            await self._release(backend, keep=backend.pool_binding)
        binding = self.bindings.get(Key(backend.metadata.namespace, backend.pool_binding))
        if binding is None:
            return
        mine = _entry(backend)

        def claimed(live: KVCachePoolBinding) -> Mapping[str, Any] | None:
            used = live.status.used_by
            # Asked of each version: its deletion may be what the write conflicts with.
            leaving = live.metadata.deletion_timestamp is not None
            # What stands for users that cannot be read is nothing to write down.
            return None if leaving or mine in used or UNKNOWN_USER in used else used_by_patch([*used, mine])

        try:
            await write_status(self._client, binding, claimed)
        except NotFound:
            return

    async def let_go(self, backend: CacheBackend) -> None:
        """Release every Binding that the backend claims, and then the promise to do so."""
        if has_finalizer(backend, FINALIZER):
            await self._release(backend, keep="")
            await remove_finalizer(self._client, backend, FINALIZER)

    async def _promise(self, backend: CacheBackend) -> None:
        if has_finalizer(backend, FINALIZER):
            return
        try:
            if await add_finalizer(self._client, backend, FINALIZER):
                return
            live = await self._client.get(CacheBackend, Key.of(backend))
        except NotFound:
            raise OwnerIsLeaving from None
        if not has_finalizer(live, FINALIZER):  # it is being deleted, and takes none any more
            raise OwnerIsLeaving

    async def _release(self, backend: CacheBackend, *, keep: str) -> None:
        mine = _entry(backend)

        def released(live: KVCachePoolBinding) -> Mapping[str, Any] | None:
            others = [one for one in live.status.used_by if one != mine]
            return None if len(others) == len(live.status.used_by) else used_by_patch(others)

        try:
            bindings = await self._client.list(StoredBinding, namespace=backend.metadata.namespace)
        except NotFound:  # the kind is gone, and every claim with it
            return
        for binding in bindings:
            if binding.metadata.name != keep:
                try:
                    await write_status(self._client, binding, released)
                except NotFound:
                    continue

    # --------------------------------------------------------------------------------------------- who is to be woken

    def users_of_binding(self, binding: KVCachePoolBinding) -> Iterable[Key]:
        """The backends on a Binding."""
        namespace, name = binding.metadata.namespace, binding.metadata.name
        return [Key.of(one) for one in self._backends.list(namespace) if one.pool_binding == name]

    def users_of_pool(self, pool: KVCachePool) -> Iterable[Key]:
        """The backends on any Binding of a pool."""
        bindings = self.bindings.by_index(_BY_POOL, pool.metadata.name)
        return [key for binding in bindings for key in self.users_of_binding(binding)]


def _entry(backend: CacheBackend) -> UsedBy:
    """How a Binding names a backend of its own namespace."""
    return UsedBy(kind=CacheBackend.resource.kind, namespace="", name=backend.metadata.name)
