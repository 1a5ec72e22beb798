"""Repairs of a stream from replies that have holes, end too early, or do not come (spec 08 §15 facts 1 and 2)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.subscriber.replay import NoReplay, replay
from inferencecache.subscriber.sockets import readable, received
from inferencecache.subscriber.source import MAX_REQUESTS, Source
from tests.integration.subscriber.world import eventually

END = b"\xff" * 8
LOST = "lost"


def packed(number: int) -> bytes:
    return struct.pack(">Q", number)


@dataclass
class Engine:
    """An engine's two sockets; `reply` says which numbers the n-th reply has, of those from the start on."""

    context: zmq.Context[zmq.Socket[bytes]]
    reply: Callable[[int, int], Iterable[int]]
    marker: bool = True
    requests: list[int] = field(default_factory=list)
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        for bound in (self.pub, self.router):
            bound.linger = 0
            bound.ipv6 = "[" in self.host
            bound.bind(f"tcp://{self.host}:*")

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.pub.send_multipart([b"kv-events", packed(number), packed(number)])

    async def answer(self) -> None:
        while True:
            await readable(self.router)
            while (request := received(self.router)) is not None:
                identity, _, start = request
                first = struct.unpack(">Q", start)[0]
                self.requests.append(first)
                for number in self.reply(len(self.requests), first):
                    self.router.send_multipart([identity, b"", packed(number), packed(number)])
                if self.marker:
                    self.router.send_multipart([identity, b"", END, b""])


@asynccontextmanager
async def followed(
    reply: Callable[[int, int], Iterable[int]],
    *,
    marker: bool = True,
    patience: float = 60.0,
    host: str = "127.0.0.1",
) -> AsyncIterator[tuple[Engine, Source, list[int | str]]]:
    """An engine, the source that follows it, and what that hands on: numbers, and losses."""
    with zmq.Context() as context:
        engine = Engine(context, reply, marker, host=host)
        heard: list[int | str] = []
        source = Source(
            context,
            engine.pub.getsockopt_string(zmq.LAST_ENDPOINT),
            on_batch=lambda payload: heard.append(struct.unpack(">Q", payload)[0]),
            on_loss=lambda: heard.append(LOST),
            replay_endpoint=engine.router.getsockopt_string(zmq.LAST_ENDPOINT),
            patience=patience,
        )
        tasks = [asyncio.create_task(engine.answer()), asyncio.create_task(source.run())]
        try:
            await eventually(lambda: engine.pub.poll(0))
            await eventually(lambda: engine.requests)  # what was before the beginning is asked for first
            yield engine, source, heard
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            engine.pub.close()
            engine.router.close()


def upto(last: int, *missing: int) -> Callable[[int, int], Iterable[int]]:
    """Replies with all numbers up to one, but for some that are nowhere."""
    return lambda _reply, first: (number for number in range(first, last + 1) if number not in missing)


async def told(heard: list[int | str], *expected: int | str) -> None:
    await eventually(lambda: len(heard) >= len(expected))
    assert heard == list(expected)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"] if _has_ipv6() else ["127.0.0.1"])
async def test_a_gap_is_filled_in_order_and_nothing_is_applied_twice(host: str) -> None:
    async with followed(lambda reply, first: range(first, 6) if reply > 1 else (), host=host) as (
        engine,
        source,
        heard,
    ):
        engine.publish(0, 1, 4, 5, 6)
        await told(heard, 0, 1, 2, 3, 4, 5, 6)
        assert engine.requests == [0, 2]
        assert (source.counts.gaps, source.counts.holes) == (1, 0)


async def test_a_reply_that_was_dropped_on_its_way_is_asked_for_again_from_the_hole() -> None:
    def reply(number: int, first: int) -> Iterable[int]:
        return () if number == 1 else (each for each in range(first, 10) if number > 2 or not 4 <= each < 7)

    async with followed(reply) as (engine, source, heard):
        engine.publish(0, 9, 10)
        await told(heard, *range(11))
        assert engine.requests == [0, 1, 4]
        assert source.counts.holes == 0


async def test_a_reply_that_lost_its_end_is_asked_for_again() -> None:
    def reply(number: int, first: int) -> Iterable[int]:
        return () if number == 1 else range(first, 5 if number == 2 else 9)

    async with followed(reply) as (engine, source, heard):
        engine.publish(0, 9)
        await told(heard, *range(10))
        assert engine.requests == [0, 1, 5]
        assert source.counts.holes == 0


async def test_a_number_that_is_nowhere_voids_what_came_before() -> None:
    async with followed(lambda reply, first: upto(9, 5)(reply, first) if reply > 1 else ()) as (engine, source, heard):
        engine.publish(0, 9, 10)
        await told(heard, 0, 1, 2, 3, 4, LOST, 6, 7, 8, 9, 10)
        assert engine.requests == [0, 1, 5]
        assert source.counts.holes == 1


async def test_the_last_number_before_the_gap_ends_may_be_nowhere_too() -> None:
    async with followed(lambda reply, first: upto(7, 8)(reply, first) if reply > 1 else ()) as (engine, _source, heard):
        engine.publish(0, 9, 10)
        await told(heard, *range(8), LOST, 9, 10)


async def test_what_the_engine_remembers_may_begin_later_without_being_a_hole() -> None:
    async with followed(lambda _reply, first: range(max(first, 40), 45)) as (engine, source, heard):
        await told(heard, *range(40, 45))
        engine.publish(45)
        await told(heard, *range(40, 46))
        assert source.counts.holes == 0


@pytest.mark.parametrize("others", [range(9, 12), [2**63]])
async def test_numbers_of_another_publisher_do_not_make_deaf(others: Iterable[int]) -> None:
    async with followed(lambda reply, _first: others if reply > 1 else ()) as (engine, source, heard):
        engine.publish(0, 5, 6, 7)
        await told(heard, 0, LOST, 5, 6, 7)
        assert source.counts.holes == 1


async def test_numbers_that_no_stream_can_reach_before_the_first_message_do_not_make_deaf() -> None:
    async with followed(lambda _reply, _first: [2**63]) as (engine, _source, heard):
        await told(heard, 2**63)
        engine.publish(5, 6)
        await told(heard, 2**63, LOST, 5, 6)


async def test_an_engine_that_does_not_answer_is_waited_for_once_and_the_doubt_is_told() -> None:
    async with followed(lambda _reply, _first: (), marker=False, patience=0.1) as (engine, source, heard):
        engine.publish(0, 1, 5, 6)
        await told(heard, 0, 1, LOST, 5, 6)
        assert source.counts.holes == 1


async def test_replies_that_are_full_of_holes_are_given_up() -> None:
    def reply(number: int, first: int) -> Iterable[int]:
        return () if number == 1 else range(first, 200, 2)

    async with followed(reply) as (engine, _source, heard):
        engine.publish(0, 199)
        await eventually(lambda: heard and heard[-1] == 199)
        assert len(engine.requests) <= MAX_REQUESTS + 1


async def test_a_restart_in_the_middle_of_a_repair_is_noticed() -> None:
    async with followed(lambda reply, first: range(first, 3) if reply > 1 else ()) as (engine, source, heard):
        engine.publish(0, 3, 0, 1)
        await told(heard, 0, 1, 2, 3, LOST, 0, 1)
        assert source.counts.restarts == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.data())
def test_whatever_is_missing_each_batch_comes_once_and_in_order(
    unsent: set[int], nowhere: set[int], data: st.DataObject
) -> None:
    """After the last loss there is no hole before the end, and numbers never go back."""
    dropped = data.draw(st.lists(st.sets(st.integers(1, 30)), max_size=3))

    def reply(number: int, first: int) -> Iterable[int]:
        if number == 1:
            return ()
        kept = [each for each in range(first, 31) if each not in nowhere]
        lost = dropped[number - 2] if number - 2 < len(dropped) else set()
        return kept[:1] + [each for each in kept[1:] if each not in lost]  # the first one has room

    async def run() -> None:
        async with followed(reply) as (engine, _source, heard):
            engine.publish(*(each for each in range(31) if each not in unsent | nowhere), 31)
            await eventually(lambda: heard and heard[-1] == 31)
            numbers = [each for each in heard if isinstance(each, int)]
            assert numbers == sorted(set(numbers))
            assert set(numbers) == set(range(32)) - nowhere
            after_loss = heard[len(heard) - heard[::-1].index(LOST) :] if LOST in heard else heard
            assert after_loss == list(range(int(after_loss[0]), 32))

    asyncio.run(run())


@pytest.mark.parametrize("frames", [[b"", b"\x01"], [b"", b"seq", b"payload"]])
async def test_a_reply_of_something_else_is_its_end(frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind("tcp://127.0.0.1:*")

        async def answer() -> None:
            await readable(router)
            request = received(router)
            assert request is not None
            router.send_multipart([request[0], *frames])

        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
            endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
            assert [each async for each in replay(context, endpoint, 0)] == []


async def test_an_endpoint_that_is_none_is_told_as_no_replay() -> None:
    with zmq.Context() as context, pytest.raises(NoReplay):
        await anext(replay(context, "nonsense", 0))
