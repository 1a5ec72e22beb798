"""What a pool's status says (spec 10 §6.4, §7.1, §8).

A pass gets so far, and says of each axis what it found there; of an axis that it did not reach, what was said before
stands. Only `clientEndpoint` and `usage` are said anew every time: an address that no longer resolves, or bytes that
nobody could read, would mislead whoever connects or counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcache import listed
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.quantity import binary
from inferencecache.controllers.kvcachepool import reasons as r
from inferencecache.controllers.kvcachepool.claims import Claim, phase, with_claims
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.exposition import Scrape
from inferencecache.controllers.mooncake.ledger import Outcome, Verdict
from inferencecache.kube.conditions import find_condition
from inferencecache.kube.status import status_patch

AXES: Final = (k.BACKEND_RESOLVED, k.QUOTA_LEDGER_AVAILABLE, k.QUOTA_POLICY_WRITABLE, k.CAPACITY_ALLOCATABLE)

NOTHING_TO_ALLOCATE: Final = (
    "the master reports nothing to allocate, so every reuse domain's effective quota is zero and no write can succeed. "
    "Its members have either not mounted their segments yet, or not finished remounting them after the master restarted"
)
SINGLE_TENANT: Final = (
    "the master keeps no ledger of tenants: the pool serves a single tenant and one reuse domain, and no per-tenant "
    "quota is in force"
)

RESOLVED: Final = Claim(k.BACKEND_RESOLVED, "True", r.RESOLVED, "the backend is there and has published its addresses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a pass found out about one master.

    Attributes:
        outcome: what converging the ledger came to.
        scrape: the figures; None if none were read.
        blind: why none were read; empty if they were.
        scrape_tried: whether the pass got as far as to ask for them.
        gone: domains of which no entry is left on the master.
        more: whether entries were left to the next pass.
    """

    outcome: Outcome
    scrape: Scrape | None = None
    blind: str = ""
    scrape_tried: bool = False
    gone: frozenset[str] = frozenset()
    more: bool = False

    @property
    def no_ledger(self) -> bool:
        """The master keeps no ledger."""
        return self.outcome.verdict is Verdict.NO_LEDGER


def not_singular(pool: KVCachePool) -> Claim:
    """Past admission, a pool names no backend or several."""
    return Claim(
        k.BACKEND_RESOLVED,
        "False",
        r.BACKEND_NOT_SINGULAR,
        f"spec.backends names {len(pool.spec.backends)} backends; a pool publishes exactly one. Delete the pool and "
        "create it with one backend",
    )


def not_found(backend: str) -> Claim:
    """There is no such backend."""
    return Claim(
        k.BACKEND_RESOLVED, "False", r.BACKEND_NOT_FOUND, f"KVCacheBackend {backend!r} does not exist; create it"
    )


def not_published(backend: str) -> Claim:
    """The backend has no admin address."""
    return Claim(
        k.BACKEND_RESOLVED,
        "False",
        r.ENDPOINTS_NOT_PUBLISHED,
        f"KVCacheBackend {backend!r} has not published its Admin address; see its own conditions",
    )


def leaving(backend: str) -> Claim:
    """The backend is on its way out, and the pool came after that."""
    return Claim(
        k.BACKEND_RESOLVED,
        "False",
        r.ENDPOINTS_NOT_PUBLISHED,
        f"KVCacheBackend {backend!r} is being deleted and takes no new pool; create it again once it is gone",
    )


def ledger_claims(outcome: Outcome) -> Iterator[Claim]:
    """The two conditions about the ledger (spec 10 §6.2)."""
    ledger, policy = k.QUOTA_LEDGER_AVAILABLE, k.QUOTA_POLICY_WRITABLE
    said = str(outcome.failure) if outcome.failure is not None else ""
    match outcome.verdict:
        case Verdict.NO_LEDGER | Verdict.WITHDRAWN:
            yield Claim(ledger, "False", k.MULTI_TENANCY_DISABLED, SINGLE_TENANT)
            yield Claim(policy, "Unknown", k.MULTI_TENANCY_DISABLED, "a master without a ledger reads no quota policy")
        case Verdict.NOT_WRITABLE:
            yield Claim(ledger, "True", r.AVAILABLE, "the master's ledger can be read")
            message = f"the master cannot write its policy file, so ceilings do not reach it: {said}"
            yield Claim(policy, "False", r.QUOTA_POLICY_NOT_WRITABLE, message)
        case Verdict.UNREACHABLE:
            yield Claim(ledger, "False", r.LEDGER_UNREACHABLE, f"the master's ledger cannot be reached: {said}")
            yield Claim(policy, "Unknown", r.LEDGER_UNREACHABLE, "the master's ledger cannot be reached")
        case Verdict.RETAINED | Verdict.CONVERGED:
            yield Claim(ledger, "True", r.AVAILABLE, "the master's ledger can be read")
            yield Claim(policy, "True", r.WRITABLE, "the master takes the ceilings of the Bindings")


def policy_refused(why: str) -> Claim:
    """The policy document could not be written."""
    return Claim(
        k.QUOTA_POLICY_WRITABLE,
        "False",
        r.QUOTA_POLICY_NOT_WRITABLE,
        f"the quota policy document cannot be written, and before it is, nothing is sent to the master: {why}",
    )


def capacity_claim(findings: Findings) -> Claim:
    """Whether there is anything to grant; for a pass that got as far as to ask."""
    scrape = findings.scrape
    if scrape is None:
        return Claim(k.CAPACITY_ALLOCATABLE, "False", r.CAPACITY_NOT_OBSERVED, f"not observed: {findings.blind}")
    capacity, whose = scrape.allocatable, ""
    if capacity is None and findings.no_ledger:
        capacity, whose = scrape.total_capacity, ", the store's global capacity, which no tenant has a share of"
    if capacity is None:
        message = "the master's metrics do not say what it can allocate"
        return Claim(k.CAPACITY_ALLOCATABLE, "False", r.CAPACITY_NOT_OBSERVED, message)
    if capacity == 0:
        return Claim(k.CAPACITY_ALLOCATABLE, "False", r.NOTHING_TO_ALLOCATE, NOTHING_TO_ALLOCATE)
    message = f"the master can allocate {binary(capacity)}{whose}"
    return Claim(k.CAPACITY_ALLOCATABLE, "True", r.ALLOCATABLE, message)


def total_claim(pool: KVCachePool, snapshot: Snapshot) -> Claim:
    """Whether the ceilings fit into what the pool declares; it says nothing about what is mounted."""
    asked, left_out = snapshot.asked_of(pool)
    total = int(pool.spec.quota.total)
    fits = asked <= total and not pool.flaw
    known = f"the pool's total cannot be read ({pool.flaw})" if pool.flaw else f"the pool's total is {binary(total)}"
    sums = f"the ceilings sum to {binary(asked)}, {known}"
    message = sums if fits else f"{sums}; every grant may be cut in proportion to its ceiling"
    rival = [domain for domain in left_out if domain not in snapshot.set_aside]
    if rival:
        message += f"; left out, as several Bindings claim them: {listed(rival)}"
    if len(rival) < len(left_out):
        aside = (domain for domain in left_out if domain in snapshot.set_aside)
        message += f"; left out, as their Bindings cannot be served (see there): {listed(aside)}"
    if fits:
        return Claim(k.QUOTA_WITHIN_TOTAL, "True", r.WITHIN_TOTAL, message)
    return Claim(k.QUOTA_WITHIN_TOTAL, "False", r.OVERSUBSCRIBED, message)


def usage_of(domains: list[dict[str, Any]], scrape: Scrape | None) -> dict[str, Any] | None:
    """`status.usage`: what a pool's domains hold together; None if nobody knows (spec 10 §6.4)."""
    if scrape is None:
        return None
    figures = (scrape.tenants.get(domain["name"]) for domain in domains)
    found = [tenant.usage for tenant in figures if tenant is not None and tenant.usage is not None]
    if domains and not found:
        return None
    return {"total": binary(sum(found))}


def served_status(
    pool: KVCachePool, snapshot: Snapshot, findings: Findings, client_endpoint: str, now: datetime
) -> dict[str, Any]:
    """The fields to write after a pass that reached the master; empty if the status says all that already."""
    domains = snapshot.domains(pool, gone=findings.gone)
    claims = [RESOLVED, *ledger_claims(findings.outcome), total_claim(pool, snapshot)]
    if findings.scrape_tried:
        claims.append(capacity_claim(findings))
    fields = {
        "clientEndpoint": client_endpoint,
        "domains": domains,
        "usedBy": snapshot.used_by(pool),
        "usage": usage_of(domains, findings.scrape),
    }
    return _changes(pool, claims, fields, now)


def unserved_status(
    pool: KVCachePool,
    snapshot: Snapshot | None,
    claims: list[Claim],
    now: datetime,
    *,
    client_endpoint: str = "",
    gone: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The fields to write after a pass that ended before it reached a master.

    Args:
        pool: whose status it is.
        snapshot: what is claimed; None if the pool does not name one backend.
        claims: how far the pass got.
        now: for conditions that change.
        client_endpoint: the backend's, if it is known.
        gone: domains of which no entry is left.
    """
    fields: dict[str, Any] = {"clientEndpoint": client_endpoint, "usage": None}
    if snapshot is not None:
        claims = [*claims, total_claim(pool, snapshot)]
        fields |= {"domains": snapshot.domains(pool, gone=gone), "usedBy": snapshot.used_by(pool)}
    return _changes(pool, claims, fields, now)


def held_status(pool: KVCachePool, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """The fields to write of a pool whose deletion is held; empty if the status says all that already."""
    return _changes(pool, [Claim(k.RELEASABLE, "False", reason, message)], {}, now)


def _changes(pool: KVCachePool, claims: list[Claim], fields: dict[str, Any], now: datetime) -> dict[str, Any]:
    conditions = with_claims(pool.status.conditions, claims, now)
    name, message = phase(conditions, AXES, deleting=pool.metadata.deletion_timestamp is not None)
    if name == k.PHASE_READY and _single_tenant(conditions):
        message = SINGLE_TENANT
    before = pool.status.manifest()
    after = {**before, **fields, "conditions": conditions, "phase": name, "phaseMessage": message}
    return status_patch(before, after)


def _single_tenant(conditions: list[dict[str, Any]]) -> bool:
    ledger = find_condition(conditions, k.QUOTA_LEDGER_AVAILABLE) or {}
    return ledger.get("reason") == k.MULTI_TENANCY_DISABLED
