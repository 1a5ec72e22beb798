"""From what a pass saw and did to its verdict: Ready, Degraded, and when to look again (spec 05 §3.1–§3.3, §3.9).

A verdict starts with what the path itself says (a rollout, an address, or simply being there) and then goes through
gates, in order. A gate may take readiness away and say why; none may give it back. A new rule about readiness is one
more function in `GATES`.

Pure: the time is an argument, and everything a gate may ask is in `Facts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.endpoint import EndpointError, parse_endpoint
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.crash_loop import engine_compatibility
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Rollout, Verdict, condition, sooner
from inferencecache.controllers.cachebackend.functional_probe import functional_probe_gate
from inferencecache.controllers.cachebackend.kernels import kernel_gate
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.controllers.cachebackend.second_tier import second_tier

MANAGED_LOOK_AGAIN: Final = timedelta(seconds=30)
"""Restarts inside a Pod change no watched object, so managed backends are looked at again in any case."""


Gate = Callable[[Facts, Verdict], Verdict]


def decide(facts: Facts) -> Verdict:
    """The verdict on a backend."""
    verdict = _BASE[facts.path](facts)
    if verdict.ready is not None:
        for paths, gate in GATES:
            if facts.path in paths:
                verdict = gate(facts, verdict)
    if facts.path is Path.MANAGED:
        verdict = replace(verdict, look_again=sooner(verdict.look_again, MANAGED_LOOK_AGAIN))
    return verdict


# ------------------------------------------------------------------------------------------------ what the paths say


def _managed(facts: Facts) -> Verdict:
    ready = _rolled_out(facts.rollout)
    stuck = ready.reason == r.REPLICAS_UNAVAILABLE
    degraded = Claim("True", ready.reason, ready.message) if stuck else _not_degraded()
    return Verdict(ready, degraded, up=ready.true)


def _rolled_out(rollout: Rollout | None) -> Claim:
    """The rollout table (spec 05 §3.2)."""
    if rollout is None:
        return Claim("False", r.ROLLOUT_IN_PROGRESS, "the cache server's workload does not exist yet")
    if rollout.wanted == 0:
        return Claim("False", r.SCALED_TO_ZERO, "the cache server is scaled to zero")
    if not rollout.fresh or rollout.updated < rollout.wanted:
        return Claim("False", r.ROLLOUT_IN_PROGRESS, f"{rollout.updated}/{rollout.wanted} replicas are up to date")
    if rollout.available < rollout.wanted:
        return Claim("False", r.REPLICAS_UNAVAILABLE, f"{rollout.available}/{rollout.wanted} replicas are available")
    return Claim("True", r.BACKEND_READY, f"{rollout.available}/{rollout.wanted} replicas are available")


def _host_only(facts: Facts) -> Verdict:
    return Verdict(Claim("True", r.HOST_ONLY_ACTIVE, "engines cache in host memory"), _not_degraded(), up=True)


def _events_only(facts: Facts) -> Verdict:
    return Verdict(Claim("True", r.EVENTS_ONLY_ACTIVE, "engines are wired for routing"), _not_degraded(), up=True)


def _external(facts: Facts) -> Verdict:
    """The address table (spec 05 §2.9)."""
    storage = facts.backend.spec.remote_storage
    address = external_endpoint(facts.backend)
    if storage is None or not address:
        return Verdict(
            Claim("False", r.EXTERNAL_ENDPOINT_MISSING, "spec.remoteStorage.endpoint is empty: set host:port")
        )
    try:
        parse_endpoint(storage.provider, address)
    except EndpointError as error:
        return Verdict(Claim("False", r.EXTERNAL_ENDPOINT_INVALID, f"spec.remoteStorage.endpoint: {error}"))
    return Verdict(Claim("True", r.EXTERNAL_ENDPOINT_ACCEPTED, f"engines use {address}; it is not probed"))


def _pool(facts: Facts) -> Verdict:
    return Verdict(facts.pool.ready if facts.pool is not None else None)


def _unmanaged(facts: Facts) -> Verdict:
    return Verdict()


def _not_degraded() -> Claim:
    return Claim("False", r.NOT_DEGRADED, "nothing is wrong with the backend")


_BASE: Final[dict[Path, Callable[[Facts], Verdict]]] = {
    Path.MANAGED: _managed,
    Path.EXTERNAL: _external,
    Path.POOL: _pool,
    Path.EVENTS_ONLY: _events_only,
    Path.HOST_ONLY: _host_only,
    Path.UNMANAGED: _unmanaged,
}


# --------------------------------------------------------------------------------------------------------- the gates


def first_event_gate(facts: Facts, verdict: Verdict) -> Verdict:
    """Serving means that engines report: wait for the first KV event, complain when it stays away (spec 05 §3.3)."""
    backend = facts.backend
    opted_out = backend.metadata.annotations.get(c.ANNOTATION_REQUIRE_KV_EVENTS) == "false"
    if opted_out or verdict.ready is None or not verdict.ready.true:
        return verdict
    if facts.event_seen:
        observed = Claim("True", r.KV_EVENTS_OBSERVED, f"{_serving(facts)} and engines report KV events")
        return replace(verdict, ready=observed, degraded=_not_degraded())
    timeout = backend.first_event_timeout
    # Degraded keeps the reason while a failed kernel check speaks through Ready.
    published = (condition(backend, c.READY), condition(backend, c.DEGRADED))
    late_before = any(one is not None and one.reason == r.NO_KV_EVENTS_OBSERVED for one in published)
    sticky = late_before and not facts.leaves_server
    left = timeout - (facts.now - facts.available_since)
    if sticky or left <= timedelta():
        text = (
            f"{_serving(facts)}, but no KV event was seen within spec.observation.firstEventTimeout; "
            "check that engine Pods are wired and publish KV events"
        )
        late = Claim("False", r.NO_KV_EVENTS_OBSERVED, text)
        return replace(verdict, ready=late, degraded=replace(late, status="True"))
    waiting = Claim("False", r.AWAITING_FIRST_KV_EVENT, f"{_serving(facts)}; waiting for the first KV event")
    return replace(verdict, ready=waiting, degraded=_not_degraded(), look_again=left)


def children_gate(facts: Facts, verdict: Verdict) -> Verdict:
    """A backend whose children are not as it wants them is not ready, whatever still runs (decisions F1, F16)."""
    if facts.trouble is None:
        return verdict
    return replace(verdict, ready=Claim("False", facts.trouble.reason, facts.trouble.message))


GATES: Final[tuple[tuple[frozenset[Path], Gate], ...]] = (
    (frozenset({Path.MANAGED, Path.HOST_ONLY, Path.EVENTS_ONLY}), first_event_gate),
    (frozenset({Path.MANAGED}), functional_probe_gate),
    (frozenset({Path.MANAGED, Path.HOST_ONLY}), kernel_gate),
    (frozenset({Path.MANAGED, Path.POOL}), children_gate),
    (frozenset({Path.MANAGED}), second_tier),
    (frozenset({Path.MANAGED, Path.HOST_ONLY}), engine_compatibility),
)
"""What may take readiness away or add a condition of its own, on which paths; the last to act gives the reason."""


def _serving(facts: Facts) -> str:
    return "the backend is wired" if facts.path is Path.EVENTS_ONLY else "the workload is Available"


# -------------------------------------------------------------------------------------------------------- derivations


def progressing(path: Path, ready: Claim) -> Claim:
    """Progressing follows from Ready (spec 05 §3.9)."""
    if path in (Path.EXTERNAL, Path.POOL):
        return replace(ready, status="False")
    if ready.true:
        return Claim("False", r.SYNCED, "the backend is as its spec wants it")
    if ready.reason in (r.ROLLOUT_IN_PROGRESS, r.AWAITING_FIRST_KV_EVENT):
        return replace(ready, status="True")
    if ready.reason == r.REPLICAS_UNAVAILABLE:
        return replace(ready, status="False", reason=r.DEGRADED)
    return replace(ready, status="False")


def external_endpoint(backend: CacheBackend) -> str:
    """The address of an external store, without blanks around it."""
    storage = backend.spec.remote_storage
    return ((storage and storage.endpoint) or "").strip()
