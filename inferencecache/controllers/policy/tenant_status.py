"""What a CacheTenant's status says after a successful scrape (spec 05 §7.5).

| the tenant                                  | Ready                     | QuotaExceeded            |
|---------------------------------------------|---------------------------|--------------------------|
| its id is longer than the server takes      | False, TenantIDTooLong    | False, NotEffective      |
| its id belongs to another CacheTenant       | False, DuplicateTenantID  | False, NotEffective      |
| its quota finds no room in the document     | False, DocumentFull       | False, NotEffective      |
| sets no quota                               | True, Observed            | False, NoQuota           |
| holds as many entries as it may, or fewer   | True, Observed            | False, WithinBudget      |
| holds more                                  | True, Observed            | True, OverEntryBudget    |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.dataplane.served import DOCUMENT_FULL
from inferencecache.controllers.policy.owners import quota_of
from inferencecache.kube.conditions import Condition, ConditionStatus, set_condition
from inferencecache.kube.resource import Key
from inferencecache.wire.limits import LONGEST_NAME

READY: Final = "Ready"
QUOTA_EXCEEDED: Final = "QuotaExceeded"

OBSERVED: Final = "Observed"
TENANT_ID_TOO_LONG: Final = "TenantIDTooLong"
DUPLICATE_TENANT_ID: Final = "DuplicateTenantID"
NOT_EFFECTIVE: Final = "NotEffective"
NO_QUOTA: Final = "NoQuota"
WITHIN_BUDGET: Final = "WithinBudget"
OVER_ENTRY_BUDGET: Final = "OverEntryBudget"


class _Claim(NamedTuple):
    type: str
    status: ConditionStatus
    reason: str
    message: str


def tenant_status(
    tenant: CacheTenant,
    owners: Mapping[str, CacheTenant],
    entries: Mapping[str, int],
    left_out: Collection[Key],
    now: datetime,
) -> dict[str, Any] | None:
    """The fields to write, or None if the status says all that already.

    Args:
        tenant: whose status it is.
        owners: the owner of each tenant id.
        entries: the entries of each tenant id that the server knows; one it does not know has none.
        left_out: whose quotas the server is not told, as all together are too long.
        now: for conditions that change.
    """
    held = entries.get(tenant.spec.tenant_id, 0)
    generation = tenant.metadata.generation
    before: list[Condition] = [one.manifest() for one in tenant.status.conditions or ()]
    after = before
    for claim in _claims(tenant, owners.get(tenant.spec.tenant_id), held, Key.of(tenant) in left_out):
        after = set_condition(
            after,
            claim.type,
            claim.status,
            reason=claim.reason,
            message=claim.message,
            observed_generation=generation,
            now=now,
        )
    said = (tenant.status.index_entries, tenant.status.observed_generation, before)
    if said == (held, generation, after):
        return None
    return {"indexEntries": held, "observedGeneration": generation, "conditions": after}


def _claims(tenant: CacheTenant, owner: CacheTenant | None, held: int, left_out: bool) -> tuple[_Claim, _Claim]:
    if len(tenant.spec.tenant_id) > LONGEST_NAME:
        why = f"the server takes nothing for a tenant id of more than {LONGEST_NAME} characters"
        return _ineffective(TENANT_ID_TOO_LONG, f"{why}; shorten spec.tenantID", why)
    if owner is not None and Key.of(owner) != Key.of(tenant):
        return _ineffective(
            DUPLICATE_TENANT_ID,
            f"tenant id {tenant.spec.tenant_id!r} belongs to CacheTenant {Key.of(owner)}; give this one another id",
            f"only the quota of CacheTenant {Key.of(owner)} counts",
        )
    if left_out:
        why = "all CachePolicies and quotas together are longer than the server takes"
        return _ineffective(DOCUMENT_FULL, f"{why}; delete or shorten some", why)
    ready = _Claim(READY, "True", OBSERVED, "the server's index was read")
    quota = quota_of(tenant)
    if quota is None:
        return ready, _Claim(QUOTA_EXCEEDED, "False", NO_QUOTA, "spec.quota.maxIndexEntries is not set")
    if held <= quota:
        return ready, _Claim(QUOTA_EXCEEDED, "False", WITHIN_BUDGET, f"at most {quota} entries are allowed")
    return ready, _Claim(
        QUOTA_EXCEEDED, "True", OVER_ENTRY_BUDGET, f"more than the allowed {quota} entries; the server evicts the rest"
    )


def _ineffective(reason: str, message: str, why: str) -> tuple[_Claim, _Claim]:
    return _Claim(READY, "False", reason, message), _Claim(QUOTA_EXCEEDED, "False", NOT_EFFECTIVE, why)
