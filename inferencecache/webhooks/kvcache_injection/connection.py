"""From the chain of objects behind a Pod's Binding to the client that the engine gets, or why it gets none.

The pool is trusted only with its ledger seen: an engine sent to a master that answers nobody would have every write
refused, and one sent without a tenant to a master that has them, too. The Binding's own readiness is not asked for; a
grant of zero passes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain, ledger_of, tenant_of
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.webhooks.kvcache_injection import keys
from inferencecache.webhooks.kvcache_injection.client import StoreClient
from inferencecache.webhooks.kvcache_injection.engines import Engine
from inferencecache.webhooks.kvcache_injection.request import RULE, PoolRequest, annotation
from inferencecache.webhooks.validation.findings import Violation, invalid


@dataclass(frozen=True, slots=True)
class Connection:
    """The client, the Binding's domain and dtype."""

    client: StoreClient
    domain: str
    dtype: str


def connect(request: PoolRequest, chain: Chain, namespace: str) -> tuple[Connection | None, list[Violation]]:
    """The connection, or everything that stands in its way; neither where the request names no Binding or engine."""
    if not request.binding:
        return None, []
    where = annotation(keys.ANNOTATION_BINDING)
    problems = [invalid(RULE, where, request.binding, detail) for detail in _problems(request, chain, namespace)]
    binding, pool, backend, engine = chain.binding, chain.pool, chain.backend, request.engine
    if problems or binding is None or pool is None or backend is None or engine is None:
        return None, problems
    client = StoreClient(pool.status.client_endpoint, _transport(engine, backend), tenant_of(binding, pool, backend))
    return Connection(client, binding.spec.domain.name, binding.spec.domain.dtype), []


def _problems(request: PoolRequest, chain: Chain, namespace: str) -> Iterator[str]:
    binding, pool, backend = chain.binding, chain.pool, chain.backend
    if binding is None:
        yield f"namespace {namespace} has no KVCachePoolBinding of that name: create it, or name another"
        return
    if binding.metadata.deletion_timestamp is not None:
        yield "the KVCachePoolBinding is being deleted, and its reuse domain with it: name one that stays"
    if pool is None:
        yield f"its KVCachePool {binding.pool} does not exist: create the pool, or name a Binding of another"
        return
    yield from _pool_problems(pool)
    if pool.backend is None:
        yield f"KVCachePool {pool.metadata.name} must name exactly one backend: correct the pool"
    elif backend is None:
        yield f"the KVCacheBackend {pool.backend} of its pool {pool.metadata.name} does not exist: create it"
    elif request.engine is not None:
        yield from _transport_problems(request.engine, backend)


def _pool_problems(pool: KVCachePool) -> Iterator[str]:
    name = pool.metadata.name
    ledger = ledger_of(pool)
    if ledger is None:
        yield f"KVCachePool {name} has not reported QuotaLedgerAvailable yet: try again once it has"
    elif ledger.status != "True" and not pool.single_tenant:
        yield (
            f"KVCachePool {name} reports QuotaLedgerAvailable={ledger.status}, {ledger.reason}: {ledger.message}; "
            "try again once its master answers"
        )
    if not pool.status.client_endpoint:
        yield f"KVCachePool {name} has not published status.clientEndpoint yet: try again once it has"


def _transport_problems(engine: Engine, backend: KVCacheBackend) -> Iterator[str]:
    offers = list(dict.fromkeys(backend.transports))
    told = f"KVCacheBackend {backend.metadata.name} offers {', '.join(offers) or 'no transport that is known'}"
    if engine.only_transport:
        if engine.only_transport not in offers:
            yield (
                f"{told}, and {engine.name} accepts only {engine.only_transport}: use a pool whose backend, or one of "
                "its member groups, has transport.protocol CANN"
            )
    elif len(offers) != 1:
        yield (
            f"{told}, and {engine.name} reaches members by one transport only: use a pool whose member groups share "
            "one transport.protocol"
        )


def _transport(engine: Engine, backend: KVCacheBackend) -> str:
    return engine.only_transport or backend.transports[0]
