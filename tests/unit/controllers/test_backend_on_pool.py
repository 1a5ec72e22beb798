"""What a KV cache pool offers a backend: the rows of the table, and which tenant engines send."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.cachebackend.decide import decide
from inferencecache.controllers.cachebackend.engines import Matched
from inferencecache.controllers.cachebackend.facts import Facts, Trouble
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.controllers.cachebackend.pool import EXTRA_CONFIG, PoolChain, offer, tenant_sent
from inferencecache.controllers.cachebackend.status import next_status
from tests.unit.controllers.backends import backend

NOW = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)
ADDRESS = "dram-leader.gpustack-system.svc:50051"
AVAILABLE, NO_TENANTS = ("True", "Available"), ("False", "MultiTenancyDisabled")


def on_pool(extra_config: Any = None, *, source: dict[str, Any] | None = None) -> CacheBackend:
    """A backend on a pool, with LMCache's settings as JSON, as text or from elsewhere."""
    text = extra_config if extra_config is None or isinstance(extra_config, str) else json.dumps(extra_config)
    entry: dict[str, Any] = {"name": EXTRA_CONFIG}
    if text is not None:
        entry["value"] = text
    if source is not None:
        entry["valueFrom"] = source
    overrides = {"engineOverrides": {"env": [entry]}} if len(entry) > 1 else {}
    storage = {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": "team-a"}}
    return backend(remoteStorage=storage, integration=overrides)


def binding(domain: str = "default", *, phase: str = "Ready", deleting: bool = False) -> KVCachePoolBinding:
    metadata = {
        "name": "team-a",
        "namespace": "ns",
        **({"deletionTimestamp": "2026-11-30T11:00:00Z"} if deleting else {}),
    }
    spec = {"poolRef": {"name": "dram"}, "domain": {"name": domain}}
    status = {"phase": phase, "phaseMessage": "said so"} if phase else {}
    return KVCachePoolBinding.decode({"metadata": metadata, "spec": spec, "status": status})


def pool(ledger: tuple[str, str] | None = AVAILABLE, *, endpoint: str = ADDRESS) -> KVCachePool:
    conditions = []
    if ledger is not None:
        conditions = [{"type": "QuotaLedgerAvailable", "status": ledger[0], "reason": ledger[1]}]
    status = {"clientEndpoint": endpoint, "conditions": conditions}
    return KVCachePool.decode({"metadata": {"name": "dram"}, "spec": {"backends": ["dram"]}, "status": status})


TENANT = {"mooncake_tenant_id": "chat"}


@pytest.mark.parametrize(
    ("chain", "reason", "told", "offered"),
    [
        (PoolChain(on_pool(), None, None), "PoolBindingNotFound", "KVCachePoolBinding team-a", False),
        (PoolChain(on_pool(), binding(deleting=True), pool()), "PoolBindingDeleting", "being deleted", False),
        (PoolChain(on_pool(), binding(), None), "PoolNotServed", "KVCachePool dram", False),
        (PoolChain(on_pool(), binding(), pool(endpoint="")), "PoolNotServed", "status.clientEndpoint", False),
        # Of the default domain nothing has to be known: it is what is sent without a word.
        (PoolChain(on_pool(), binding(), pool(None)), "PoolBindingReady", ADDRESS, True),
        (PoolChain(on_pool(), binding(), pool(("False", "LedgerUnreachable"))), "PoolBindingReady", ADDRESS, True),
        (PoolChain(on_pool(), binding("chat"), pool(None)), "PoolNotServed", "QuotaLedgerAvailable", False),
        (
            PoolChain(on_pool(), binding("chat"), pool(("False", "LedgerUnreachable"))),
            "PoolNotServed",
            "QuotaLedgerAvailable",
            False,
        ),
        (PoolChain(on_pool(), binding("chat"), pool()), "PoolTenantNotSent", '"mooncake_tenant_id": "chat"', False),
        (PoolChain(on_pool(TENANT), binding(), pool()), "PoolTenantNotSent", 'LMCache sends "chat"', False),
        (PoolChain(on_pool(TENANT), binding("chat"), pool()), "PoolBindingReady", ADDRESS, True),
        (PoolChain(on_pool(TENANT), binding("chat"), pool(None)), "PoolBindingReady", ADDRESS, True),
        # Where there are no tenants, none is sent, and none is missed.
        (PoolChain(on_pool(), binding("chat"), pool(NO_TENANTS)), "PoolBindingReady", ADDRESS, True),
        (PoolChain(on_pool(), binding(phase="Error"), pool()), "PoolBindingNotReady", "Error: said so", True),
        (PoolChain(on_pool(), binding(phase=""), pool()), "PoolBindingNotReady", "not observed yet", True),
    ],
)
def test_the_first_row_that_stands_gives_the_reason_and_says_whether_there_is_an_address(
    chain: PoolChain, reason: str, told: str, offered: bool
) -> None:
    found = offer(chain)
    assert (found.ready.reason, found.endpoint) == (reason, ADDRESS if offered else "")
    assert (found.ready.status == "True") is (reason == "PoolBindingReady")
    assert told in found.ready.message


@pytest.mark.parametrize(
    ("given", "tenant"),
    [
        (on_pool(), "default"),
        (on_pool(TENANT), "chat"),
        (on_pool({"mooncake_tenant_id": ""}), "default"),
        (on_pool({"mooncake_tenant_id": 7}), "default"),
        (on_pool({"tenant_id": "chat"}), "default"),  # LMCache passes on only keys with its prefix
        (on_pool("{not json"), "default"),
        (on_pool("[]"), "default"),
        (on_pool(""), "default"),
        (on_pool(source={"secretKeyRef": {"name": "s", "key": "k"}}), "default"),
    ],
)
def test_the_tenant_is_what_lmcaches_own_settings_say(given: CacheBackend, tenant: str) -> None:
    assert tenant_sent(given) == tenant


def test_the_status_has_the_pools_address_and_what_is_said_of_an_external_store() -> None:
    chain = PoolChain(on_pool(), binding(), pool())
    facts = Facts(chain.backend, Path.POOL, NOW, pool=offer(chain))
    status = next_status(facts, decide(facts), Matched(None, ""), service_endpoint="somebody:1", server_instance="a:0")
    assert status["endpoint"] == ADDRESS
    assert {one["type"]: one["status"] for one in status["conditions"]} == {"Ready": "True", "Progressing": "False"}
    assert not status.keys() & {"observedServerInstance", "firstAvailableAt", "firstKVEventObservedAt"}


def test_a_claim_that_could_not_be_written_takes_readiness_away() -> None:
    chain = PoolChain(on_pool(), binding(), pool())
    facts = Facts(chain.backend, Path.POOL, NOW, trouble=Trouble("ApplyFailed", "may not"), pool=offer(chain))
    verdict = decide(facts)
    assert verdict.ready is not None
    assert (verdict.ready.status, verdict.ready.reason) == ("False", "ApplyFailed")
