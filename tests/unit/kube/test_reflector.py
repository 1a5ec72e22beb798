"""The reflector against scripted servers: where it resumes, when it lists again, and what it tells its sink."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from inferencecache.kube.errors import DecodeError, Gone, NotFound, ServerError, TransportError
from inferencecache.kube.reflector import UNDECODABLE, Backoff, Reflector, Timing
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import QUICK, SILENCE, Scripted, Thing, bookmark, frame, page, raw, running, until


class Notes:
    """A sink that writes down what it hears."""

    def __init__(self) -> None:
        self.content: dict[str, int] = {}
        self.said: list[str] = []

    def put(self, obj: Thing) -> None:
        if obj.size == 13:
            raise DecodeError("cannot be held")
        self.content[obj.metadata.name] = int(obj.metadata.resource_version)
        self.said.append(f"put {obj.metadata.name}@{obj.metadata.resource_version}")

    def remove(self, key: Key) -> None:
        self.content.pop(key.name, None)
        self.said.append(f"remove {key.name}")

    def known(self) -> list[Key]:
        return [Key("a", name) for name in self.content]

    def listed(self) -> None:
        self.said.append("listed")

    def absent(self) -> None:
        self.said.append("absent")


def gone(message: str = "too old resource version") -> dict[str, Any]:
    return {"kind": "Status", "code": 410, "reason": "Expired", "message": message}


def reflector(server: Scripted, sink: Notes, **options: Any) -> Reflector[Thing]:
    return Reflector(server.client, Thing, sink, timing=options.pop("timing", QUICK), **options)


async def test_lists_in_pages_and_watches_from_the_version_of_the_list() -> None:
    server = Scripted([page(raw("x", 1), version=7, more="next"), page(raw("y", 2), version=7)], [])
    sink = Notes()
    async with running(reflector(server, sink, labels="a=b", fields="f=g").run()):
        await until(lambda: server.watch_calls)
    assert sink.said == ["put x@1", "put y@2", "listed"]
    assert [call["continue_token"] for call in server.list_calls] == ["", "next"]
    assert server.resumed_at == ["7"]
    for call in (*server.list_calls, *server.watch_calls):
        assert (call["labels"], call["fields"]) == ("a=b", "f=g")


async def test_the_server_is_asked_to_end_the_watch_at_a_random_time() -> None:
    timing = Timing()
    asked = {round(timing.watch_seconds()) for _ in range(200)}
    assert min(asked) >= 300
    assert max(asked) <= 600
    assert len(asked) > 50


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([], id="the server ends the watch"),
        pytest.param([TransportError("reset by peer")], id="the connection is cut"),
        pytest.param([SILENCE], id="nothing comes any more"),
        pytest.param([ServerError("etcd has no leader", status=500)], id="the server fails"),
    ],
)
async def test_resumes_at_the_newest_version_without_listing_again(end: list[Any]) -> None:
    server = Scripted(
        [page(version=5)],
        [[frame("ADDED", raw("x", 8)), *end], [bookmark(20), *end], [frame("DELETED", raw("x", 23)), *end]],
    )
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: len(server.watch_calls) == 4)
    assert server.resumed_at == ["5", "8", "20", "23"]
    assert len(server.list_calls) == 1
    assert sink.said == ["listed", "put x@8", "remove x"]


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(frame("ERROR", gone()), id="410 in the stream"),
        pytest.param(Gone("expired", status=410), id="410 as a status"),
        pytest.param(ServerError("Too large resource version", status=504), id="a version from the future"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":', id="a frame that is no JSON"),
    ],
)
async def test_lists_again_when_its_version_is_no_good_and_tells_missed_deletions(refusal: Any) -> None:
    server = Scripted(
        [page(raw("x", 1), raw("y", 2), version=5), page(raw("y", 2), raw("z", 9), version=12)], [[refusal]]
    )
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert sink.content == {"y": 2, "z": 9}
    assert sink.said[-2:] == ["remove x", "listed"]
    assert server.resumed_at == ["5", "12"]


async def test_a_continue_token_that_expires_starts_the_list_over_and_loses_nothing() -> None:
    server = Scripted(
        [page(raw("x", 1), version=5, more="next"), Gone("token expired", status=410), page(raw("y", 2), version=9)], []
    )
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: server.watch_calls)
    assert sink.said == ["put x@1", "put y@2", "remove x", "listed"]
    assert server.resumed_at == ["9"]


async def test_an_undecodable_object_is_skipped_and_its_older_copy_dropped() -> None:
    """In a list as in a watch; everything around it arrives, and the place in history moves on."""
    before = UNDECODABLE.labels("things.test.dev")._value.get()
    server = Scripted(
        [
            page(raw("x", 1), raw("broken", 2, size="large"), raw("y", 3), version=5),
            page(raw("x", 20, size="large"), raw("y", 3), version=21),
        ],
        [
            [
                frame("MODIFIED", raw("y", 6, size="large")),
                frame("ADDED", raw("z", 7)),
                frame("ADDED", raw("unlucky", 8, size=13)),
                frame("ERROR", gone()),
            ]
        ],
    )
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert sink.content == {"y": 3}
    assert [word for word in sink.said if word.startswith("remove")] == [
        "remove broken",
        "remove y",
        "remove unlucky",
        "remove x",
        "remove z",
    ]
    assert UNDECODABLE.labels("things.test.dev")._value.get() - before == 4


async def test_a_deletion_counts_even_if_the_object_does_not_fit() -> None:
    server = Scripted([page(raw("x", 1), version=1)], [[frame("DELETED", raw("x", 2, size="large"))]])
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert sink.content == {}
    assert server.resumed_at == ["1", "2"]


async def test_a_frame_may_be_of_any_size() -> None:
    server = Scripted([page(version=1)], [[frame("ADDED", raw("x", 2, annotations={"long": "x" * 6_000_000}))]])
    sink = Notes()
    async with running(reflector(server, sink).run()):
        await until(lambda: sink.content)


async def test_an_absent_optional_kind_is_asked_for_until_it_appears() -> None:
    absent = NotFound("the server could not find the requested resource", status=404)
    server = Scripted([absent, absent, page(raw("x", 1), version=3)], [[absent]])
    server.lists.extend([absent, page(version=9)])
    sink = Notes()
    async with running(reflector(server, sink, optional=True).run()):
        await until(lambda: len(server.watch_calls) == 2)
    # It vanished with its content while it was watched, and came back empty.
    assert sink.said == ["absent", "absent", "put x@1", "listed", "remove x", "absent", "absent", "listed"]


async def test_the_absence_of_a_required_kind_is_a_failure() -> None:
    server = Scripted([NotFound("no such kind", status=404)], [])
    sink = Notes()
    subject = reflector(server, sink)
    async with running(subject.run()):
        await until(lambda: len(server.list_calls) == 2)
        assert isinstance(subject.failure, NotFound)
        assert sink.said == []


async def test_a_bug_in_the_way_of_an_event_does_not_end_the_following() -> None:
    class Fragile(Notes):
        def put(self, obj: Thing) -> None:
            if obj.metadata.name == "bad":
                raise RuntimeError("bug")
            super().put(obj)

    server = Scripted(
        [page(version=1), page(version=2)], [[frame("ADDED", raw("bad", 2))], [frame("ADDED", raw("x", 3))]]
    )
    sink = Fragile()
    async with running(reflector(server, sink).run()):
        await until(lambda: sink.content)


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    server = Scripted([page(version=1)], [[] for _ in range(10_000)])
    timing = Timing(first_pause=timedelta(seconds=0.05), longest_pause=timedelta(seconds=0.05))
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with running(reflector(server, Notes(), timing=timing).run()):
        await until(lambda: len(server.watch_calls) >= 9)
    assert loop.time() - started >= 8 * 0.025, "a pause is at least half of its step"


async def test_knows_whether_it_is_connected_and_how_long_it_has_heard_nothing() -> None:
    now = 100.0
    server = Scripted([page(version=1)], [[SILENCE]])
    subject = reflector(server, Notes(), clock=lambda: now)
    assert not subject.connected(now)
    assert subject.heard == float("-inf")
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 1)
        assert subject.heard == 100
        assert subject.connected(now)
        now = 200.0
        await until(lambda: len(server.watch_calls) == 2)
        assert isinstance(subject.failure, TransportError)
        assert subject.heard == 100
        assert not subject.connected(now)
        now = 200.5  # longer than connecting may take, and no failure came
        assert subject.connected(now)


def test_pauses_double_up_to_a_limit_and_start_over_after_a_healthy_while() -> None:
    backoff = Backoff(Timing())
    now, steps = 0.0, []
    for _ in range(8):
        pause = backoff.pause(now)
        steps.append(pause)
        now += pause
    for pause, step in zip(steps, (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30), strict=True):
        assert step / 2 <= pause <= step
    assert backoff.pause(now + 60) > 1
    assert backoff.pause(now + 60 + 30 + 121) <= 0.8
