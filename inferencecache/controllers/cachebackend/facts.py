"""What a pass knows when it decides, and the verdict it forms: plain values that gates hand to one another.

A verdict starts with what the path itself says and is then passed from gate to gate. Whatever a gate may ask is in
`Facts`; what it has to say goes into a new `Verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.model import Condition
from inferencecache.controllers.cachebackend.outcomes import Outcome
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.kube.conditions import ConditionStatus
from inferencecache.kube.kinds import Pod


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
class PoolOffer:
    """What engines get of a KV cache pool: an address, empty for none, and whether all is well with it."""

    endpoint: str
    ready: Claim


@dataclass(frozen=True, slots=True)
class Facts:
    """What a verdict rests on.

    Attributes:
        backend: with the status of the pass before.
        path: the path it takes.
        now: the time of this pass.
        rollout: of the managed workload; None if there is none that is ours.
        trouble: what went wrong with the children, if anything did.
        pool: what the pool offers that the backend is on; None on all other paths.
        injected: the Pods that admission wired to this backend.
        engine_container: the name that the runtime adapter looks for among a Pod's containers.
        probing: whether there is a functional probe at all.
        probed: what the last functional probe of this process came to; None before the first.
    """

    backend: CacheBackend
    path: Path
    now: datetime
    rollout: Rollout | None = None
    trouble: Trouble | None = None
    pool: PoolOffer | None = None
    injected: tuple[Pod, ...] = ()
    engine_container: str = ""
    probing: bool = False
    probed: Outcome | None = None

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
    `probe`: readiness rests on the functional probe, so it should be called now and then.
    `others` are the conditions beside these by type: None takes one away, and one that is not named stays as it is.
    """

    ready: Claim | None = None
    degraded: Claim | None = None
    up: bool = False
    probe: bool = False
    look_again: timedelta | None = None
    others: Mapping[str, Claim | None] = field(default_factory=dict)

    def saying(self, kind: str, claim: Claim | None) -> Verdict:
        """This verdict with one more condition."""
        return replace(self, others={**self.others, kind: claim})

    @property
    def serving(self) -> bool:
        """Whether nothing has spoken against readiness so far."""
        return self.ready is not None and self.ready.true


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
