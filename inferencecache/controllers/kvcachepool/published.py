"""A pool as the API server would hold it once it is applied and served, for use without a cluster."""

from __future__ import annotations

from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.controllers.kvcachebackend.objects import RPC_PORT, leader_address

_LEDGER: Final = k.PoolCondition(type=k.QUOTA_LEDGER_AVAILABLE, status="True", reason="Available")
_NO_LEDGER: Final = k.PoolCondition(type=k.QUOTA_LEDGER_AVAILABLE, status="False", reason=k.MULTI_TENANCY_DISABLED)


def as_served(pool: KVCachePool, backend: KVCacheBackend, namespace: str) -> KVCachePool:
    """The pool with the client's address and the state of the ledger, each only where it has none yet.

    `namespace` is where stores run. Of an external master a ledger is expected, as admission does.
    """
    status = pool.status
    endpoint = status.client_endpoint or _client_address(backend, namespace)
    conditions = status.conditions
    if all(condition.type != k.QUOTA_LEDGER_AVAILABLE for condition in conditions):
        conditions = (*conditions, _NO_LEDGER if backend.multi_tenant is False else _LEDGER)
    return pool.model_copy(
        update={"status": status.model_copy(update={"client_endpoint": endpoint, "conditions": conditions})}
    )


def _client_address(backend: KVCacheBackend, namespace: str) -> str:
    external = backend.spec.connection.external
    if external is None:
        return leader_address(backend.metadata.name, namespace, RPC_PORT)
    return next((one.address for one in external.endpoints if one.name == k.ENDPOINT_CLIENT), "")
