"""Who uses a backend, and who only says so (spec 10 §11).

A pool puts itself into `status.usedBy` before it touches the store, and takes itself out when it has given everything
back. One whose finalizer was removed by hand never does. Its claim holds nobody, and is taken out here. That a pool is
gone is only believed of a live answer: a cache may not have heard yet of a pool that has just claimed the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferencecache.api.kvcache import UsedBy, used_by_patch
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.stored import StoredPool
from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status


async def without_dangling(client: Client, backend: KVCacheBackend, is_known: Callable[[str], bool]) -> KVCacheBackend:
    """The backend without claims of pools that are gone, in the API server as well.

    `is_known` says whether a cache has a pool of that name. Raises `NotFound` if the backend is gone.
    """
    suspects = [one for one in backend.status.used_by if _is_pool(one) and not is_known(one.name)]
    gone = {one.name for one in suspects if not await _exists(client, one.name)}
    if not gone:
        return backend

    def status(live: KVCacheBackend) -> dict[str, Any] | None:
        if live.status.used_by != backend.status.used_by:
            return None  # a pool that was gone may be back with a claim of its own; the next pass asks again
        return used_by_patch(one for one in live.status.used_by if not (_is_pool(one) and one.name in gone))

    written = await write_status(client, backend, status)
    return backend if written is None else KVCacheBackend.decode(written)


def _is_pool(one: UsedBy) -> bool:
    return one.kind == KVCachePool.resource.kind and not one.namespace


async def _exists(client: Client, pool: str) -> bool:
    try:
        await client.get(StoredPool, Key("", pool))
    except NotFound:
        return False
    return True
