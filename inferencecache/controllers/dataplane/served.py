"""The conditions of an object that is pushed to the server: `Accepted`, whether it can be used as it is written, and
`Ready`, whether the server was told of its present state.

A push that fails takes nothing back from an object of which the server was told before: a short outage of the server,
which most likely still has it, should not turn every object of the cluster not ready.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from inferencecache.api.model import Condition
from inferencecache.kube.conditions import Condition as Told
from inferencecache.kube.conditions import ConditionStatus, find_condition, is_true, set_condition

ACCEPTED: Final = "Accepted"
READY: Final = "Ready"

ACCEPTED_REASON: Final = "Accepted"
NOT_ACCEPTED: Final = "NotAccepted"
SERVED: Final = "Served"
PUSH_FAILED: Final = "PushFailed"
DOCUMENT_FULL: Final = "DocumentFull"


class Claim(NamedTuple):
    """What a condition says, apart from its type."""

    status: ConditionStatus
    reason: str
    message: str


def ready(*, failure: str, told_before: bool, message: str) -> Claim | None:
    """`Ready` of an object that is in the document; None: leave what stands.

    Args:
        failure: why the push failed; empty if the server acknowledged it.
        told_before: the server acknowledged the object's present state once.
        message: what to say of an object that is served.
    """
    if not failure:
        return Claim("True", SERVED, message)
    return None if told_before else Claim("False", PUSH_FAILED, f"the server could not be told: {failure}")


def with_claims(
    before: Iterable[Condition] | None, accepted: Claim, readiness: Claim | None, generation: int, now: datetime
) -> list[Told]:
    """The conditions with both claims in them."""
    after: list[Told] = [one.manifest() for one in before or ()]
    for kind, claim in ((ACCEPTED, accepted), (READY, readiness)):
        if claim is not None:
            after = set_condition(
                after,
                kind,
                claim.status,
                reason=claim.reason,
                message=claim.message,
                observed_generation=generation or None,
                now=now,
            )
    return after


def was_served(conditions: Iterable[Condition] | None, generation: int) -> bool:
    """Whether `Ready` says that the server was told of this generation."""
    told = [one.manifest() for one in conditions or ()]
    standing = find_condition(told, READY)
    return is_true(told, READY) and standing is not None and standing.get("observedGeneration") == generation
