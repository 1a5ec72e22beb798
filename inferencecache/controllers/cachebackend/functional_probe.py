"""The functional-probe gate: readiness means that a round trip through the cache plane works (spec 05 §3.4).

Calls are made elsewhere and in their own time; the gate judges the last outcome. A stage that failed stays failed until
a later answer says otherwise: neither a server that cannot be reached nor a restart of the controller washes it off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Verdict, condition
from inferencecache.controllers.cachebackend.outcomes import FAILED, OK, SKIPPED, STAGES, Answered, Unanswered
from inferencecache.controllers.cachebackend.text import shortened

REASONS: Final = {"ingest": r.PROBE_INGEST_FAILED, "routing": r.PROBE_ROUTING_FAILED, "t2": r.PROBE_T2_FAILED}

_DEFAULT_TEXT: Final = {
    "ingest": "the cache server did not take in a reported block",
    "routing": "the cache server did not find a block that was reported to it",
    "t2": "the store of the remote tier did not give back what was put into it",
}


def bypassed(backend: CacheBackend) -> bool:
    """Whether the user wants no probe of this backend: only the exact text counts."""
    return backend.metadata.annotations.get(c.ANNOTATION_SKIP_FUNCTIONAL_PROBE) == "true"


def functional_probe_gate(facts: Facts, verdict: Verdict) -> Verdict:
    """Judge the last outcome."""
    if not facts.probing:
        return verdict.saying(c.FUNCTIONAL_PROBE_OK, None)
    if facts.trouble is not None or not verdict.serving:
        return verdict
    if bypassed(facts.backend):
        text = f"not probed: {c.ANNOTATION_SKIP_FUNCTIONAL_PROBE} is set"
        return verdict.saying(c.FUNCTIONAL_PROBE_OK, Claim("True", r.PROBE_BYPASSED, text))
    verdict = replace(verdict, probe=True)
    if isinstance(facts.probed, Answered):
        claim = judged(facts.probed)
        verdict = verdict.saying(c.FUNCTIONAL_PROBE_OK, claim)
        return verdict if claim.true else _held_back(verdict, claim)
    stored = condition(facts.backend, c.FUNCTIONAL_PROBE_OK)
    if stored is not None and stored.status == "False":
        return _held_back(verdict, Claim("False", stored.reason, stored.message))
    if isinstance(facts.probed, Unanswered):
        text = shortened(f"the cache server could not be asked: {facts.probed.why}")
        return verdict.saying(c.FUNCTIONAL_PROBE_OK, Claim("Unknown", r.PROBE_ERROR, text))
    return verdict


def judged(answer: Answered) -> Claim:
    """The condition that an answer makes."""
    for stage, result in zip(STAGES, answer.results, strict=True):
        if result == FAILED:
            return Claim("False", REASONS[stage], shortened(answer.said(stage) or _DEFAULT_TEXT[stage]))
    if all(result in (OK, SKIPPED) for result in answer.results):
        return Claim("True", r.PROBE_OK, "a round trip through the cache server works")
    found = ", ".join(f"{stage}={result!r}" for stage, result in zip(STAGES, answer.results, strict=True))
    return Claim("False", r.PROBE_ERROR, shortened(f"the cache server's answer cannot be understood: {found}"))


def _held_back(verdict: Verdict, claim: Claim) -> Verdict:
    lead = "the functional probe failed: "
    text = claim.message if claim.message.startswith(lead) else lead + claim.message
    return replace(verdict, ready=Claim("False", claim.reason, text))
