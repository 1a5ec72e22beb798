"""Joins the pool controller to a manager."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from inferencecache.api.stored import StoredBinding, StoredPool
from inferencecache.controllers.kvcachepool.masters import SHARED_FOR, Masters
from inferencecache.controllers.kvcachepool.observe import (
    Surroundings,
    binding_needs_a_pass,
    pool_needs_a_pass,
    pool_of,
)
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles
from inferencecache.controllers.kvcachepool.reconciler import REOBSERVED, KVCachePoolReconciler
from inferencecache.controllers.mooncake.admin import MooncakeClients
from inferencecache.kube.manager import Manager

_WORKERS: Final = 16
"""A pass at a master that does not answer takes a worker for as long as the timeout, which is to cost no other pool."""


def register(
    manager: Manager,
    *,
    namespace: str,
    masters: MooncakeClients,
    reobserved: timedelta = REOBSERVED,
    shared_for: timedelta = SHARED_FOR,
) -> None:
    """Add the controller of pools and Bindings.

    Args:
        manager: runs it.
        namespace: where the policy documents are.
        masters: connections to masters; whoever made them runs them.
        reobserved: how soon a pool is looked at again.
        shared_for: how long what a master said serves sibling pools as well.
    """
    surroundings = Surroundings(manager.client, manager.cache)
    reconciler = KVCachePoolReconciler(
        client=manager.client,
        surroundings=surroundings,
        policies=PolicyFiles(manager.client, manager.cache, namespace),
        masters=Masters(masters, lambda pool: builder.enqueue(pool), window=shared_for.total_seconds()),
        reobserved=reobserved,
    )
    builder = manager.controller("kvcachepool", reconciler, workers=_WORKERS)
    builder.watches_primary(StoredPool, pool_needs_a_pass, informer=surroundings.pools)
    builder.watches(StoredBinding, pool_of, binding_needs_a_pass, informer=surroundings.bindings)
