"""What a Binding's status says (spec 10 §7.2, §8, §10).

The rows are asked in order, and the first that settles the matter ends it:

| the Binding                                    | says                                              | figures  |
|------------------------------------------------|---------------------------------------------------|----------|
| is being deleted and workloads use it          | Releasable False, HeldByWorkloads; and goes on    |          |
| claims a domain that others claim too          | DomainExclusive False; ends                       | stay     |
| otherwise                                      | DomainExclusive True; goes on                     |          |
| cannot be read, or cannot be held              | QuotaObserved False, MasterNotScraped; ends       | stay     |
| is on a master without a ledger                | NoTenantLedger, Unenforced; ends                  | go       |
| is on a master that was not scraped            | QuotaObserved False, MasterNotScraped; ends       | stay     |
| has a domain that is not in the scrape         | TenantNotInLedger, NoLedgerEntry; ends            | go       |
| has a domain that is                           | Observed, and what the grant is worth             | are read |

A releasing Binding is not described any more: it says why it is held, or it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcache import listed
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.quantity import binary
from inferencecache.controllers.kvcachepool import reasons as r
from inferencecache.controllers.kvcachepool.claims import Claim, phase, with_claims
from inferencecache.controllers.mooncake.exposition import TenantFigures
from inferencecache.controllers.mooncake.ledger import Outcome, Verdict
from inferencecache.kube.conditions import find_condition
from inferencecache.kube.resource import Key
from inferencecache.kube.status import status_patch

AXES: Final = (k.DOMAIN_EXCLUSIVE, k.QUOTA_OBSERVED, k.QUOTA_GRANTED)

_UNKNOWN_FIGURES: Final[Mapping[str, Any]] = {
    "requestedQuota": None,
    "effectiveQuota": None,
    "usage": None,
    "overQuota": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a pass saw of the master of a Binding.

    Attributes:
        rivals: the other Bindings that claim the domain; None if the pass could not tell.
        no_ledger: the master keeps no ledger of tenants.
        tenants: the scrape; None without one.
        blind: why there is none.
    """

    rivals: tuple[Key, ...] | None = ()
    no_ledger: bool = False
    tenants: Mapping[str, TenantFigures] | None = None
    blind: str = ""


class Release(Enum):
    """What becomes of a releasing Binding."""

    FREE = auto()
    """Nothing of it is on the master: the finalizer goes."""
    NOT_EMPTY = auto()
    """The store keeps the tenant, as its domain holds objects."""
    UNKNOWN = auto()
    """A request failed, so nobody knows whether the tenant is gone."""


def release(domain: str, outcome: Outcome | None) -> Release:
    """What a pass over the ledger means for a Binding that releases a domain; None: there was no such pass.

    A master that turns out to keep no ledger has nothing of it to strand (spec 10 §10).
    """
    if outcome is None:
        return Release.UNKNOWN
    if outcome.converged:
        return Release.FREE
    if domain in outcome.retained:
        return Release.NOT_EMPTY
    if outcome.verdict in (Verdict.WITHDRAWN, Verdict.RETAINED):
        return Release.FREE
    return Release.UNKNOWN


def binding_status(binding: KVCachePoolBinding, sight: Sight, now: datetime) -> dict[str, Any]:
    """The fields to write of a Binding that is not releasing; empty if the status says all that already."""
    if binding.flaw:
        why = f"{binding.flaw}; mend this Binding, its quota is left as it is until then"
        sight = Sight(rivals=sight.rivals, blind=why)
    claims = list(_claims(binding, sight))
    return _changes(binding, claims, _figures(binding, sight), now)


def held_status(binding: KVCachePoolBinding, why: Release, failure: str, now: datetime) -> dict[str, Any]:
    """The fields to write of a releasing Binding that is held; `failure` is what the master or the pass said."""
    domain = binding.spec.domain.name
    if why is Release.NOT_EMPTY:
        claim = Claim(
            k.RELEASABLE,
            "False",
            r.LEDGER_NOT_RELEASED,
            f"the master keeps tenant {domain!r} as long as its reuse domain holds objects; drain the domain and the "
            "next pass releases it",
        )
    else:
        claim = Claim(
            k.RELEASABLE,
            "False",
            r.LEDGER_REQUEST_FAILED,
            f"it is not known whether tenant {domain!r} is off the master: {failure}; see the conditions of pool "
            f"{binding.pool}",
        )
    return _changes(binding, [claim], {}, now)


def used_status(binding: KVCachePoolBinding, now: datetime) -> dict[str, Any]:
    """The fields to write of a Binding whose deletion workloads hold, where nothing else is looked at."""
    return _changes(binding, [_used(binding)], {}, now)


def _claims(binding: KVCachePoolBinding, sight: Sight) -> Iterator[Claim]:
    domain = binding.spec.domain.name
    if binding.metadata.deletion_timestamp is not None:
        yield _used(binding)
    if sight.rivals:
        yield Claim(
            k.DOMAIN_EXCLUSIVE,
            "False",
            r.DOMAIN_CLAIMED_BY_MULTIPLE_BINDINGS,
            f"reuse domain {domain!r} is also claimed by {listed(sight.rivals)} on the same master; its quota is left "
            "as it is until all but one are deleted",
        )
        return
    if sight.rivals is not None:
        yield Claim(k.DOMAIN_EXCLUSIVE, "True", r.EXCLUSIVE, f"no other Binding of this master claims {domain!r}")
    if sight.no_ledger:
        yield Claim(
            k.QUOTA_OBSERVED, "True", r.NO_TENANT_LEDGER, "the master keeps no ledger of tenants, so there is no quota"
        )
        yield Claim(k.QUOTA_GRANTED, "True", r.UNENFORCED, "writes are bounded by the store's capacity only")
        return
    if sight.tenants is None:
        yield Claim(k.QUOTA_OBSERVED, "False", r.MASTER_NOT_SCRAPED, f"the figures were not read: {sight.blind}")
        return
    figures = sight.tenants.get(domain)
    if figures is None:
        yield Claim(k.QUOTA_OBSERVED, "True", r.TENANT_NOT_IN_LEDGER, f"the master lists no tenant {domain!r}")
        yield Claim(
            k.QUOTA_GRANTED,
            "False",
            r.NO_LEDGER_ENTRY,
            f"tenant {domain!r} is not in the master's ledger, so every write is refused; the next pass registers it",
        )
        return
    yield Claim(k.QUOTA_OBSERVED, "True", r.OBSERVED, _observed(figures))
    yield _granted(figures)


def _used(binding: KVCachePoolBinding) -> Claim:
    return Claim(
        k.RELEASABLE,
        "False",
        r.HELD_BY_WORKLOADS,
        f"in use by {listed(binding.status.used_by)}; remove the workloads, nothing needs to be drained",
    )


def _observed(figures: TenantFigures) -> str:
    parts = ["read from the master"]
    if figures.explicit_policy is False:
        parts.append("it has no policy for this tenant yet")
    if figures.usage is not None and figures.usage_includes_in_flight:
        parts.append("usage includes writes that are not committed")
    return "; ".join(parts)


def _granted(figures: TenantFigures) -> Claim:
    if figures.effective is None:
        return Claim(k.QUOTA_GRANTED, "False", r.GRANT_NOT_EXPORTED, "the master does not say what it grants")
    if figures.effective == 0:
        return Claim(
            k.QUOTA_GRANTED,
            "False",
            r.ZERO_GRANTED,
            "the master grants nothing, so every write is refused; see CapacityAllocatable of the pool",
        )
    return Claim(k.QUOTA_GRANTED, "True", r.GRANTED, "the master grants a quota")


def _figures(binding: KVCachePoolBinding, sight: Sight) -> Mapping[str, Any]:
    """The figures that change; None for one that goes."""
    if sight.rivals:
        return {}
    if sight.no_ledger:
        return _UNKNOWN_FIGURES
    if sight.tenants is None:
        return {}
    figures = sight.tenants.get(binding.spec.domain.name)
    if figures is None:
        return _UNKNOWN_FIGURES
    return {
        "requestedQuota": _quantity(figures.requested),
        "effectiveQuota": _quantity(figures.effective),
        "usage": _quantity(figures.usage),
        "overQuota": figures.over_quota,
    }


def _quantity(amount: int | None) -> str | None:
    return None if amount is None else binary(amount)


def _changes(
    binding: KVCachePoolBinding, claims: list[Claim], figures: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    conditions = with_claims(binding.status.conditions, claims, now)
    deleting = binding.metadata.deletion_timestamp is not None
    name, message = phase(conditions, AXES, deleting=deleting)
    if name == k.PHASE_READY:
        message = str((find_condition(conditions, k.QUOTA_OBSERVED) or {}).get("message", ""))
    before = binding.status.manifest()
    after = {**before, **figures, "conditions": conditions, "phase": name, "phaseMessage": message}
    return status_patch(before, after)
