"""T2Degraded: whether the remote tier has ever served anything it was asked for (spec 05 §3.6).

Advice only: it says nothing about readiness, because engines do without the tier.
"""

from __future__ import annotations

from inferencecache.api import constants as c
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Verdict


def second_tier(facts: Facts, verdict: Verdict) -> Verdict:
    """Say how the tier does; nothing before it was asked for the first time."""
    taken = facts.backend.status.index_participation
    return verdict.saying(c.T2_DEGRADED, _judged(taken.t2_hit_rate if taken is not None else None))


def _judged(hit_rate: str | None) -> Claim | None:
    if not hit_rate:
        return None
    if hit_rate == "0":
        text = (
            "engines asked the remote tier and it never had what they wanted: check that engines and store run "
            "matching versions, that they reach one another, and that the store is large enough"
        )
        return Claim("True", r.T2_ZERO_HIT_RATE, text)
    # Without the number: every change of it would be a write.
    return Claim("False", r.T2_SERVING, "the remote tier serves what engines ask it for")
