"""When a document is sent, and what finds a place in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.dataplane.client import Endpoint, ServerCallError, ServerClient, TokenFile
from inferencecache.controllers.dataplane.fan_out import AT_ONCE, write_each
from inferencecache.controllers.dataplane.push import Pusher, Row, fit
from inferencecache.kube.errors import Conflict, LeadershipLost, NotFound
from inferencecache.kube.kinds import Namespace as Thing
from inferencecache.kube.kinds import ObjectMeta
from inferencecache.kube.resource import Key

INTERVAL = timedelta(seconds=30)


async def nowhere(_host: str) -> list[str]:
    return []


class Server(ServerClient):
    """Remembers what was sent, and answers with the statuses it is given."""

    def __init__(self) -> None:
        super().__init__(resolve=nowhere)
        self.status = 204
        self.sent: list[bytes | None] = []

    async def exchange(
        self, method: str, url: str, *, token: str, body: bytes | None, address: str = ""
    ) -> tuple[int, bytes]:
        self.sent.append(body)
        return self.status, b""


class World:
    """A pusher with its server and clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        endpoint = Endpoint(name="test", client=self.server, url="http://s/x", token=TokenFile(Path("/nonexistent")))
        self.pusher = Pusher(endpoint, method="PUT", interval=INTERVAL, clock=lambda: self.now)


async def test_an_acknowledged_document_is_sent_again_only_after_the_interval() -> None:
    world = World()
    assert await world.pusher.push(b"1") == INTERVAL
    world.now = 10
    assert await world.pusher.push(b"1") == timedelta(seconds=20)
    world.now = 30
    assert await world.pusher.push(b"1") == INTERVAL
    assert world.server.sent == [b"1", b"1"]


async def test_another_document_is_sent_at_once() -> None:
    world = World()
    for document in (b"1", b"2", b"1"):
        await world.pusher.push(document)
    assert world.server.sent == [b"1", b"2", b"1"]


async def test_after_a_failure_everything_is_sent_again_and_within_the_interval() -> None:
    world = World()
    await world.pusher.push(b"1")
    world.server.status = 500
    with pytest.raises(ServerCallError) as caught:
        await world.pusher.push(b"2")
    assert caught.value.retry_within == INTERVAL
    world.server.status = 204
    await world.pusher.push(b"1")
    assert world.server.sent == [b"1", b"2", b"1"]


@pytest.mark.parametrize(("status", "empty", "fails"), [(404, True, False), (404, False, True), (500, True, True)])
async def test_a_server_too_old_for_a_document_is_a_failure_only_if_there_is_something_to_tell(
    status: int, empty: bool, fails: bool
) -> None:
    world = World()
    world.server.status = status
    if fails:
        with pytest.raises(ServerCallError):
            await world.pusher.push(b"1", empty=empty)
    else:
        assert await world.pusher.push(b"1", empty=empty) == INTERVAL


rows = st.builds(
    lambda name, age, size: Row(Key("ns", name), f"2026-01-{age:02}T00:00:00Z", {"name": name, "text": "é" * size}),
    name=st.text("abcdef", min_size=1, max_size=4),
    age=st.integers(1, 28),
    size=st.integers(0, 60),
)


@given(st.lists(rows, unique_by=lambda row: row.key), st.integers(60, 900))
def test_a_document_never_grows_too_long_and_leaves_out_only_what_does_not_fit(
    given_rows: list[Row], largest: int
) -> None:
    document, by_list = fit(1, {"rows": given_rows}, largest)
    left_out = by_list["rows"]
    told = json.loads(document)
    assert len(document) <= largest
    names = [row["name"] for row in told["rows"]]
    assert names == sorted(names)
    assert {Key("ns", name) for name in names} | left_out == {row.key for row in given_rows}
    assert not {Key("ns", name) for name in names} & left_out
    # One that is younger never takes the place of one that is older.
    for lost in (row for row in given_rows if row.key in left_out):
        older = [row for row in given_rows if (row.age, row.key) < (lost.age, lost.key) and row.key not in left_out]
        assert len(fit(1, {"rows": [*older, lost]}, 1 << 20).document) > largest - 1


def test_a_list_takes_what_room_the_lists_before_it_leave() -> None:
    first = [Row(Key("a", "young"), "2", {"n": 1}), Row(Key("a", "old"), "1", {"n": 2})]
    second = [Row(Key("b", "older"), "0", {"n": 3})]
    whole = b'{"version":1,"first":[{"n":2},{"n":1}],"second":[{"n":3}]}'
    assert fit(1, {"first": first, "second": second}).document == whole
    document, left_out = fit(1, {"first": first, "second": second}, largest=len(whole) - 1)
    assert (document, left_out) == (
        b'{"version":1,"first":[{"n":2},{"n":1}],"second":[]}',
        {"first": frozenset(), "second": {Key("b", "older")}},
    )


def test_rows_come_in_one_order_however_they_are_given() -> None:
    given_rows = [Row(Key("b", "x"), "1", {"n": 1}), Row(Key("a", "y"), "2", {"n": 2})]
    assert fit(1, {"rows": given_rows}) == fit(1, {"rows": given_rows[::-1]})
    assert fit(1, {"rows": given_rows}).document == b'{"version":1,"rows":[{"n":2},{"n":1}]}'


def thing(name: str) -> Thing:
    return Thing(metadata=ObjectMeta(name=name))


def writer(outcome: Callable[[str], Exception | None], written: list[str]) -> Callable[[Thing], Awaitable[None]]:
    async def write(obj: Thing) -> None:
        error = outcome(obj.metadata.name)
        if error is not None:
            raise error
        written.append(obj.metadata.name)

    return write


async def test_one_failed_write_is_told_and_the_others_are_made() -> None:
    written: list[str] = []
    conflict = Conflict("changed", status=409)
    write = writer(lambda name: conflict if name == "b" else None, written)
    assert await write_each([thing(name) for name in "abc"], write, what="it") is conflict
    assert written == ["a", "c"]


async def test_what_is_gone_needs_no_write() -> None:
    written: list[str] = []
    write = writer(lambda name: NotFound("gone", status=404) if name == "a" else None, written)
    assert await write_each([thing("a"), thing("b")], write, what="it") is None
    assert written == ["b"]


async def test_a_lost_lease_ends_everything() -> None:
    with pytest.raises(LeadershipLost):
        await write_each([thing("a"), thing("b")], writer(lambda _: LeadershipLost("lost"), []), what="it")


async def test_writes_run_side_by_side_but_not_all_at_once() -> None:
    running, most = 0, 0

    async def write(_: Thing) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    assert await write_each([thing(str(n)) for n in range(100)], write, what="it") is None
    assert most == AT_ONCE
