"""Which Events the step from one status to the next deserves (spec 05 §1.7).

Only steps are told, never states, and only after the status was written: a write that fails is tried again, and its
step is then told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.api import constants as c
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.kube.conditions import find_condition
from inferencecache.kube.events import EventType


@dataclass(frozen=True, slots=True)
class Told:
    """One Event about the backend."""

    type: EventType
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the rows compare of a status."""

    ready: str
    ready_reason: str
    ready_message: str
    degraded: str
    degraded_reason: str
    degraded_message: str
    crash_looping: bool
    compatibility_message: str
    fail_open: bool
    first_event: bool

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> _Moment:
        conditions = status.get("conditions") or ()
        ready = find_condition(conditions, c.READY) or {}
        degraded = find_condition(conditions, c.DEGRADED) or {}
        compatibility = find_condition(conditions, c.ENGINE_COMPATIBILITY) or {}
        return cls(
            ready=ready.get("status", ""),
            ready_reason=ready.get("reason", ""),
            ready_message=ready.get("message", ""),
            degraded=degraded.get("status", ""),
            degraded_reason=degraded.get("reason", ""),
            degraded_message=degraded.get("message", ""),
            crash_looping=compatibility.get("status") == "False",
            compatibility_message=compatibility.get("message", ""),
            fail_open=status.get("failOpen") is not False,
            first_event=bool(status.get("firstKVEventObservedAt")),
        )


@dataclass(frozen=True, slots=True)
class _Row:
    type: EventType
    reason: str
    step: Callable[[_Moment, _Moment], bool]
    note: Callable[[_Moment], str]


def _enters(reason: str) -> Callable[[_Moment, _Moment], bool]:
    return lambda a, b: a.ready_reason != reason and b.ready_reason == reason


_ROWS: Final = (
    _Row(
        "Warning",
        r.BACKEND_DEGRADED,
        lambda a, b: a.degraded != "True" and b.degraded == "True" and b.degraded_reason != r.NO_KV_EVENTS_OBSERVED,
        lambda b: f"the backend is degraded: {b.degraded_message}",
    ),
    _Row(
        "Normal",
        r.BACKEND_RECOVERED,
        lambda a, b: a.degraded == "True" and b.ready == "True" and a.degraded_reason != r.NO_KV_EVENTS_OBSERVED,
        lambda b: f"the backend is ready again: {b.ready_message}",
    ),
    _Row("Normal", r.AWAITING_FIRST_KV_EVENT, _enters(r.AWAITING_FIRST_KV_EVENT), lambda b: b.ready_message),
    _Row(
        "Normal",
        r.KV_EVENTS_OBSERVED,
        lambda a, b: not a.first_event and b.first_event,
        lambda b: "the first KV event of an engine was seen",
    ),
    # By Degraded: a failed kernel check may speak through Ready meanwhile.
    _Row(
        "Warning",
        r.NO_KV_EVENTS_OBSERVED,
        lambda a, b: a.degraded_reason != r.NO_KV_EVENTS_OBSERVED and b.degraded_reason == r.NO_KV_EVENTS_OBSERVED,
        lambda b: b.degraded_message,
    ),
    _Row("Warning", r.CHILD_CONFLICT, _enters(r.CHILD_CONFLICT), lambda b: b.ready_message),
    _Row("Warning", r.APPLY_FAILED, _enters(r.APPLY_FAILED), lambda b: b.ready_message),
    _Row(
        "Warning",
        r.INJECTED_ENGINE_CRASH_LOOPING,
        lambda a, b: not a.crash_looping and b.crash_looping,
        lambda b: b.compatibility_message,
    ),
    _Row(
        "Warning",
        r.FAIL_CLOSED_ENABLED,
        lambda a, b: a.fail_open and not b.fail_open,
        lambda b: "engines fail when the cache is unreachable: spec.integration.failOpen is false",
    ),
    _Row(
        "Normal",
        r.FAIL_OPEN_RESTORED,
        lambda a, b: not a.fail_open and b.fail_open,
        lambda b: "engines fall back to local prefill when the cache is unreachable",
    ),
)


def narrate(before: Mapping[str, Any], after: Mapping[str, Any], *, newly_unmatched: bool = False) -> Iterable[Told]:
    """The Events for the step from one status to the next, both as JSON."""
    a, b = _Moment.of(before), _Moment.of(after)
    for row in _ROWS:
        if row.step(a, b):
            yield Told(row.type, row.reason, row.note(b))
    if newly_unmatched:
        yield Told("Normal", r.ENGINE_SELECTOR_UNMATCHED, after.get("engineSelectorMessage", ""))
