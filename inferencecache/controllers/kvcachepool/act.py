"""What a pass writes to the API server: finalizers, the claim on the backend, statuses. Each is safe to repeat.

Nothing is sent where nothing differs. An object that is gone needs nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.kvcachepool.visit import MovedOn
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.finalizers import add_finalizer, has_finalizer, is_being_deleted, remove_finalizer
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes about pools, Bindings and backends."""

    client: Client

    async def hold(self, pool: KVCachePool) -> None:
        """Put the finalizer on a live pool. Raises `MovedOn` if it is not what was seen."""
        await self._hold(pool)

    async def hold_all(self, bindings: Iterable[KVCachePoolBinding]) -> list[Key]:
        """Put the finalizer on every Binding that is not being deleted; the keys of those that had none.

        Raises `MovedOn` if one is not what was seen: nothing may be registered for it.
        """
        bare = [one for one in bindings if not is_being_deleted(one) and not has_finalizer(one, k.FINALIZER)]
        moved: list[Key] = []

        async def hold(binding: KVCachePoolBinding) -> None:
            try:
                await self._hold(binding)
            except MovedOn:
                moved.append(Key.of(binding))

        failure = await write_each(bare, hold, what="finalizer")
        if failure is not None:
            raise failure
        if moved:
            raise MovedOn
        return [Key.of(one) for one in bare]

    async def release(self, obj: KVCachePool | KVCachePoolBinding) -> None:
        """Take the finalizer off."""
        await remove_finalizer(self.client, obj, k.FINALIZER)

    async def release_all(self, bindings: Iterable[KVCachePoolBinding]) -> None:
        """Take the finalizers off; one that cannot be keeps no other."""
        failure = await write_each(bindings, self.release, what="release")
        if failure is not None:
            raise failure

    async def claim(self, backend: KVCacheBackend, pool: str) -> None:
        """Enter a pool into the users of its backend. Raises `Conflict` and `NotFound`."""

        def decide(live: KVCacheBackend) -> dict[str, Any] | None:
            if any(_is_pool(user, pool) for user in live.status.used_by):
                return None
            mine = k.UsedBy(kind=KVCachePool.resource.kind, namespace="", name=pool)
            return _users([*live.status.used_by, mine])

        await write_status(self.client, backend, decide)

    async def give_up(self, backend: KVCacheBackend, pool: str) -> None:
        """Take a pool out of the users of its backend. Raises `Conflict` and `NotFound`."""

        def decide(live: KVCacheBackend) -> dict[str, Any] | None:
            others = [user for user in live.status.used_by if not _is_pool(user, pool)]
            return None if len(others) == len(live.status.used_by) else _users(others)

        await write_status(self.client, backend, decide)

    async def tell_pool(self, pool: KVCachePool, decide: Callable[[KVCachePool], dict[str, Any]]) -> None:
        """Write a pool's status. Raises `Conflict`."""
        try:
            await write_status(self.client, pool, decide)
        except NotFound:
            return

    async def tell_bindings(
        self, bindings: Iterable[KVCachePoolBinding], decide: Callable[[KVCachePoolBinding], dict[str, Any]]
    ) -> KubeError | None:
        """Write the statuses of Bindings; the first failure, after all were tried."""

        async def tell(binding: KVCachePoolBinding) -> None:
            await write_status(self.client, binding, decide)

        return await write_each(bindings, tell, what="Binding status")

    async def _hold(self, obj: KVCachePool | KVCachePoolBinding) -> None:
        try:
            added = await add_finalizer(self.client, obj, k.FINALIZER)
        except NotFound as error:
            raise MovedOn from error
        if not added:
            raise MovedOn


def _is_pool(user: k.UsedBy, pool: str) -> bool:
    return (user.kind, user.namespace, user.name) == (KVCachePool.resource.kind, "", pool)


def _users(users: Iterable[k.UsedBy]) -> dict[str, Any]:
    listed = sorted(users, key=lambda user: (user.kind, user.namespace, user.name))
    return {"usedBy": [user.manifest() for user in listed] or None}
