"""A backend whose remote tier is a KV cache pool: what the pool offers it, as a table (spec 10 §12; decision P4).

The address is the pool's. It is offered as long as a new engine could use it, whether or not the Binding is ready right
now: a grant of zero passes, and a Pod that was admitted without an address stays without one. Readiness is stricter and
follows the Binding.

The tenant is not ours to send. LMCache takes its Mooncake settings from its own configuration, in which newer versions
pass every key `mooncake_…` on to the store's client, and older ones send no tenant, which the store takes for
`default`. On a master with tenants an engine that names another one than the Binding's would write on somebody else's
account, or be refused every write. So the Binding's domain has to be `default`, or the backend has to say in
`LMCACHE_EXTRA_CONFIG` which tenant LMCache sends, and it has to be the Binding's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcache import DEFAULT_DOMAIN, PHASE_READY
from inferencecache.api.kvcachechain import ledger_of
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.facts import Claim, PoolOffer

EXTRA_CONFIG: Final = "LMCACHE_EXTRA_CONFIG"
TENANT_KEY: Final = "mooncake_tenant_id"


@dataclass(frozen=True, slots=True)
class PoolChain:
    """A backend, its Binding and that one's pool, each as far as it exists."""

    backend: CacheBackend
    binding: KVCachePoolBinding | None
    pool: KVCachePool | None


def offer(chain: PoolChain) -> PoolOffer:
    """What the engines of a backend get, and what its readiness says."""
    row = next((row for row in _TABLE if row.stands(chain)), None)
    endpoint = chain.pool.status.client_endpoint if chain.pool is not None else ""
    if row is None:
        return PoolOffer(endpoint, Claim("True", r.POOL_BINDING_READY, f"engines use the pool at {endpoint}"))
    return PoolOffer(endpoint if row.offered else "", Claim("False", row.reason, row.message(chain)))


def tenant_sent(backend: CacheBackend) -> str:
    """The tenant that LMCache sends, as far as the backend tells; without a word of it the store's default."""
    integration = backend.spec.integration
    overrides = integration.engine_overrides if integration is not None else None
    given = [one.value for one in (overrides.env if overrides is not None else None) or () if one.name == EXTRA_CONFIG]
    try:
        config = json.loads(given[-1] or "") if given else None
    except ValueError:
        return DEFAULT_DOMAIN
    tenant = config.get(TENANT_KEY) if isinstance(config, dict) else None
    return tenant if isinstance(tenant, str) and tenant else DEFAULT_DOMAIN


@dataclass(frozen=True, slots=True)
class _Row:
    """Why a backend is not ready, and whether a new engine gets the address all the same."""

    stands: Callable[[PoolChain], bool]
    reason: str
    message: Callable[[PoolChain], str]
    offered: bool = False


def _ledger_unknown(chain: PoolChain) -> bool:
    ledger = ledger_of(chain.pool) if chain.pool is not None else None
    return ledger is None or (ledger.status != "True" and not _single_tenant(chain))


def _single_tenant(chain: PoolChain) -> bool:
    return chain.pool is not None and chain.pool.single_tenant


def _domain(chain: PoolChain) -> str:
    return chain.binding.spec.domain.name if chain.binding is not None else ""


def _differs(chain: PoolChain) -> bool:
    """Engines would name another tenant than the Binding's."""
    return tenant_sent(chain.backend) != _domain(chain)


def _binding_of(chain: PoolChain) -> str:
    return f"KVCachePoolBinding {chain.backend.pool_binding}"


def _pool_of(chain: PoolChain) -> str:
    return f"KVCachePool {chain.binding.pool if chain.binding is not None else ''}"


def _phase(chain: PoolChain) -> str:
    status = chain.binding.status if chain.binding is not None else None
    said = f": {status.phase_message}" if status is not None and status.phase_message else ""
    return f"{(status.phase if status is not None else '') or 'not observed yet'}{said}"


_TABLE: Final = (
    _Row(
        lambda chain: chain.binding is None,
        r.POOL_BINDING_NOT_FOUND,
        lambda chain: (
            f"this namespace has no {_binding_of(chain)}: create it, or correct spec.remoteStorage.poolBindingRef"
        ),
    ),
    _Row(
        lambda chain: chain.binding is not None and chain.binding.metadata.deletion_timestamp is not None,
        r.POOL_BINDING_DELETING,
        lambda chain: f"{_binding_of(chain)} is being deleted: name another one, or delete this backend",
    ),
    _Row(
        lambda chain: chain.pool is None,
        r.POOL_NOT_SERVED,
        lambda chain: f"{_pool_of(chain)} of the Binding does not exist: create it",
    ),
    _Row(
        lambda chain: chain.pool is not None and not chain.pool.status.client_endpoint,
        r.POOL_NOT_SERVED,
        lambda chain: f"{_pool_of(chain)} has not published status.clientEndpoint: see its conditions",
    ),
    _Row(
        lambda chain: _ledger_unknown(chain) and _differs(chain),
        r.POOL_NOT_SERVED,
        lambda chain: (
            f"{_pool_of(chain)} does not know yet whether its master has tenants: see its condition "
            "QuotaLedgerAvailable"
        ),
    ),
    _Row(
        lambda chain: not _single_tenant(chain) and _differs(chain),
        r.POOL_TENANT_NOT_SENT,
        lambda chain: (
            f'the Binding\'s domain is the tenant "{_domain(chain)}", and LMCache sends '
            f'"{tenant_sent(chain.backend)}": set "{TENANT_KEY}": "{_domain(chain)}" in {EXTRA_CONFIG} '
            "(spec.integration.engineOverrides.env) with an LMCache that passes it on, or name a Binding of domain "
            f"{DEFAULT_DOMAIN}"
        ),
    ),
    _Row(
        lambda chain: chain.binding is not None and chain.binding.status.phase != PHASE_READY,
        r.POOL_BINDING_NOT_READY,
        lambda chain: f"{_binding_of(chain)} is {_phase(chain)}",
        offered=True,
    ),
)
"""The first row that stands decides."""
