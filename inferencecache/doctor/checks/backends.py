"""Check 5: each CacheBackend along its axes, Ready, selector, events, probe and endpoint (spec 09 §1.3).

| backend                       | Ready           | selector | events | probe | endpoint |
|-------------------------------|-----------------|----------|--------|-------|----------|
| with a managed remote tier    | yes             | yes      | yes    | yes   | yes      |
| with an External one          | yes             | –        | –      | –     | yes      |
| without remote storage        | yes             | yes      | yes    | yes   | –        |
| of type SGLangHiCache, without| if it is there  | yes      | yes    | yes   | –        |

SGLang's own cache publishes no conditions by design, so their absence says nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.model import Condition
from inferencecache.doctor.checks.reads import api_failure, unread
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.heard import heard, instant
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.stamps import is_stamped
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key

STALE: Final = timedelta(minutes=2)
"""From this age on, the last event is no longer news."""

_CHECK: Final = Check.BACKENDS


def check_backends(seen: Observations) -> Iterator[Finding]:
    """CB001 to CB008 for every backend, in the order of their names."""
    if not seen.caches_installed:
        return
    yield from unread(_CHECK, CacheBackend.resource.kind, seen.backends)
    nearby: dict[str, list[Pod]] = {}
    for pod in seen.pods.items if seen.pods is not None else ():
        nearby.setdefault(pod.metadata.namespace, []).append(pod)
    context = _Context(seen, heard(seen.server.snapshot.document) if seen.server else None, nearby)
    for backend in sorted(seen.backends.items, key=Key.of):
        found = list(_complaints(backend, context))
        yield from found or [Finding("CB006", _CHECK, reference(backend), _all_well(backend, context))]


def reference(backend: CacheBackend) -> str:
    """The backend as reports name it."""
    return f"cachebackend/{Key.of(backend)}"


@dataclass(frozen=True, slots=True)
class _Context:
    """The observations, and when each sidecar was last heard; None where the snapshot was not read."""

    seen: Observations
    heard: Mapping[Key, datetime] | None
    nearby: Mapping[str, list[Pod]]

    @property
    def knows_pods(self) -> bool:
        """Whether Pods were read, or none was of interest."""
        return self.seen.pods is None or not self.seen.pods.failure

    def selected(self, backend: CacheBackend) -> list[Pod]:
        """The Pods that a backend selects, as far as Pods could be read."""
        return [pod for pod in self.nearby.get(backend.metadata.namespace, ()) if backend.selects(pod.metadata.labels)]

    def last_heard(self, backend: CacheBackend) -> datetime | None:
        """When any sidecar was last heard of the Pods that are wired to a backend or selected by it."""
        if not self.heard:
            return None
        stamped = [pod for pod in self.nearby.get(backend.metadata.namespace, ()) if is_stamped(pod, backend)]
        pods = [*self.selected(backend), *stamped]
        return max((self.heard[key] for pod in pods if (key := Key.of(pod)) in self.heard), default=None)


def _complaints(backend: CacheBackend, context: _Context) -> Iterator[Finding]:
    external = _external(backend)
    yield from _ready(backend)
    if not external:
        yield from _selector(backend, context)
        yield from _events(backend, context)
        yield from _probe(backend)
    yield from _endpoint(backend, context)


def _ready(backend: CacheBackend) -> Iterator[Finding]:
    ready = _condition(backend, c.READY)
    if ready is None:
        if not _unconditional(backend):
            yield Finding(
                "CB001",
                _CHECK,
                reference(backend),
                "has no Ready condition: the controller has not come to it, or does not run; check its Deployment "
                "and its log",
            )
    elif ready.status != "True":
        yield Finding("CB001", _CHECK, reference(backend), f"not Ready: {_told(ready)}")


def _selector(backend: CacheBackend, context: _Context) -> Iterator[Finding]:
    if not backend.selector:
        return
    matched = backend.status.matched_engine_pods
    if matched is None:
        pods = context.seen.pods
        if pods is None or pods.failure:
            why = pods.failure if pods is not None else "they were not asked for"
            yield api_failure(_CHECK, reference(backend), f"the Pods behind its selector, so CB002 is open: {why}")
            return
        matched = len(context.selected(backend))
    if matched == 0:
        pairs = ", ".join(f"{key}={value}" for key, value in sorted(backend.selector.items()))
        yield Finding(
            "CB002",
            _CHECK,
            reference(backend),
            f"LikelySelectorMismatch: no Pod has {pairs}; the engine is missing or scaled to zero, or the labels of "
            "its Pod template are others",
        )


def _events(backend: CacheBackend, context: _Context) -> Iterator[Finding]:
    taken = backend.status.index_participation
    last = taken.last_event_at if taken is not None else None
    if not last and not backend.status.first_kv_event_observed_at:
        yield Finding("CB003", _CHECK, reference(backend), _silent(backend, context))
        return
    at = instant(last)
    if at is None or context.seen.now - at <= STALE:
        return
    told = f"no KV event for {_age(context.seen.now - at)} (last at {last})"
    if context.heard is None or not context.knows_pods:
        yield Finding(
            "CB008",
            _CHECK,
            reference(backend),
            f"{told}: an idle engine stores nothing new. Whether its sidecar still reports would be in the server's "
            "snapshot, which was not read; until it is, look at the sidecar's log",
        )
        return
    heard_at = context.last_heard(backend)
    if heard_at is not None and context.seen.now - heard_at <= STALE:
        yield Finding(
            "CB008",
            _CHECK,
            reference(backend),
            f"{told}, and a sidecar was heard {_age(context.seen.now - heard_at)} ago: the engines are idle",
        )
        return
    yield Finding(
        "CB004",
        _CHECK,
        reference(backend),
        f"EngineStale: {told}, and no sidecar of this backend reports load either; check the "
        "kvevent-subscriber containers and their way to the server's port 9090",
    )


def _silent(backend: CacheBackend, context: _Context) -> str:
    if not backend.model_id:
        return (
            "EngineNotReportingState: no KV event has ever been seen, and no sidecar is added as long as "
            "spec.observation.modelID is empty"
        )
    heard_at = context.last_heard(backend)
    if heard_at is not None and context.seen.now - heard_at <= STALE:
        return (
            "EngineNotReportingState: no KV event has ever been seen, though a sidecar reports load: no prompt was "
            "served yet, or the engine publishes none (--kv-events-config with topic kv-events)"
        )
    return (
        "EngineNotReportingState: no KV event has ever been seen; the sidecar may be absent "
        "(--kvevent-subscriber-image), the engine may publish none (--kv-events-config with topic kv-events), or no "
        "prompt was served yet"
    )


def _probe(backend: CacheBackend) -> Iterator[Finding]:
    probe = _condition(backend, c.FUNCTIONAL_PROBE_OK)
    if probe is not None and probe.status != "True":
        yield Finding("CB007", _CHECK, reference(backend), f"the functional probe fails: {_told(probe)}")


def _endpoint(backend: CacheBackend, context: _Context) -> Iterator[Finding]:
    if backend.spec.remote_storage is None:
        return
    endpoint = backend.status.endpoint
    if not endpoint:
        yield Finding(
            "CB005",
            _CHECK,
            reference(backend),
            "status.endpoint is empty: engines that start now stay unwired; see the Ready condition for the reason",
        )
    elif problem := context.seen.dials.get(endpoint, ""):
        yield Finding(
            "CB005",
            _CHECK,
            reference(backend),
            f"{endpoint} cannot be reached from here: {problem}. Check the store; addresses of Services mean "
            "something only inside the cluster, elsewhere use --config-only",
        )


def _all_well(backend: CacheBackend, context: _Context) -> str:
    parts = []
    if _external(backend):
        parts.append("External: selector, events and probe are not applicable")
    else:
        taken = backend.status.index_participation
        parts.append(f"{taken.prefix_count if taken is not None else 0} prefixes in the index")
        if not backend.selector:
            parts.append("no engineSelector, so no Pod is looked for")
    if backend.spec.remote_storage is None:
        parts.append("no remote storage, so an endpoint is not applicable")
    else:
        dialled = backend.status.endpoint in context.seen.dials
        parts.append(f"endpoint {backend.status.endpoint} {'reachable' if dialled else 'present'}")
    if _condition(backend, c.READY) is None:
        parts.append("this type publishes no Ready condition")
    return "; ".join(parts)


def _external(backend: CacheBackend) -> bool:
    return backend.spec.remote_storage is not None and backend.spec.remote_storage.external


def _unconditional(backend: CacheBackend) -> bool:
    """Whether it is meant to have no conditions: SGLang's own cache, unless it is there for its events only."""
    host_only = backend.spec.remote_storage is None and not backend.events_only
    return host_only and backend.cache_type == c.TYPE_HICACHE


def _condition(backend: CacheBackend, kind: str) -> Condition | None:
    return next((one for one in backend.status.conditions or () if one.type == kind), None)


def _told(condition: Condition) -> str:
    return f"{condition.status}, {condition.reason}: {condition.message}"


def _age(elapsed: timedelta) -> str:
    seconds = max(0, int(elapsed.total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
