"""KV cache pools among documents: what a Binding leads to, and where engines of a backend on one are wired to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.cli.documents import Document
from inferencecache.cli.offline import objects_of
from inferencecache.controllers.cachebackend.pool import PoolChain, offer
from inferencecache.controllers.kvcachepool.published import as_served

ChainOf: TypeAlias = Callable[[str, str], Chain]
"""What the Binding of a namespace and a name leads to."""


def chains(documents: Sequence[Document], pool_namespace: str) -> ChainOf:
    """What the Bindings among the documents lead to, as far as that is among them, once all of it is served.

    `pool_namespace` is where stores run.
    """
    bindings = {(one.metadata.namespace, one.metadata.name): one for one in objects_of(KVCachePoolBinding, documents)}
    pools = {one.metadata.name: one for one in objects_of(KVCachePool, documents)}
    backends = {one.metadata.name: one for one in objects_of(KVCacheBackend, documents)}

    def chain_of(namespace: str, name: str) -> Chain:
        binding = bindings.get((namespace, name))
        pool = pools.get(binding.pool) if binding is not None else None
        backend = backends.get(pool.backend or "") if pool is not None else None
        if pool is not None and backend is not None:
            pool = as_served(pool, backend, pool_namespace)
        return Chain(binding, pool, backend)

    return chain_of


def on_pool(backend: CacheBackend, chain_of: ChainOf) -> tuple[CacheBackend, str]:
    """A backend with the address that its pool gives it, and where it gives none, why; others as they are."""
    if not backend.pool_binding or backend.status.endpoint:
        return backend, ""
    chain = chain_of(backend.metadata.namespace, backend.pool_binding)
    found = offer(PoolChain(backend, chain.binding, chain.pool))
    status = backend.status.model_copy(update={"endpoint": found.endpoint})
    why = "" if found.endpoint else f"{found.ready.reason}: {found.ready.message}"
    return backend.model_copy(update={"status": status}), why
