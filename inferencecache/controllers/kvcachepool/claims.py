"""What a pass has to say in a status: conditions, and the phase that follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from inferencecache.api import kvcache as k
from inferencecache.kube.conditions import Condition, ConditionStatus, find_condition, set_condition


class Claim(NamedTuple):
    """One condition."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


def with_claims(before: Iterable[k.PoolCondition], claims: Iterable[Claim], now: datetime) -> list[Condition]:
    """The conditions with these set; one that nobody speaks of keeps what it said (spec 10 §7.1)."""
    after: list[Condition] = [one.manifest() for one in before]
    for claim in claims:
        after = set_condition(after, claim.type, claim.status, reason=claim.reason, message=claim.message, now=now)
    return after


def phase(conditions: Sequence[Condition], axes: Sequence[str], *, deleting: bool) -> tuple[str, str]:
    """Phase and message (spec 10 §8); the message of a ready object is its kind's to say.

    Args:
        conditions: what the object says by now.
        axes: the condition types that move the phase, in order.
        deleting: whether the object is being deleted.
    """
    if deleting:
        return k.PHASE_DELETING, str((find_condition(conditions, k.RELEASABLE) or {}).get("message", ""))
    found = {axis: find_condition(conditions, axis) for axis in axes}
    for condition in found.values():
        # A store without tenants is a topology that somebody chose, not a fault.
        if condition and condition["status"] != "True" and condition["reason"] != k.MULTI_TENANCY_DISABLED:
            return k.PHASE_ERROR, condition["message"]
    for axis, condition in found.items():
        if condition is None:
            return k.PHASE_PROVISIONING, f"{axis} has not been observed yet"
    return k.PHASE_READY, ""
