"""Kubernetes Events, as far as they are about Pods and say what became of their admission.

An Event can be read through two APIs, which are views of the same objects; what both return counts once, by its UID.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from inferencecache.doctor.heard import instant
from inferencecache.kube.kinds import ObjectMeta, View
from inferencecache.kube.resource import Resource, ResourceType

INJECTED: Final = "InjectedByCacheBackend"
NOT_INJECTED: Final = "NotInjected"
NO_MATCH: Final = "NoMatchingCacheBackend"


class Reference(View, frozen=True):
    """The object that an Event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Series(View, frozen=True):
    last_observed_time: str | None = None


class CoreEvent(View, frozen=True):
    """`v1` Event."""

    resource: ClassVar[Resource] = ResourceType("", "v1", "Event", "events")
    metadata: ObjectMeta = ObjectMeta()
    reason: str = ""
    message: str = ""
    involved_object: Reference = Reference()
    series: _Series | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class NewEvent(View, frozen=True):
    """`events.k8s.io/v1` Event."""

    resource: ClassVar[Resource] = ResourceType("events.k8s.io", "v1", "Event", "events")
    metadata: ObjectMeta = ObjectMeta()
    reason: str = ""
    note: str = ""
    regarding: Reference = Reference()
    series: _Series | None = None
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class PodEvent:
    """What an Event says about a Pod; `at` is None where it has no readable time."""

    uid: str
    reason: str
    message: str
    pod: Reference
    at: datetime | None


def merged(core: Iterable[CoreEvent], new: Iterable[NewEvent]) -> tuple[PodEvent, ...]:
    """The Events about Pods, each once, in the order of their names."""
    found: dict[str, PodEvent] = {}
    for one in core:
        told = (_last(one.series), one.last_timestamp, one.event_time)
        _keep(found, one.metadata, one.reason, one.message, one.involved_object, told)
    for other in new:
        told = (_last(other.series), None, other.event_time)
        _keep(found, other.metadata, other.reason, other.note, other.regarding, told)
    return tuple(sorted(found.values(), key=lambda event: (event.pod.namespace, event.pod.name, event.uid)))


def _keep(
    found: dict[str, PodEvent],
    metadata: ObjectMeta,
    reason: str,
    message: str,
    pod: Reference,
    times: tuple[str | None, ...],
) -> None:
    if pod.kind != "Pod":
        return
    uid = metadata.uid or f"{metadata.namespace}/{metadata.name}"
    at = next((time for time in map(instant, (*times, metadata.creation_timestamp)) if time is not None), None)
    found.setdefault(uid, PodEvent(uid, reason, message, pod, at))


def _last(series: _Series | None) -> str | None:
    return series.last_observed_time if series is not None else None
