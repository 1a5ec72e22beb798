"""What a delivery does with the answers of a server, against one that can be told how to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest

from inferencecache.subscriber.chain import Add, Clear, Delta, Evict, Renew
from inferencecache.subscriber.channel import Address, Channel
from inferencecache.subscriber.delivery import Backoff, Delivery
from inferencecache.subscriber.messages import REPORT, Identity
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.subscriber.world import eventually

IDENTITY = Identity("r", "m", "t")
A, B = (Add(number, number * 16, "", Tier.T1) for number in (1, 2))


@dataclass
class Server:
    """Remembers what it is told, and acknowledges it unless told otherwise."""

    port: int = 0
    told: list[Any] = field(default_factory=list)
    life: str = "one"
    refusals: list[pb.Ack | bytes | grpc.StatusCode] = field(default_factory=list)

    async def _answer(self, context: Any) -> bytes:
        await context.send_initial_metadata((("inferencecache-instance", self.life),) if self.life else ())
        refusal = self.refusals.pop(0) if self.refusals else pb.Ack(accepted=True)
        if isinstance(refusal, pb.Ack):
            return refusal.SerializeToString()
        if isinstance(refusal, bytes):
            return refusal
        await context.abort(refusal, "no")
        raise AssertionError("abort raises")

    async def report(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        updates = [pb.CacheStateUpdate.FromString(request) async for request in requests]
        answer = await self._answer(context)
        self.told += [[(entry.token_count, int(entry.tier)) for entry in update.prefixes] for update in updates]
        return answer

    async def publish(self, request: bytes, context: Any) -> bytes:
        event = pb.CacheEvent.FromString(request)
        answer = await self._answer(context)
        self.told.append(pb.CacheEvent.Type.Name(event.type))
        return answer

    async def health(self, _request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("inferencecache-instance", self.life),) if self.life else ())
        return b""


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    made = Server()
    handlers = {
        METHODS["ReportCacheState"].path: grpc.stream_unary_rpc_method_handler(made.report),
        METHODS["PublishEvent"].path: grpc.unary_unary_rpc_method_handler(made.publish),
        "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(made.health),
    }

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return handlers.get(details.method)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Handlers()])
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


class CountingChannel(Channel):
    """Remembers how many calls were made together."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.together: list[int] = []

    async def calls(self, path: str, messages: Sequence[bytes], within: float) -> list[bytes]:
        self.together.append(len(messages))
        return await super().calls(path, messages, within)


@asynccontextmanager
async def delivering(server: Server, holds: list[Add], **fields: Any) -> AsyncIterator[Delivery]:
    """A delivery at work; `holds` is what a resync finds."""

    def held() -> Iterator[Add]:
        return iter(holds)

    channel = CountingChannel(Address("127.0.0.1", server.port), on_loss=lambda: made.look())
    made = Delivery(channel, IDENTITY, held, window=0.01, backoff=Backoff(0.01, 0.05), **fields)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait((task,))
        channel.close()


async def told(server: Server, *expected: Any) -> None:
    """Wait until the server was told exactly this."""
    await eventually(lambda: len(server.told) >= len(expected))
    assert server.told == list(expected)


async def test_it_begins_by_telling_all_that_is_held() -> None:
    async with serving() as server, delivering(server, [A, B]) as delivery:
        await told(server, "ALL_CLEARED", [(16, 1), (32, 1)])
        await eventually(lambda: delivery.in_step)
        delivery.put([Evict(1, "")], 5)
        await told(server, "ALL_CLEARED", [(16, 1), (32, 1)], "PREFIX_EVICTED")


@pytest.mark.parametrize(
    "refusal",
    [
        pb.Ack(accepted=False, reason_code="BUSY"),
        b"\xff is no Ack",
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
    ],
)
async def test_what_is_not_accepted_is_told_again_and_nothing_ahead_of_it(refusal: Any) -> None:
    async with serving() as server, delivering(server, []) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        server.refusals = [refusal, refusal]
        delivery.put([A, Evict(1, ""), B, A], 5)
        await eventually(lambda: delivery.in_step)
        assert delivery.counts.failures == 2
        answered = server.told if isinstance(refusal, grpc.StatusCode) else server.told[-3:]
        assert answered == [[(16, 1), (32, 1)], "PREFIX_EVICTED", [(16, 1)]]


async def test_a_server_in_another_life_is_told_everything_at_its_first_answer() -> None:
    async with serving() as server, delivering(server, [A]) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        server.life = "two"
        delivery.put([B], 5)
        await told(server, [(32, 1)], "ALL_CLEARED", [(16, 1)])


@pytest.mark.parametrize(("life", "resyncs"), [("one", 1), ("", 2)])
async def test_a_new_connection_is_a_new_life_only_of_a_server_that_does_not_name_it(life: str, resyncs: int) -> None:
    async with serving() as server:
        server.life = life
        async with delivering(server, [A]) as delivery:
            await eventually(lambda: delivery.in_step)
            delivery.channel.close()
            await eventually(lambda: delivery.channel.connections == 2)
            delivery.put([B], 5)
            await eventually(lambda: delivery.in_step)
            assert delivery.counts.resyncs == resyncs


async def test_an_overflow_is_repaired_by_all_that_is_held() -> None:
    async with serving() as server, delivering(server, [B], capacity=1) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        delivery.put([A, B], 5)
        assert delivery.counts.overflows == 1
        await told(server, "ALL_CLEARED", [(32, 1)])


async def test_many_evictions_are_told_one_by_one() -> None:
    async with serving() as server, delivering(server, []) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        delivery.put([Evict(number, "") for number in range(1500)], 5)
        await eventually(lambda: delivery.in_step, within=60)
        assert set(server.told) == {"PREFIX_EVICTED"}
        assert len(server.told) >= 1500, "some are told again if the machine is too busy to answer in time"
        assert delivery.counts.evictions == 1500


async def test_a_server_that_fails_is_told_fewer_at_a_time() -> None:
    async with serving() as server, delivering(server, []) as delivery:
        await eventually(lambda: delivery.in_step)
        server.refusals = [grpc.StatusCode.UNAVAILABLE] * 2
        together = cast(CountingChannel, delivery.channel).together
        together.clear()
        delivery.put([Evict(number, "") for number in range(600)], 5)
        await eventually(lambda: delivery.in_step, within=60)
        evictions = [calls for calls in together if calls > 1]
        assert evictions[:2] == [512, 256]
        assert max(evictions[2:]) <= 256


async def test_when_everything_has_to_be_told_anew_the_server_is_told_all_that_is_held() -> None:
    async with serving() as server, delivering(server, [A]) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        delivery.put([B, Renew()], 5)
        await told(server, "ALL_CLEARED", [(16, 1)])
        await eventually(lambda: delivery.counts.resyncs == 2)  # it counts when the server has acknowledged
        assert delivery.counts.overflows == 0


async def test_a_clear_is_told_before_what_follows_it() -> None:
    async with serving() as server, delivering(server, []) as delivery:
        await eventually(lambda: delivery.in_step)
        server.told.clear()
        delivery.put([A, Clear(), B], 5)
        await told(server, "ALL_CLEARED", [(32, 1)])


async def test_what_comes_up_while_a_server_is_told_waits_for_the_next_time() -> None:
    class Busy(Channel):
        async def calls(self, path: str, messages: Sequence[bytes], within: float) -> list[bytes]:
            if path == REPORT:
                delivery.put(later.pop(0), 5)
            return await super().calls(path, messages, within)

    async with serving() as server:
        delivery = Delivery(Busy(Address("127.0.0.1", server.port)), IDENTITY, lambda: iter(()))
        later: list[list[Delta]] = [[B], []]
        await delivery.flush()
        server.told.clear()
        delivery.put([A], 5)
        await delivery.flush()
        assert (server.told, len(delivery.outbox)) == ([[(16, 1)]], 1)
        await delivery.flush()
        assert (server.told, len(delivery.outbox)) == ([[(16, 1)], [(32, 1)]], 0)
        delivery.channel.close()


def test_the_pause_between_attempts_grows_up_to_a_bound() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for failures, longest in ((1, 1.0), (2, 2.0), (4, 8.0), (5, 8.0), (10_000, 8.0)):
        assert longest / 2 <= backoff.after(failures) <= longest
