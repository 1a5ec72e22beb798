"""The event recorder against a server that a test can make fail: aggregation, bounds, and what happens in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from inferencecache.kube.client import Client
from inferencecache.kube.errors import AlreadyExists, Forbidden, NotFound, ServerError, TransportError
from inferencecache.kube.events import DROPPED, EventRecorder, Limits, reference
from inferencecache.kube.kinds import ChildMeta, Deployment
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import running, until

QUICK = Limits(
    series_interval=timedelta(seconds=0.02),
    first_pause=timedelta(seconds=0.001),
    longest_pause=timedelta(seconds=0.002),
    flush=timedelta(seconds=0.2),
)


class Server:
    """Holds Events by name; `trouble` is raised by the next writes, in order; `hang` never answers."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.trouble: list[Exception] = []
        self.writes: list[str] = []
        self.hang = False

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._come("create")
        if manifest["metadata"]["name"] in self.events:
            raise AlreadyExists("exists", status=409)
        self.events[manifest["metadata"]["name"]] = manifest
        return manifest

    async def patch(self, resource: Any, key: Key, patch: Mapping[str, Any]) -> dict[str, Any]:
        await self._come("patch")
        if key.name not in self.events:
            raise NotFound("expired", status=404)
        self.events[key.name] |= patch
        return self.events[key.name]

    async def _come(self, what: str) -> None:
        self.writes.append(what)
        if self.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.trouble:
            raise self.trouble.pop(0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


def recorder(server: Server, limits: Limits = QUICK, clock: Clock | None = None) -> EventRecorder:
    client = cast(Client, server)
    if clock is None:
        return EventRecorder(client, "test-controller", instance="pod-0", limits=limits)
    return EventRecorder(
        client, "test-controller", instance="pod-0", limits=limits, now=clock.now, clock=clock.monotonic
    )


def deployment(name: str = "web") -> Deployment:
    return Deployment(metadata=ChildMeta(name=name, namespace="a", uid=f"uid-{name}", resource_version="7"))


def dropped(reason: str) -> float:
    return float(DROPPED.labels("test-controller", reason)._value.get())


async def test_writes_what_was_noted() -> None:
    server, clock = Server(), Clock()
    subject = recorder(server, clock=clock)
    subject.event(deployment(), "Warning", "ChildConflict", "Service a/web is not ours", related=deployment("other"))
    async with running(subject.run()):
        await until(lambda: server.events)
    (event,) = server.events.values()
    name = event["metadata"].pop("name")
    assert name.startswith("web.")
    int(name.removeprefix("web."), 16)
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "a"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "test-controller",
        "reportingInstance": "pod-0",
        "action": "ChildConflict",
        "reason": "ChildConflict",
        "regarding": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "namespace": "a",
            "name": "web",
            "uid": "uid-web",
            "resourceVersion": "7",
        },
        "related": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "namespace": "a",
            "name": "other",
            "uid": "uid-other",
            "resourceVersion": "7",
        },
        "note": "Service a/web is not ours",
        "type": "Warning",
    }


@pytest.mark.parametrize(
    "regarding",
    [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "a", "uid": "u", "labels": {}}},
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "a", "uid": "u"},
    ],
    ids=["manifest", "reference"],
)
def test_objects_may_be_given_as_manifest_or_reference(regarding: dict[str, Any]) -> None:
    assert reference(regarding) == {"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "p", "uid": "u"}


async def test_an_object_without_a_name_and_one_of_the_cluster_can_have_events() -> None:
    server = Server()
    subject = recorder(server)
    subject.event({"apiVersion": "v1", "kind": "Pod", "namespace": "a"}, "Normal", "NotWired", "no name yet")
    subject.event({"apiVersion": "v1", "kind": "Node", "name": "n"}, "Normal", "Seen", "of no namespace")
    async with running(subject.run()):
        await until(lambda: len(server.events) == 2)
    pod, node = server.events.values()
    assert pod["metadata"]["name"].startswith("pod.")
    assert node["metadata"]["namespace"] == "default"


@pytest.mark.parametrize(
    ("note", "kept"),
    [("x" * 1024, "x" * 1024), ("x" * 1025, "x" * 1021 + "…"), ("é" * 600, "é" * 510 + "…")],
    ids=["fits", "too long", "not in the middle of a character"],
)
async def test_cuts_a_note_to_what_the_server_takes(note: str, kept: str) -> None:
    server = Server()
    subject = recorder(server)
    subject.event(deployment(), "Normal", "Long", note)
    async with running(subject.run()):
        await until(lambda: server.events)
    (event,) = server.events.values()
    assert event["note"] == kept
    assert len(event["note"].encode()) <= 1024


async def test_the_same_words_become_a_series() -> None:
    server = Server()
    subject = recorder(server)
    async with running(subject.run()):
        subject.event(deployment(), "Warning", "Failed", "again")
        await until(lambda: server.events)
        (event,) = server.events.values()
        assert "series" not in event
        subject.event(deployment(), "Warning", "Failed", "again")
        await until(lambda: event.get("series"))
        assert event["series"]["count"] == 2
        for _ in range(98):
            subject.event(deployment(), "Warning", "Failed", "again")
        await until(lambda: event["series"]["count"] == 100)
    assert len(server.events) == 1
    assert len(server.writes) < 8


@pytest.mark.parametrize(
    "other",
    [
        {"note": "other words"},
        {"reason": "Other"},
        {"type": "Normal"},
        {"action": "Other"},
        {"regarding": deployment("other")},
        {"related": deployment("other")},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_other_words_are_another_event(other: dict[str, Any]) -> None:
    server = Server()
    subject = recorder(server)
    said: dict[str, Any] = {"regarding": deployment(), "type": "Warning", "reason": "Failed", "note": "words"}
    subject.event(**said)
    subject.event(**said | other)
    async with running(subject.run()):
        await until(lambda: len(server.events) == 2)


async def test_the_same_words_after_the_window_are_a_new_event_and_nothing_stays_behind() -> None:
    server, clock = Server(), Clock()
    subject = recorder(server, clock=clock)
    async with running(subject.run()):
        subject.event(deployment(), "Normal", "Done", "words")
        await until(lambda: len(server.events) == 1)
        clock.seconds = 361
        await until(lambda: not subject._open)
        subject.event(deployment(), "Normal", "Done", "words")
        await until(lambda: len(server.events) == 2)


async def test_a_series_outlives_its_expired_event() -> None:
    server = Server()
    subject = recorder(server)
    async with running(subject.run()):
        subject.event(deployment(), "Normal", "Done", "words")
        await until(lambda: server.events)
        server.events.clear()
        subject.event(deployment(), "Normal", "Done", "words")
        await until(lambda: server.events)
    (event,) = server.events.values()
    assert event["series"]["count"] == 2


async def test_a_failing_server_delays_but_loses_nothing() -> None:
    server = Server()
    server.trouble = [TransportError("refused"), ServerError("overloaded", status=503), TransportError("refused")]
    subject = recorder(server)
    for number in range(3):
        subject.event(deployment(), "Normal", "Done", f"number {number}")
    async with running(subject.run()):
        await until(lambda: len(server.events) == 3)


async def test_a_write_whose_answer_was_lost_is_not_written_twice() -> None:
    server = Server()
    subject = recorder(server)
    original = server.create

    async def create_and_lose(manifest: dict[str, Any]) -> dict[str, Any]:
        await original(manifest)
        server.create = original  # type: ignore[method-assign]
        raise TransportError("no answer")

    server.create = create_and_lose  # type: ignore[method-assign]
    subject.event(deployment(), "Normal", "Done", "words")
    async with running(subject.run()):
        await until(lambda: server.writes == ["create", "create"])
        await until(lambda: not subject._queue)
    assert len(server.events) == 1


async def test_what_cannot_be_written_is_counted_and_does_not_hold_up_the_rest() -> None:
    server = Server()
    refused, unreachable = dropped("refused"), dropped("unreachable")
    server.trouble = [Forbidden("may not create events", status=403)]
    subject = recorder(server, Limits(tries=3, first_pause=timedelta(seconds=0.001)))
    subject.event(deployment(), "Normal", "Done", "refused")
    subject.event(deployment(), "Normal", "Done", "welcome")
    async with running(subject.run()):
        await until(lambda: len(server.events) == 1)
        server.trouble = [TransportError("refused")] * 3
        subject.event(deployment(), "Normal", "Done", "in vain")
        await until(lambda: not server.trouble)
        subject.event(deployment(), "Normal", "Done", "later")
        await until(lambda: len(server.events) == 2)
    assert dropped("refused") - refused == 1
    assert dropped("unreachable") - unreachable == 1


async def test_the_queue_is_bounded_and_the_caller_never_waits() -> None:
    server = Server()
    server.hang = True
    before = dropped("queue_full")
    subject = recorder(server, Limits(queued=10, burst=1000, flush=timedelta(seconds=0.01)))
    async with running(subject.run()):
        for number in range(100):
            subject.event(deployment(), "Normal", "Done", f"number {number}")
    assert dropped("queue_full") - before == 90


async def test_an_object_that_talks_too_much_is_cut_short_and_others_are_not() -> None:
    server, clock = Server(), Clock()
    before = dropped("spam")
    subject = recorder(server, clock=clock)
    for number in range(40):
        subject.event(deployment("noisy"), "Normal", "Done", f"number {number}")
    subject.event(deployment("quiet"), "Normal", "Done", "hello")
    async with running(subject.run()):
        await until(lambda: len(server.events) == 26)
        assert dropped("spam") - before == 15
        clock.seconds += 301
        subject.event(deployment("noisy"), "Normal", "Done", "after a while")
        await until(lambda: len(server.events) == 27)


async def test_what_is_left_is_written_on_stop() -> None:
    server = Server()
    subject = recorder(server, Limits())
    async with running(subject.run()):
        await asyncio.sleep(0)  # it has begun, and found nothing to write
        subject.event(deployment(), "Normal", "Stopping", "last words")
        subject.event(deployment(), "Normal", "Stopping", "last words")
    (event,) = server.events.values()
    assert event["series"]["count"] == 2


async def test_stopping_takes_no_longer_than_its_deadline() -> None:
    server = Server()
    server.hang = True
    before = dropped("stopped")
    subject = recorder(server, Limits(flush=timedelta(seconds=0.05)))
    async with asyncio.timeout(60), running(subject.run()):
        subject.event(deployment(), "Normal", "Stopping", "last words")
        await until(lambda: server.writes)
    assert dropped("stopped") - before == 1
