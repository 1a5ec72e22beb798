"""From what a pass saw and did to its verdict: Ready, Degraded, and when to look again (spec 05 §3.1–§3.3, §3.9).

A verdict starts with what the path itself says (a rollout, an address, or simply being there) and then goes through
gates, in order. A gate may take readiness away and say why; none may give it back. A new rule about readiness is one
more function in `GATES`.

Pure: the time is an argument, and everything a gate may ask is in `Facts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.endpoint import EndpointError, parse_endpoint
from inferencecache.api.model import Condition
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.kube.conditions import ConditionStatus

MANAGED_LOOK_AGAIN: Final = timedelta(seconds=30)
"""Restarts inside a Pod change no watched object, so managed backends are looked at again in any case."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One condition without its bookkeeping."""

    status: ConditionStatus
    reason: str
    message: str

    @property
    def true(self) -> bool:
        """Whether it is `True`."""
        return self.status == "True"


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far the managed workload is; `fresh` means that its counters speak of its present generation."""

    wanted: int
    updated: int
    available: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a child could not be brought in line."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a verdict rests on.

    Attributes:
        backend: with the status of the pass before.
        path: the path it takes.
        now: the time of this pass.
        rollout: of the managed workload; None if there is none that is ours.
        trouble: what went wrong with the children, if anything did.
    """

    backend: CacheBackend
    path: Path
    now: datetime
    rollout: Rollout | None = None
    trouble: Trouble | None = None

    @property
    def leaves_server(self) -> bool:
        """This pass is the first after a path with a server: the first-event clock starts anew (spec 05 §2.10)."""
        status = self.backend.status
        serverless = self.path in (Path.HOST_ONLY, Path.EVENTS_ONLY)
        return serverless and bool(status.endpoint or status.observed_server_instance)

    @property
    def available_since(self) -> datetime:
        """From when the wait for the first event counts."""
        latched = instant(self.backend.status.first_available_at)
        return self.now if latched is None or self.leaves_server else latched

    @property
    def event_seen(self) -> bool:
        """Whether any KV event was ever seen."""
        status = self.backend.status
        return bool(status.first_kv_event_observed_at or last_event_at(self.backend))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to publish. `ready` None: the path has no conditions; `degraded` None: the path does not tell it.

    `up` says that the path's own verdict, before any gate, was that it serves; `first_available_at` is latched by it.
    """

    ready: Claim | None = None
    degraded: Claim | None = None
    up: bool = False
    look_again: timedelta | None = None


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


def _unmanaged(facts: Facts) -> Verdict:
    return Verdict()


def _not_degraded() -> Claim:
    return Claim("False", r.NOT_DEGRADED, "nothing is wrong with the backend")


_BASE: Final[dict[Path, Callable[[Facts], Verdict]]] = {
    Path.MANAGED: _managed,
    Path.EXTERNAL: _external,
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
    published = condition(backend, c.READY)
    sticky = published is not None and published.reason == r.NO_KV_EVENTS_OBSERVED and not facts.leaves_server
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
    (frozenset({Path.MANAGED}), children_gate),
)
"""What may take readiness away, on which paths; the last to act gives the reason."""


def _serving(facts: Facts) -> str:
    return "the backend is wired" if facts.path is Path.EVENTS_ONLY else "the workload is Available"


# -------------------------------------------------------------------------------------------------------- derivations


def progressing(path: Path, ready: Claim) -> Claim:
    """Progressing follows from Ready (spec 05 §3.9)."""
    if path is Path.EXTERNAL:
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


def condition(backend: CacheBackend, kind: str) -> Condition | None:
    """A published condition."""
    return next((one for one in backend.status.conditions or () if one.type == kind), None)


def last_event_at(backend: CacheBackend) -> str:
    """When an engine last reported an event, as published; empty for never."""
    taken = backend.status.index_participation
    return (taken and taken.last_event_at) or ""


def instant(text: str | None) -> datetime | None:
    """A stored timestamp as a time; None if absent or unreadable."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def sooner(*delays: timedelta | None) -> timedelta | None:
    """The shortest of the given delays; None if there is none."""
    return min((one for one in delays if one is not None), default=None)
