"""Calls to real servers: grpcio's, and one that says what it is told to say, byte by byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.subscriber.channel import DEADLINE_EXCEEDED, UNAVAILABLE, Address, Channel, RpcError
from inferencecache.wire.http2 import frames
from inferencecache.wire.http2.fields import literal
from inferencecache.wire.http2.frames import ErrorCode, Setting, frame

ECHO = "/test.Test/Echo"
HEAD = b"\x88" + literal(b"content-type", b"application/grpc")
OK = literal(b"grpc-status", b"0")


@asynccontextmanager
async def grpcio(answer: Callable[[bytes, Any], Any], **options: int) -> AsyncIterator[Address]:
    """A server of grpcio's with one method."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.unary_unary_rpc_method_handler(answer) if details.method == ECHO else None

    server = grpc.aio.server(options=[(f"grpc.{name}", value) for name, value in options.items()])
    server.add_generic_rpc_handlers([Handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        await server.stop(0)


async def echo(request: bytes, _context: Any) -> bytes:
    return request


@asynccontextmanager
async def channel_to(address: Address, **fields: Any) -> AsyncIterator[Channel]:
    channel = Channel(address, **fields)
    try:
        yield channel
    finally:
        channel.close()


async def test_messages_of_any_size_come_back() -> None:
    async with grpcio(echo, max_receive_message_length=-1) as address, channel_to(address) as channel:
        for size in (0, 1, 16_379, 16_384, 65_535, 65_536, 1_000_000):
            message = bytes(index % 251 for index in range(size))
            assert await channel.call(ECHO, message, 60) == message
        assert channel.connections == 1


async def test_many_calls_at_once_are_answered_in_their_order() -> None:
    async with grpcio(echo, max_concurrent_streams=7) as address, channel_to(address) as channel:
        messages = [b"%d" % number for number in range(500)]
        assert await channel.calls(ECHO, messages, 60) == messages
        assert await channel.calls(ECHO, [], 60) == []


async def test_calls_of_several_tasks_do_not_mix() -> None:
    async with grpcio(echo) as address, channel_to(address) as channel:
        answers = await asyncio.gather(*(channel.call(ECHO, b"%d" % number, 60) for number in range(100)))
        assert answers == [b"%d" % number for number in range(100)]


async def test_a_status_is_an_error_with_its_code_and_message() -> None:
    async def refuse(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        return b""

    async with grpcio(refuse) as address, channel_to(address) as channel:
        with pytest.raises(RpcError, match="not you") as caught:
            await channel.call(ECHO, b"", 60)
        assert caught.value.code == grpc.StatusCode.PERMISSION_DENIED.value[0]
        with pytest.raises(RpcError) as caught:
            await channel.call("/test.Test/Nothing", b"", 60)
        assert caught.value.code == grpc.StatusCode.UNIMPLEMENTED.value[0]


async def test_a_call_that_takes_too_long_fails_and_the_others_do_not() -> None:
    async def slow(request: bytes, _context: Any) -> bytes:
        await asyncio.sleep(30 if request == b"slow" else 0)
        return request

    async with grpcio(slow) as address, channel_to(address) as channel:
        late = asyncio.create_task(channel.call(ECHO, b"slow", 0.2))
        assert await channel.call(ECHO, b"fast", 60) == b"fast"
        with pytest.raises(RpcError) as caught:
            await late
        assert caught.value.code == DEADLINE_EXCEEDED
        assert await channel.call(ECHO, b"fast", 60) == b"fast"


async def test_the_token_and_the_deadline_are_sent() -> None:
    seen: dict[str, str] = {}

    async def look(request: bytes, context: Any) -> bytes:
        seen.update(dict(context.invocation_metadata()), remaining=str(context.time_remaining()))
        return request

    async with grpcio(look) as address, channel_to(address, token=lambda: "secret") as channel:
        await channel.call(ECHO, b"", 3600)
    assert seen["authorization"] == "Bearer secret"
    assert 1800 < float(seen["remaining"]) <= 3600


async def test_after_a_server_is_gone_the_next_one_at_its_address_is_called() -> None:
    lost = asyncio.Event()
    async with grpcio(echo) as address, channel_to(address, on_loss=lost.set) as channel:
        await channel.call(ECHO, b"", 60)
        channel.close()
        async with asyncio.timeout(60):
            await lost.wait()
        assert await channel.call(ECHO, b"again", 60) == b"again"
        assert channel.connections == 2


async def test_where_nobody_listens_a_call_fails_at_once() -> None:
    async with channel_to(Address("127.0.0.1", 1)) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.call(ECHO, b"", 60)
        assert caught.value.code == UNAVAILABLE


class Scripted(asyncio.Protocol):
    """A server that answers each request with bytes that are a function of its stream."""

    def __init__(self, greeting: bytes, answer: Callable[[int], bytes]) -> None:
        self._greeting = greeting
        self._answer = answer
        self.received = b""
        self.lost = asyncio.Event()
        self._read = len(frames.PREFACE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._greeting)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= self._read + frames.HEAD_SIZE:
            high, low, kind, flags, stream_id = frames.read_head(self.received, self._read)
            end = self._read + frames.HEAD_SIZE + (high << 8 | low)
            if len(self.received) < end:
                return
            self._read = end
            if kind == frames.DATA and flags & frames.END_STREAM:
                self._transport.write(self._answer(stream_id))


@asynccontextmanager
async def listening(accept: Callable[[], asyncio.Protocol]) -> AsyncIterator[Address]:
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


def scripted(
    answer: Callable[[int], bytes], greeting: bytes = frames.settings({})
) -> AbstractAsyncContextManager[Address]:
    return listening(lambda: Scripted(greeting, answer))


def whole(stream_id: int, message: bytes = b"hello", head: bytes = HEAD, trailers: bytes = OK) -> bytes:
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    return (
        frame(frames.HEADERS, frames.END_HEADERS, stream_id, head)
        + frame(frames.DATA, 0, stream_id, body)
        + frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, trailers)
    )


def padded(stream_id: int) -> bytes:
    body = b"\x00\x00\x00\x00\x05hello"
    return (
        frame(frames.HEADERS, frames.PADDED | frames.PRIORITIZED, stream_id, b"\x03" + b"\x00" * 5 + HEAD[:4] + b"pad")
        + frame(frames.CONTINUATION, 0, stream_id, HEAD[4:6])
        + frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, HEAD[6:])
        + frame(frames.DATA, frames.PADDED, stream_id, b"\x02" + body[:3] + b"pd")
        + frame(frames.DATA, 0, stream_id, body[3:])
        + frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, OK)
    )


@pytest.mark.parametrize("answer", [whole, padded])
async def test_an_answer_in_any_framing_is_read(answer: Callable[[int], bytes]) -> None:
    async with scripted(answer) as address, channel_to(address) as channel:
        assert await channel.call(ECHO, b"", 60) == b"hello"
        assert await channel.call(ECHO, b"", 60) == b"hello"


def reset(stream_id: int) -> bytes:
    return frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM)


def going_away(_stream_id: int) -> bytes:
    return frames.goaway(0, ErrorCode.NO_ERROR)


def html(stream_id: int) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, literal(b":status", b"503")) + frame(
        frames.DATA, frames.END_STREAM, stream_id, b"<html>"
    )


def no_status(stream_id: int) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, HEAD)


def no_message(stream_id: int) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, HEAD + OK)


def broken_fields(stream_id: int) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, b"\xff\xff\xff\xff\xff\xff")


def endless_frame(_stream_id: int) -> bytes:
    return b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reset, "reset the call"),
        (going_away, "going away"),
        (html, "HTTP status 503"),
        (no_status, "without a status"),
        (no_message, "not one plain message"),
        (broken_fields, "broke the protocol"),
        (endless_frame, "broke the protocol"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_that_says_why(answer: Callable[[int], bytes], said: str) -> None:
    async with scripted(answer) as address, channel_to(address) as channel:
        with pytest.raises(RpcError, match=re.escape(said)):
            await channel.call(ECHO, b"", 60)


async def test_a_connection_on_which_something_else_than_grpc_answered_is_not_used_again() -> None:
    answers = iter([html, whole, whole])
    lost = asyncio.Event()
    async with (
        scripted(lambda stream_id: next(answers)(stream_id)) as address,
        channel_to(address, on_loss=lost.set) as channel,
    ):
        with pytest.raises(RpcError, match="HTTP status 503"):
            await channel.call(ECHO, b"", 60)
        async with asyncio.timeout(60):
            await lost.wait()
        for _ in range(2):
            assert await channel.call(ECHO, b"", 60) == b"hello"
        assert channel.connections == 2


async def test_calls_that_wait_behind_an_answer_that_is_no_grpc_fail_with_it() -> None:
    greeting = frames.settings({Setting.MAX_CONCURRENT_STREAMS: 1})
    async with scripted(html, greeting) as address, channel_to(address) as channel:
        await channel.connect()  # so that all of them are made before the first one is answered
        results = await asyncio.gather(*(channel.call(ECHO, b"", 60) for _ in range(3)), return_exceptions=True)
        assert [error.code for error in results if isinstance(error, RpcError)] == [UNAVAILABLE] * 3
        assert channel.connections == 1


async def test_a_silent_connection_is_given_up_with_the_call() -> None:
    lost = asyncio.Event()
    async with scripted(lambda _stream: b"") as address, channel_to(address, on_loss=lost.set) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.call(ECHO, b"", 0.1)
        assert caught.value.code == DEADLINE_EXCEEDED
        async with asyncio.timeout(60):
            await lost.wait()


async def test_who_never_says_that_it_speaks_http2_is_not_called_and_left() -> None:
    peers: asyncio.Queue[Scripted] = asyncio.Queue()
    told: list[str] = []

    def accept() -> Scripted:
        peer = Scripted(b"", whole)
        peers.put_nowait(peer)
        return peer

    async with listening(accept) as address, channel_to(address, on_loss=lambda: told.append("lost")) as channel:
        with pytest.raises(RpcError) as caught:
            await channel.call(ECHO, b"", 0.1)
        assert caught.value.code == DEADLINE_EXCEEDED
        assert channel.connections == 0
        async with asyncio.timeout(60):
            await (await peers.get()).lost.wait()
        assert not told, "nothing was established that could have been lost"


async def test_a_server_that_allows_one_call_at_a_time_gets_them_in_turn() -> None:
    greeting = frames.settings({Setting.MAX_CONCURRENT_STREAMS: 1, Setting.INITIAL_WINDOW_SIZE: 10})

    def slowly(stream_id: int) -> bytes:
        return whole(stream_id, b"%d" % stream_id)

    async with scripted(slowly, greeting) as address, channel_to(address) as channel:
        assert await channel.calls(ECHO, [b"", b"", b""], 60) == [b"1", b"3", b"5"]


async def test_the_life_of_a_server_is_what_it_says_on_this_connection() -> None:
    lives = iter(["one", "one", "two"])

    def answer(stream_id: int) -> bytes:
        return whole(stream_id, head=HEAD + literal(b"inferencecache-instance", next(lives).encode()))

    async with scripted(answer) as address, channel_to(address) as channel:
        seen = []
        for _ in range(3):
            await channel.call(ECHO, b"", 60)
            seen.append(channel.instance)
        assert seen == ["one", "one", "two"]
        channel.close()
        await channel.connect()
        assert channel.instance == ""


async def test_a_status_that_no_call_has_is_none() -> None:
    async with (
        scripted(lambda stream_id: whole(stream_id, trailers=literal(b"grpc-status", b"9" * 5000))) as address,
        channel_to(address) as channel,
    ):
        with pytest.raises(RpcError, match="an answer without a status"):
            await channel.call(ECHO, b"", 60)


async def test_a_field_block_of_nothing_that_does_not_end_is_given_up() -> None:
    def answer(stream_id: int) -> bytes:
        return frame(frames.HEADERS, 0, stream_id, HEAD) + frame(frames.CONTINUATION, 0, stream_id, b"") * 100

    async with scripted(answer) as address, channel_to(address) as channel:
        with pytest.raises(RpcError, match="a field block without end"):
            await channel.call(ECHO, b"", 60)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 9), st.integers(0, 255))
def test_no_bytes_of_a_server_do_worse_than_fail_the_call(payload: bytes, kind: int, flags: int) -> None:
    async def attempt() -> None:
        def answer(stream_id: int) -> bytes:
            return frame(kind, flags, stream_id, payload) + whole(stream_id)

        async with scripted(answer) as address, channel_to(address) as channel:
            with suppress(RpcError):
                assert isinstance(await channel.call(ECHO, b"", 0.5), bytes)

    asyncio.run(attempt())
