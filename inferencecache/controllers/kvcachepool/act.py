"""What a pass writes to the API server: finalizers, the claim on the backend, statuses. Each is safe to repeat.

Nothing is sent where nothing differs. An object that is gone needs nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.kvcachepool.visit import MovedOn
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, LeadershipLost, NotFound
from inferencecache.kube.finalizers import add_finalizer, is_being_deleted, remove_finalizer
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes about pools, Bindings and backends."""

    client: Client

    async def hold(self, bare: Sequence[KVCachePool | KVCachePoolBinding]) -> tuple[list[Key], dict[Key, KubeError]]:
        """Put the finalizer on what has none; the keys of all that, and what kept others from it.

        A policy of one namespace may refuse it there, which is to stop nobody else. Raises `MovedOn` if something is
        not what was seen: nothing may be registered for it.
        """
        held: list[Key] = []
        failed: dict[Key, KubeError] = {}

        async def hold(obj: KVCachePool | KVCachePoolBinding) -> None:
            try:
                if await add_finalizer(self.client, obj, k.FINALIZER):
                    held.append(Key.of(obj))
            except (LeadershipLost, NotFound):
                raise
            except KubeError as error:
                failed[Key.of(obj)] = error
                raise

        await write_each(bare, hold, what="finalizer")
        if len(held) + len(failed) < len(bare):
            raise MovedOn
        return held, failed

    async def release(self, obj: KVCachePool | KVCachePoolBinding) -> None:
        """Take the finalizer off."""
        await remove_finalizer(self.client, obj, k.FINALIZER)

    async def release_all(self, bindings: Iterable[KVCachePoolBinding]) -> KubeError | None:
        """Take the finalizers off; the first failure, after all were tried."""
        return await write_each(bindings, self.release, what="release")

    async def claim(self, backend: KVCacheBackend, pools: Iterable[KVCachePool], *, new: Collection[str] = ()) -> None:
        """Enter pools into the users of their backend; `new` are those that cannot have claimed it before.

        Users are known by name only. If a new pool seems to be among them, the copy is from before its namesake gave
        its claim up, or somebody else's doing, and is not believed.

        Raises `Conflict`, `NotFound`, and `MovedOn` if the backend is being deleted and does not have all of them yet.
        """
        names = [pool.metadata.name for pool in pools]
        if not users_of(backend).isdisjoint(new):
            backend = await self.client.get(KVCacheBackend, Key.of(backend))

        def decide(live: KVCacheBackend) -> dict[str, Any] | None:
            known, kind = users_of(live), KVCachePool.resource.kind
            more = [k.UsedBy(kind=kind, namespace="", name=name) for name in names if name not in known]
            if more and is_being_deleted(live):
                raise MovedOn
            return k.used_by_patch([*live.status.used_by, *more]) if more else None

        await write_status(self.client, backend, decide)

    async def give_up(self, backend: KVCacheBackend, pool: str) -> None:
        """Take a pool out of the users of its backend. Raises `Conflict` and `NotFound`."""

        def decide(live: KVCacheBackend) -> dict[str, Any] | None:
            others = [user for user in live.status.used_by if not _is_pool(user, pool)]
            return None if len(others) == len(live.status.used_by) else k.used_by_patch(others)

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


def users_of(backend: KVCacheBackend) -> frozenset[str]:
    """The names of the pools that have claimed a backend."""
    return frozenset(user.name for user in backend.status.used_by if _is_pool(user, user.name))


def _is_pool(user: k.UsedBy, pool: str) -> bool:
    return (user.kind, user.namespace, user.name) == (KVCachePool.resource.kind, "", pool)
