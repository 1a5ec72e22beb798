"""From a verdict to the whole status, and from two statuses to the patch between them (spec 05 §2.3, §3.10).

The status of the pass before is the starting point, so that what other writers keep there (`indexParticipation`) and
what a path keeps on purpose (the latches) stay without being named. One merge patch carries the difference; a field
that goes is an explicit null, and without a difference there is no patch.
"""

from __future__ import annotations

from typing import Any, Final

from inferencecache.api import constants as c
from inferencecache.controllers.cachebackend.decide import external_endpoint, progressing
from inferencecache.controllers.cachebackend.engines import Matched
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Verdict, last_event_at
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.kube.conditions import Condition, remove_condition, set_condition, timestamp

_BASIC: Final = frozenset({c.READY, c.PROGRESSING, c.DEGRADED})
PUBLISHED: Final[dict[Path, frozenset[str]]] = {
    Path.MANAGED: _BASIC | {c.FUNCTIONAL_PROBE_OK, c.ENGINE_KERNELS_HEALTHY, c.T2_DEGRADED, c.ENGINE_COMPATIBILITY},
    Path.HOST_ONLY: _BASIC | {c.ENGINE_KERNELS_HEALTHY, c.ENGINE_COMPATIBILITY},
    Path.EVENTS_ONLY: _BASIC,
    Path.EXTERNAL: frozenset({c.READY, c.PROGRESSING}),
    Path.POOL: frozenset({c.READY, c.PROGRESSING}),
    Path.UNMANAGED: frozenset(),
}
"""The condition types that may stand on each path; the others are removed."""
_TYPES: Final = PUBLISHED[Path.MANAGED]


def next_status(
    facts: Facts,
    verdict: Verdict,
    matched: Matched,
    *,
    service_endpoint: str = "",
    server_instance: str | None = None,
) -> dict[str, Any]:
    """The status to publish, as JSON.

    Args:
        facts: what the verdict was reached on.
        verdict: what to say.
        matched: the engine Pods.
        service_endpoint: the address of the managed Service; empty if there is none that is ours.
        server_instance: the store's Pods from which a replacement counts from now on; None if that has not changed.
    """
    backend = facts.backend
    before = backend.status.manifest()
    # A failed apply must show: everything published speaks of the last generation that was applied (spec 05 §2.3).
    generation = before.get("observedGeneration") if facts.trouble else backend.metadata.generation
    endpoint = {
        Path.MANAGED: service_endpoint,
        Path.EXTERNAL: external_endpoint(backend),
        Path.POOL: facts.pool.endpoint if facts.pool is not None else "",
    }.get(facts.path, "")
    wanted = {
        **before,
        "endpoint": endpoint or None,
        "failOpen": backend.fail_open,
        "observedGeneration": generation or None,
        "matchedEnginePods": matched.count,
        "engineSelectorMessage": matched.message or None,
        "firstKVEventObservedAt": _first_event(facts),
        "firstAvailableAt": _first_available(facts, verdict),
        "conditions": _conditions(facts, verdict, generation) or None,
    }
    if facts.path is not Path.MANAGED:
        wanted["observedServerInstance"] = None
    elif server_instance is not None:
        wanted["observedServerInstance"] = server_instance
    return {field: value for field, value in wanted.items() if value is not None}


def _first_event(facts: Facts) -> str | None:
    status = facts.backend.status
    if facts.path in (Path.EXTERNAL, Path.POOL, Path.UNMANAGED):
        return status.first_kv_event_observed_at
    return status.first_kv_event_observed_at or last_event_at(facts.backend) or None


def _first_available(facts: Facts, verdict: Verdict) -> str | None:
    latched = facts.backend.status.first_available_at
    if facts.path is Path.UNMANAGED:
        return None
    if facts.path in (Path.EXTERNAL, Path.POOL):
        return latched
    if verdict.up and (latched is None or facts.leaves_server):
        return timestamp(facts.now)
    return latched


def _conditions(facts: Facts, verdict: Verdict, generation: int | None) -> list[Condition]:
    found: list[Condition] = [one.manifest() for one in facts.backend.status.conditions or ()]
    for kind in sorted(_TYPES - PUBLISHED[facts.path]):
        found = remove_condition(found, kind)
    claims: dict[str, Claim | None] = {
        c.READY: verdict.ready,
        c.DEGRADED: verdict.degraded,
        c.PROGRESSING: progressing(facts.path, verdict.ready) if verdict.ready else None,
    }
    for kind, claim in {**claims, **verdict.others}.items():
        if claim is None:
            found = found if kind in claims else remove_condition(found, kind)
        else:
            found = set_condition(
                found,
                kind,
                claim.status,
                reason=claim.reason,
                message=claim.message,
                observed_generation=generation or None,
                now=facts.now,
            )
    return found
