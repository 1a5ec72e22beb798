"""From a reference to a Binding to the store behind it, and what an engine there is told (spec 10 §12).

A workload names a Binding of its namespace, the Binding names a pool, the pool one backend. The engine gets the
Binding's domain as its tenant where the master tells tenants apart, and no tenant at all where it does not: a name sent
to a master that does not know names would be a promise nobody keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferencecache.api.kvcache import QUOTA_LEDGER_AVAILABLE
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import Condition


@dataclass(frozen=True, slots=True)
class Chain:
    """What a reference leads to; None from the first object on that does not exist."""

    binding: KVCachePoolBinding | None = None
    pool: KVCachePool | None = None
    backend: KVCacheBackend | None = None


def ledger_of(pool: KVCachePool) -> Condition | None:
    """What the pool observed of its master's ledger; None as long as it observed nothing."""
    return next((one for one in pool.status.conditions if one.type == QUOTA_LEDGER_AVAILABLE), None)


def separates(pool: KVCachePool, backend: KVCacheBackend) -> bool:
    """Whether the master tells tenants apart: what was observed counts, then what is declared, then the usual."""
    ledger = ledger_of(pool)
    if ledger is not None and ledger.status == "True":
        return True
    if pool.single_tenant:
        return False
    return backend.multi_tenant is not False


def tenant_of(binding: KVCachePoolBinding, pool: KVCachePool, backend: KVCacheBackend) -> str | None:
    """The tenant that engines of this Binding send; None for none at all."""
    return binding.spec.domain.name if separates(pool, backend) else None
