"""From a verdict to the whole status, and to the patch that makes the stored one that.

`usedBy` belongs to the pools; it is only read here. Members stay as they were while nobody can list them: their
condition says that they are old, where an empty list would say that there are none. Figures have a way to be absent,
and are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.quantity import binary
from inferencecache.controllers.kvcachebackend.decide import Capacity, Claim, Facts, Verdict
from inferencecache.kube.conditions import Condition, remove_condition, set_condition
from inferencecache.kube.status import status_patch


def observed(
    live: KVCacheBackend, facts: Facts, endpoints: Iterable[k.Endpoint], now: datetime
) -> dict[str, Any] | None:
    """The fields to write after a pass, or None if the status says all that already."""
    before, verdict = live.status.manifest(), Verdict(live, facts)
    phase, message = verdict.phase
    if live.metadata.deletion_timestamp is not None:
        deletable = verdict.claims[k.DELETABLE]
        phase, message = k.PHASE_DELETING, deletable.message if deletable else ""
    after = {
        **before,
        "phase": phase,
        "phaseMessage": message,
        "conditions": _conditions(live, verdict.claims, now),
        "endpoints": [{"name": one.name, "address": one.address} for one in endpoints],
        "capacity": _capacity(verdict.capacity),
    }
    if verdict.membership is not None and not verdict.membership.too_large:
        after["members"] = list(verdict.membership.rows)
    return status_patch(before, after) or None


def leaving(live: KVCacheBackend, waiting_for: str, now: datetime) -> dict[str, Any] | None:
    """The fields to write while the objects of a deleted backend go, or None if the status says that already."""
    before = live.status.manifest()
    free = Verdict(live, Facts()).claims[k.DELETABLE]
    after = {
        **before,
        "phase": k.PHASE_DELETING,
        "phaseMessage": f"waiting for {waiting_for} to be gone" if waiting_for else "",
        "conditions": _conditions(live, {k.DELETABLE: free}, now),
    }
    return status_patch(before, after) or None


def _conditions(live: KVCacheBackend, claims: dict[str, Claim | None], now: datetime) -> list[Condition]:
    found: list[Condition] = [one.manifest() for one in live.status.conditions]
    for kind, claim in claims.items():
        if claim is None:
            found = remove_condition(found, kind)
        else:
            found = set_condition(found, kind, claim.status, reason=claim.reason, message=claim.message, now=now)
    return found


def _capacity(capacity: Capacity) -> dict[str, str] | None:
    if capacity.total is None or capacity.used is None:
        return None
    return {"total": binary(capacity.total), "used": binary(capacity.used)}
