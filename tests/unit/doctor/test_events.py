"""Events of both APIs, each once, with their time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferencecache.doctor.events import CoreEvent, NewEvent, merged
from inferencecache.doctor.heard import heard, instant
from inferencecache.kube.resource import Key

POD = {"kind": "Pod", "namespace": "ns", "name": "engine", "uid": "p"}
FIRST, SECOND, THIRD, FOURTH = (f"2026-06-01T1{hour}:00:00Z" for hour in range(4))


def core(uid: str = "e", **fields: Any) -> CoreEvent:
    meta = {"uid": uid, "creationTimestamp": FIRST}
    event = {"metadata": meta, "reason": "R", "message": "m", "involvedObject": POD, **fields}
    return msgspec.convert(event, CoreEvent)


def new(uid: str = "e", **fields: Any) -> NewEvent:
    meta = {"uid": uid, "creationTimestamp": FIRST}
    return msgspec.convert({"metadata": meta, "reason": "R", "note": "m", "regarding": POD, **fields}, NewEvent)


def test_one_object_seen_through_both_apis_counts_once() -> None:
    (event,) = merged([core()], [new()])
    assert (event.uid, event.reason, event.message, event.pod.uid) == ("e", "R", "m", "p")
    assert len(merged([core("a")], [new("b")])) == 2


def test_either_api_alone_will_do() -> None:
    assert len(merged([core()], [])) == len(merged([], [new()])) == 1


@pytest.mark.parametrize(
    ("event", "at"),
    [
        (core(series={"lastObservedTime": FOURTH}, lastTimestamp=THIRD, eventTime=SECOND), FOURTH),
        (core(lastTimestamp=THIRD, eventTime=SECOND), THIRD),
        (core(lastTimestamp=None, eventTime=SECOND), SECOND),
        (core(series={}, lastTimestamp="yesterday"), FIRST),
        (core(), FIRST),
    ],
)
def test_the_time_of_an_event_is_when_it_was_last_seen(event: CoreEvent, at: str) -> None:
    (told,) = merged([event], [])
    assert told.at == instant(at)


def test_events_about_other_objects_are_none_of_ours() -> None:
    assert merged([core(involvedObject={**POD, "kind": "Node"})], [new(regarding={**POD, "kind": "Job"})]) == ()


def test_a_replica_was_heard_when_it_last_told_load_or_events() -> None:
    rows = [
        {"replicaId": "a", "tenant": "ns", "lastUpdate": SECOND, "lastEventAt": FIRST},
        {"replicaId": "b", "tenant": "ns", "lastUpdate": "0001-01-01T00:00:00Z", "lastEventAt": THIRD},
        {"replicaId": "c", "tenant": "ns"},
    ]
    assert heard({"replicas": rows}) == {Key("ns", "a"): instant(SECOND), Key("ns", "b"): instant(THIRD)}
    assert heard({"replicas": None}) == {}
    assert heard(None) is None
    assert heard({"error": "x"}) is None
