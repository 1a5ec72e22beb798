"""gRPC calls on one connection: statuses, limits, and what happens when somebody stops waiting."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from inferencecache.server.rpc import connection
from inferencecache.server.rpc.connection import STREAM_WINDOW
from inferencecache.server.rpc.messages import MAX_MESSAGE, Code, Status
from inferencecache.server.rpc.methods import Call, Streaming, Unary
from inferencecache.wire.http2 import frames
from inferencecache.wire.http2.frames import ErrorCode
from tests.unit.server.http2_client import PATH, Client, packed
from tests.unit.server.waiting import eventually

MESSAGE = BytesValue(value=b"hello").SerializeToString()
CANCEL = int(ErrorCode.CANCEL).to_bytes(4, "big")


def unary(answer: Callable[[Any, Call], Any]) -> Client:
    client = Client({PATH.encode(): Unary(BytesValue.FromString, answer)}, _start)
    client.greet()
    return client


def streaming(answer: Callable[[AsyncIterator[Any], Call], AsyncIterator[Any]]) -> Client:
    client = Client({PATH.encode(): Streaming(BytesValue.FromString, answer)}, _start)
    client.greet()
    return client


def _start(work: Any) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def turns(number: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(number):
        await asyncio.sleep(0)


def echo(request: BytesValue, _call: Call) -> BytesValue:
    return request


def status(client: Client, stream_id: int = 1) -> tuple[str, str]:
    fields, _ = client.answer(stream_id)
    return fields["grpc-status"], fields.get("grpc-message", "")


# -- what is refused -----------------------------------------------------------------------------------------------


def test_an_unknown_method_is_unimplemented() -> None:
    client = unary(echo)
    client.call(1, MESSAGE, path="/test.Service/Other")
    assert status(client) == ("12", "unknown method /test.Service/Other")


def test_a_caller_that_goes_on_until_it_is_answered_is_told_that_the_method_is_unknown() -> None:
    client = unary(echo)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head("/test.Service/Other"))
    client.send(frames.DATA, 0, 1, packed(MESSAGE))
    sent = client.take()
    assert dict(client.decoder.decode(sent[0].payload))["grpc-status"] == str(Code.UNIMPLEMENTED.value)
    assert [each.kind for each in sent[1:]] == [frames.RST_STREAM]
    client.send(frames.DATA, frames.END_STREAM, 1, packed(MESSAGE))
    assert client.take() == []


def test_an_unknown_compression_is_unimplemented() -> None:
    client = unary(echo)
    client.call(1, MESSAGE, grpc_encoding="snappy")
    assert status(client)[0] == "12"


def test_what_is_no_grpc_is_answered_as_http() -> None:
    client = unary(echo)
    fields = [(":method", "GET"), (":scheme", "http"), (":path", "/")]
    client.send(frames.HEADERS, 5, 1, client.encoder.encode(fields))
    assert client.answer(1)[0] == {":status": "405", "allow": "POST"}
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("content-type", "application/json")]
    client.send(frames.HEADERS, 5, 3, client.encoder.encode(fields))
    assert client.answer(3)[0] == {":status": "415"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INTERNAL),
        (b"\0\0\0", Code.INTERNAL),
        (packed(MESSAGE) + b"x", Code.INTERNAL),
        (packed(MESSAGE)[:-1], Code.INTERNAL),
        (packed(b"\xff\xff\xff"), Code.INTERNAL),
        (b"\x01" + packed(MESSAGE)[1:], Code.INTERNAL),
        (b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big"), Code.RESOURCE_EXHAUSTED),
    ],
)
def test_a_body_that_is_not_one_message_is_refused(body: bytes, code: Code) -> None:
    client = unary(echo)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, frames.END_STREAM, 1, body)
    assert status(client)[0] == str(code.value)


def test_a_message_that_is_too_long_is_refused_before_it_has_arrived() -> None:
    client = unary(echo)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, 0, 1, b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big"))
    sent = client.take()
    assert [each.kind for each in sent] == [frames.HEADERS, frames.RST_STREAM]
    assert dict(client.decoder.decode(sent[0].payload))["grpc-status"] == "8"
    assert client.connection.buffered == 0
    client.send(frames.DATA, 0, 1, b"what was under way")
    assert client.take() == []


# -- what is answered ----------------------------------------------------------------------------------------------


def test_a_compressed_message_is_read() -> None:
    client = unary(echo)
    body = gzip.compress(MESSAGE)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head(grpc_encoding="gzip"))
    client.send(frames.DATA, frames.END_STREAM, 1, b"\x01" + len(body).to_bytes(4, "big") + body)
    assert client.answer(1)[1] == packed(MESSAGE)


def test_a_handler_sees_deadline_and_metadata() -> None:
    seen: list[Call] = []

    def answer(request: BytesValue, call: Call) -> BytesValue:
        seen.append(call)
        return request

    client = unary(answer)
    client.call(1, MESSAGE)
    client.call(3, MESSAGE, grpc_timeout="10S", authorization="Bearer abc")
    assert seen[0].deadline is None
    assert seen[1].deadline is not None
    assert seen[1].metadata["authorization"] == "Bearer abc"
    assert "grpc-timeout" not in seen[1].metadata
    assert not seen[1].cancelled


def test_a_deadline_counts_from_its_own_call_though_the_heads_are_equal() -> None:
    deadlines: list[float] = []

    def answer(request: BytesValue, call: Call) -> BytesValue:
        assert call.deadline is not None
        deadlines.append(call.deadline)
        return request

    client = unary(answer)
    for stream_id in (1, 3, 5):
        client.call(stream_id, MESSAGE, grpc_timeout="10S")
    assert deadlines == sorted(set(deadlines))


def test_a_call_whose_deadline_has_passed_still_reaches_its_handler_which_is_told() -> None:
    late: list[bool] = []

    def answer(request: BytesValue, call: Call) -> BytesValue:
        late.append(call.deadline is not None and call.deadline <= time.monotonic())
        return request

    client = unary(answer)
    client.call(1, MESSAGE, grpc_timeout="0n")
    assert late == [True]
    assert client.answer(1)[1] == packed(MESSAGE)


def test_a_handlers_status_reaches_the_caller() -> None:
    def refuse(_request: BytesValue, _call: Call) -> BytesValue:
        raise Status(Code.NOT_FOUND, "100 % nowhere")

    client = unary(refuse)
    client.call(1, MESSAGE)
    assert status(client) == ("5", "100 %25 nowhere")


def test_a_handlers_bug_is_unknown_and_spares_the_connection() -> None:
    def fail(_request: BytesValue, _call: Call) -> BytesValue:
        raise ZeroDivisionError

    client = unary(fail)
    client.call(1, MESSAGE)
    assert status(client)[0] == "2"
    assert not client.connection.failed


async def test_a_handler_may_have_to_wait() -> None:
    gate = asyncio.Event()

    async def later(request: BytesValue) -> BytesValue:
        await gate.wait()
        return request

    client = unary(lambda request, _call: later(request))
    client.call(1, MESSAGE)
    await turns()
    assert client.take() == []
    gate.set()
    await turns()
    assert client.answer(1)[1] == packed(MESSAGE)
    assert client.connection.tasks == 0


async def test_a_waiting_handler_is_cancelled_with_its_call() -> None:
    ended: list[str] = []

    async def never(_request: BytesValue) -> BytesValue:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        raise AssertionError

    client = unary(lambda request, _call: never(request))
    client.call(1, MESSAGE)
    await turns()
    client.send(frames.RST_STREAM, 0, 1, CANCEL)
    await turns()
    assert ended == ["cancelled"]
    assert client.take() == []
    assert client.connection.tasks == 0


async def test_a_waiting_handler_is_cancelled_with_the_connection() -> None:
    async def never(_request: BytesValue) -> BytesValue:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    client = unary(lambda request, _call: never(request))
    client.call(1, MESSAGE)
    await turns()
    client.connection.lost()
    await turns()
    assert client.connection.tasks == 0


async def test_a_handler_that_must_wait_begins_even_if_its_call_is_cancelled_at_once() -> None:
    begun: list[bool] = []

    async def begin(request: BytesValue, call: Call) -> BytesValue:
        begun.append(call.cancelled)
        return request

    client = unary(begin)
    client.call(1, MESSAGE)
    client.send(frames.RST_STREAM, 0, 1, CANCEL)
    await turns()
    assert begun == [True]
    assert client.take() == []


async def test_a_unary_handler_beyond_its_deadline_is_ended() -> None:
    async def never(_request: BytesValue) -> BytesValue:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    client = unary(lambda request, _call: never(request))
    client.call(1, MESSAGE, grpc_timeout="1m")
    await eventually(lambda: True if not client.connection.tasks else None)
    assert status(client)[0] == "4"


async def test_cancelled_handlers_that_do_not_end_count_against_the_limit() -> None:
    from inferencecache.server.rpc.connection import MAX_STREAMS

    gate = asyncio.Event()

    async def stubborn(request: BytesValue) -> BytesValue:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return request

    client = unary(lambda request, _call: stubborn(request))
    for stream_id in range(1, 2 * MAX_STREAMS, 2):
        client.call(stream_id, MESSAGE)
        await asyncio.sleep(0)
        client.send(frames.RST_STREAM, 0, stream_id, CANCEL)
    client.take()
    client.call(2 * MAX_STREAMS + 1, MESSAGE)
    [refused] = [each for each in client.take() if each.stream_id == 2 * MAX_STREAMS + 1]
    assert (refused.kind, refused.payload) == (frames.RST_STREAM, int(ErrorCode.REFUSED_STREAM).to_bytes(4, "big"))
    gate.set()
    await turns()
    assert client.connection.tasks == 0


# -- streams -------------------------------------------------------------------------------------------------------


async def collect(requests: AsyncIterator[BytesValue], _call: Call) -> AsyncIterator[BytesValue]:
    yield BytesValue(value=b"|".join([request.value async for request in requests]))


async def test_a_client_stream_is_read_to_its_end() -> None:
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    for word in (b"a", b"b", b"c"):
        client.send(frames.DATA, 0, 1, packed(BytesValue(value=word).SerializeToString()))
        await turns(3)
    assert client.take() == []
    client.send(frames.DATA, frames.END_STREAM, 1, b"")
    await turns()
    fields, data = client.answer(1)
    assert BytesValue.FromString(data[5:]).value == b"a|b|c"
    assert fields["grpc-status"] == "0"


async def test_a_stream_that_ends_within_a_message_is_refused() -> None:
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, frames.END_STREAM, 1, packed(MESSAGE)[:-1])
    await turns()
    assert status(client)[0] == "13"
    assert client.connection.tasks == 0
    assert client.connection.buffered == 0


async def test_a_message_that_is_too_long_ends_a_stream() -> None:
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, 0, 1, packed(MESSAGE) + b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big"))
    await turns()
    assert status(client)[0] == "8"
    assert client.connection.buffered == 0


async def test_messages_beyond_what_a_connection_may_keep_are_refused_and_counted_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_BUFFERED", 10)
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, 0, 1, packed(bytes(20)))
    await turns()
    assert status(client)[0] == str(Code.RESOURCE_EXHAUSTED.value)
    assert (client.connection.buffered, client.budget.used) == (0, 0)


async def test_a_handler_that_does_not_read_stops_the_sender() -> None:
    reading = asyncio.Event()

    async def slow(requests: AsyncIterator[BytesValue], call: Call) -> AsyncIterator[BytesValue]:
        await reading.wait()
        async for answer in collect(requests, call):
            yield answer

    client = streaming(slow)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    message = packed(BytesValue(value=bytes(16_000)).SerializeToString())
    window = STREAM_WINDOW
    while window >= len(message):
        client.send(frames.DATA, 0, 1, message)
        window -= len(message)
    await turns()
    assert client.take() == [], "credit was given for what nobody read"
    reading.set()
    await turns(300)
    credit = sum(int.from_bytes(each.payload, "big") for each in client.take() if each.kind == frames.WINDOW_UPDATE)
    assert credit == STREAM_WINDOW - window
    assert client.connection.buffered == 0


async def test_a_reader_that_stops_reading_stops_the_handler() -> None:
    sent: list[int] = []

    async def flood(_requests: AsyncIterator[BytesValue], _call: Call) -> AsyncIterator[BytesValue]:
        for number in range(100):
            sent.append(number)
            yield BytesValue(value=bytes(10_000))

    client = streaming(flood)
    client.send(frames.HEADERS, 5, 1, client.head())
    await turns(200)
    assert len(sent) == 7, "65,535 bytes of window take six messages, and the seventh waits"
    client.send(frames.WINDOW_UPDATE, 0, 1, (1 << 24).to_bytes(4, "big"))
    client.send(frames.WINDOW_UPDATE, 0, 0, (1 << 24).to_bytes(4, "big"))
    await turns(400)
    assert len(sent) == 100
    assert status(client)[0] == "0"


async def test_a_cancelled_stream_ends_its_handler_and_says_nothing() -> None:
    ended = asyncio.Event()

    async def answer(requests: AsyncIterator[BytesValue], call: Call) -> AsyncIterator[BytesValue]:
        try:
            async for response in collect(requests, call):
                yield response
        finally:
            assert call.cancelled
            ended.set()

    client = streaming(answer)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, 0, 1, packed(MESSAGE))
    await turns()
    client.send(frames.RST_STREAM, 0, 1, CANCEL)
    await turns()
    assert ended.is_set()
    assert client.take() == []
    assert client.connection.tasks == 0


async def test_a_stream_beyond_its_deadline_is_ended() -> None:
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head(grpc_timeout="20m"))
    await eventually(lambda: True if not client.connection.tasks else None)
    assert status(client)[0] == "4"


async def test_a_stream_that_never_waits_ends_with_its_caller() -> None:
    said = 0

    async def talk(_requests: AsyncIterator[BytesValue], _call: Call) -> AsyncIterator[BytesValue]:
        nonlocal said
        while said < 10_000:
            said += 1
            yield BytesValue()

    client = streaming(talk)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.RST_STREAM, 0, 1, CANCEL)
    await turns()
    assert client.connection.tasks == 0
    assert said < 10


async def test_a_handlers_status_ends_a_stream() -> None:
    async def refuse(_requests: AsyncIterator[BytesValue], _call: Call) -> AsyncIterator[BytesValue]:
        yield BytesValue(value=b"first")
        raise Status(Code.PERMISSION_DENIED, "no more")

    client = streaming(refuse)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    await turns()
    fields, data = client.answer(1)
    assert (fields["grpc-status"], data) == ("7", packed(BytesValue(value=b"first").SerializeToString()))


async def test_a_long_queue_leaves_turns_to_others() -> None:
    client = streaming(collect)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, frames.END_STREAM, 1, packed(MESSAGE) * 500)
    rounds = 0
    while client.connection.tasks:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 500
