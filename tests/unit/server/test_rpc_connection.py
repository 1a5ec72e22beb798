"""HTTP/2 as the server speaks it: what a peer may do, what it may not, and how much it can make us keep."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.server.rpc.connection import (
    CONNECTION_WINDOW,
    FAIR_SHARE,
    MAX_BUFFERED_BY_ALL,
    MAX_STREAMS,
    STREAM_WINDOW,
    TURN_BYTES,
    TURN_FRAMES,
    Budget,
)
from inferencecache.server.rpc.methods import Unary
from inferencecache.wire.http2 import frames
from inferencecache.wire.http2.frames import ErrorCode, Setting
from tests.unit.server.http2_client import PATH, Client, packed

ECHO = {PATH.encode(): Unary(BytesValue.FromString, lambda request, _call: request)}
MESSAGE = BytesValue(value=b"hello").SerializeToString()


@pytest.fixture
def client() -> Client:
    client = Client(ECHO)
    client.greet()
    return client


def failure(client: Client) -> ErrorCode | None:
    """The error that ended the connection."""
    if not client.connection.failed:
        return None
    last = client.take()[-1]
    assert last.kind == frames.GOAWAY
    return ErrorCode(int.from_bytes(last.payload[4:8], "big"))


def resets(client: Client) -> dict[int, ErrorCode]:
    """The streams that the server ended, and why."""
    return {
        each.stream_id: ErrorCode(int.from_bytes(each.payload, "big"))
        for each in client.take()
        if each.kind == frames.RST_STREAM
    }


def test_the_server_greets_first_with_its_limits() -> None:
    settings, update = Client(ECHO).greeting
    assert (settings.kind, update.kind) == (frames.SETTINGS, frames.WINDOW_UPDATE)
    values = {
        int.from_bytes(settings.payload[at : at + 2], "big"): int.from_bytes(settings.payload[at + 2 : at + 6], "big")
        for at in range(0, len(settings.payload), 6)
    }
    assert values[Setting.MAX_CONCURRENT_STREAMS] == MAX_STREAMS
    assert values[Setting.INITIAL_WINDOW_SIZE] == STREAM_WINDOW


def test_a_call_is_answered_with_head_message_and_status(client: Client) -> None:
    client.call(1, MESSAGE)
    fields, data = client.answer(1)
    assert fields[":status"] == "200"
    assert fields["content-type"] == "application/grpc"
    assert fields["grpc-status"] == "0"
    assert data == packed(MESSAGE)


@given(cuts=st.lists(st.integers(1, 20), max_size=60))
def test_calls_are_answered_however_their_bytes_arrive(cuts: list[int]) -> None:
    client = Client(ECHO)
    stream = frames.PREFACE + frames.settings({})
    for stream_id in (1, 3, 5):
        stream += frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, client.head(grpc_timeout=f"{stream_id}S"))
        stream += frames.frame(frames.DATA, frames.END_STREAM, stream_id, packed(MESSAGE))
    while stream:
        size = cuts.pop() if cuts else len(stream)
        client.connection.receive(stream[:size])
        stream = stream[size:]
    ended = [each.stream_id for each in client.take() if each.kind == frames.HEADERS and each.flags & 1]
    assert ended == [1, 3, 5]


def test_a_request_that_is_padded_prioritized_and_continued_is_understood(client: Client) -> None:
    block = client.head()
    client.send(
        frames.HEADERS, frames.PADDED | frames.PRIORITIZED, 1, b"\x03" + b"\0\0\0\0\x10" + block[:9] + b"\0\0\0"
    )
    client.send(frames.CONTINUATION, 0, 1, block[9:11])
    client.send(frames.CONTINUATION, frames.END_HEADERS, 1, block[11:])
    client.send(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x02" + packed(MESSAGE) + b"\0\0")
    assert client.answer(1)[1] == packed(MESSAGE)


def test_trailers_may_end_a_request(client: Client) -> None:
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.send(frames.DATA, 0, 1, packed(MESSAGE))
    client.send(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, client.encoder.encode([("x-checksum", "1")]))
    assert client.answer(1)[1] == packed(MESSAGE)


def test_a_ping_is_answered_with_its_content(client: Client) -> None:
    client.send(frames.PING, 0, 0, b"12345678")
    assert client.take() == [(frames.PING, frames.ACK, 0, b"12345678")]


def test_unknown_frames_and_settings_are_ignored(client: Client) -> None:
    client.send(0x42, 0xFF, 7, b"whatever")
    client.send(frames.SETTINGS, 0, 0, (0x4242).to_bytes(2, "big") + bytes(4))
    client.call(1, MESSAGE)
    assert client.answer(1)[1] == packed(MESSAGE)


BROKEN = [
    ("data on the connection", [(frames.DATA, 0, 0, b"x")], ErrorCode.PROTOCOL_ERROR),
    ("data on an idle stream", [(frames.DATA, 0, 1, b"x")], ErrorCode.PROTOCOL_ERROR),
    ("headers on the connection", [(frames.HEADERS, 4, 0, b"")], ErrorCode.PROTOCOL_ERROR),
    ("headers on a server's stream", [(frames.HEADERS, 4, 2, b"")], ErrorCode.PROTOCOL_ERROR),
    ("headers too short for a priority", [(frames.HEADERS, 0x24, 1, b"abc")], ErrorCode.FRAME_SIZE_ERROR),
    ("padding longer than its frame", [(frames.HEADERS, 0x0C, 1, b"\x05ab")], ErrorCode.PROTOCOL_ERROR),
    ("a broken field block", [(frames.HEADERS, 4, 1, b"\x80")], ErrorCode.COMPRESSION_ERROR),
    ("a continuation of nothing", [(frames.CONTINUATION, 4, 1, b"")], ErrorCode.PROTOCOL_ERROR),
    ("a ping within a block", [(frames.HEADERS, 0, 1, b""), (frames.PING, 0, 0, bytes(8))], ErrorCode.PROTOCOL_ERROR),
    ("a block on two streams", [(frames.HEADERS, 0, 1, b""), (frames.CONTINUATION, 4, 3, b"")],
     ErrorCode.PROTOCOL_ERROR),
    ("an endless block", [(frames.HEADERS, 0, 1, b"")] + 20 * [(frames.CONTINUATION, 0, 1, b"")],
     ErrorCode.ENHANCE_YOUR_CALM),
    ("a reset of the connection", [(frames.RST_STREAM, 0, 0, bytes(4))], ErrorCode.PROTOCOL_ERROR),
    ("a reset of an idle stream", [(frames.RST_STREAM, 0, 9, bytes(4))], ErrorCode.PROTOCOL_ERROR),
    ("a short reset", [(frames.RST_STREAM, 0, 1, bytes(3))], ErrorCode.FRAME_SIZE_ERROR),
    ("settings of a stream", [(frames.SETTINGS, 0, 1, b"")], ErrorCode.PROTOCOL_ERROR),
    ("settings of odd length", [(frames.SETTINGS, 0, 0, bytes(5))], ErrorCode.FRAME_SIZE_ERROR),
    ("an acknowledgement with content", [(frames.SETTINGS, 1, 0, bytes(6))], ErrorCode.FRAME_SIZE_ERROR),
    ("push that is neither on nor off", [(frames.SETTINGS, 0, 0, b"\0\x02\0\0\0\x02")], ErrorCode.PROTOCOL_ERROR),
    ("a window that is too large", [(frames.SETTINGS, 0, 0, b"\0\x04\x80\0\0\0")], ErrorCode.FLOW_CONTROL_ERROR),
    ("frames that are too small", [(frames.SETTINGS, 0, 0, b"\0\x05\0\0\0\x01")], ErrorCode.PROTOCOL_ERROR),
    ("a push by the client", [(frames.PUSH_PROMISE, 4, 1, bytes(4))], ErrorCode.PROTOCOL_ERROR),
    ("a ping of a stream", [(frames.PING, 0, 1, bytes(8))], ErrorCode.PROTOCOL_ERROR),
    ("a short ping", [(frames.PING, 0, 0, bytes(7))], ErrorCode.FRAME_SIZE_ERROR),
    ("a goaway of a stream", [(frames.GOAWAY, 0, 1, bytes(8))], ErrorCode.PROTOCOL_ERROR),
    ("a short goaway", [(frames.GOAWAY, 0, 0, bytes(7))], ErrorCode.FRAME_SIZE_ERROR),
    ("credit of nothing", [(frames.WINDOW_UPDATE, 0, 0, bytes(4))], ErrorCode.PROTOCOL_ERROR),
    ("a short credit", [(frames.WINDOW_UPDATE, 0, 0, bytes(3))], ErrorCode.FRAME_SIZE_ERROR),
    ("credit beyond the largest window", [(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")],
     ErrorCode.FLOW_CONTROL_ERROR),
    ("credit of an idle stream", [(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\x01")], ErrorCode.PROTOCOL_ERROR),
    ("priority of the connection", [(frames.PRIORITY, 0, 0, bytes(5))], ErrorCode.PROTOCOL_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_breach_of_the_protocol_ends_the_connection(
    client: Client, sent: list[tuple[int, int, int, bytes]], code: ErrorCode
) -> None:
    for each in sent:
        client.send(*each)
    assert failure(client) is code


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01\x02\x00"])
def test_another_protocol_is_turned_away(first: bytes) -> None:
    client = Client(ECHO)
    client.connection.receive(first)
    assert failure(client) is ErrorCode.PROTOCOL_ERROR


def test_the_first_frame_must_be_settings() -> None:
    client = Client(ECHO)
    client.connection.receive(frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)))
    assert failure(client) is ErrorCode.PROTOCOL_ERROR


def test_a_frame_longer_than_offered_ends_the_connection(client: Client) -> None:
    client.connection.receive(b"\x00\x40\x01" + bytes(6))
    assert failure(client) is ErrorCode.FRAME_SIZE_ERROR


@given(st.binary(max_size=200))
def test_any_bytes_after_the_greeting_are_survived(data: bytes) -> None:
    client = Client(ECHO)
    client.greet()
    client.connection.receive(data)
    client.connection.receive(data)
    assert client.connection.failed or not client.connection.draining
    client.take()  # raises if what we sent is torn


_BLOCKS = st.sampled_from([b"\x83\x86\x84", b"\x82", Client(ECHO).head(), Client(ECHO).head()[:7], b"\x3f\xe1\x1f"])
_BODIES = st.sampled_from([packed(MESSAGE), packed(MESSAGE)[:4], packed(MESSAGE)[4:], b"\0\0\x10\0\0", b""])
_FRAMES = st.tuples(
    st.sampled_from([*range(10), frames.DATA, frames.HEADERS, frames.DATA, frames.HEADERS]),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D]),
    st.sampled_from([0, 1, 3, 3, 5, 7, 2]),
    _BLOCKS | _BODIES | st.binary(max_size=12),
)


@settings(max_examples=400)
@given(sent=st.lists(_FRAMES, max_size=40))
def test_any_sequence_of_frames_is_survived_and_leaves_nothing_behind(
    sent: list[tuple[int, int, int, bytes]],
) -> None:
    client = Client(ECHO)
    client.greet({Setting.INITIAL_WINDOW_SIZE: 20})
    for each in sent:
        client.send(*each)
        client.take()  # raises if what we sent is torn
    client.connection.lost()
    assert client.connection.buffered == 0
    assert not client.connection.streams
    client.send(frames.PING, 0, 0, bytes(8))
    assert client.take() == []


WRONG_REQUESTS = [
    ("an uppercase name", [("X-A", "1")]),
    ("a connection's field", [("connection", "close")]),
    ("te that is not trailers", [("te", "gzip")]),
    ("a response's pseudo-field", [(":status", "200")]),
    ("a pseudo-field after others", [("x-a", "1"), (":path", "/")]),
    ("a line break in a value", [("x-a", "1\r\n2")]),
    ("a length that is no number", [("content-length", "many")]),
]


@pytest.mark.parametrize("more", [row[1] for row in WRONG_REQUESTS], ids=[row[0] for row in WRONG_REQUESTS])
def test_a_malformed_request_ends_its_stream_and_no_other(client: Client, more: list[tuple[str, str]]) -> None:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", PATH), ("content-type", "application/grpc"), *more]
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.encoder.encode(fields))
    assert resets(client) == {1: ErrorCode.PROTOCOL_ERROR}
    client.call(3, MESSAGE)
    assert client.answer(3)[1] == packed(MESSAGE)


@pytest.mark.parametrize("absent", [":method", ":scheme", ":path"])
def test_a_request_without_a_pseudo_field_is_malformed(client: Client, absent: str) -> None:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", PATH)]
    client.send(frames.HEADERS, 5, 1, client.encoder.encode([field for field in fields if field[0] != absent]))
    assert resets(client) == {1: ErrorCode.PROTOCOL_ERROR}


@pytest.mark.parametrize("announced", ["4", "99"])
def test_a_body_that_is_not_as_long_as_announced_ends_its_stream(client: Client, announced: str) -> None:
    client.call(1, MESSAGE, content_length=announced)
    assert resets(client) == {1: ErrorCode.PROTOCOL_ERROR}


def test_too_many_header_bytes_end_the_stream_only(client: Client) -> None:
    block = client.head(x_a="1" * 9_000, x_b="2" * 9_000)
    client.send(frames.HEADERS, 0, 1, block[:16_000])
    client.send(frames.CONTINUATION, frames.END_HEADERS, 1, block[16_000:])
    assert resets(client) == {1: ErrorCode.ENHANCE_YOUR_CALM}
    client.call(3, MESSAGE)
    assert client.answer(3)[1] == packed(MESSAGE)


def test_frames_after_the_end_of_a_request_are_refused(client: Client) -> None:
    client.call(1, MESSAGE)
    client.take()
    client.send(frames.DATA, 0, 1, b"more")
    assert resets(client) == {1: ErrorCode.STREAM_CLOSED}


def test_requests_beyond_the_limit_are_refused_and_may_be_repeated(client: Client) -> None:
    for stream_id in range(1, 2 * MAX_STREAMS, 2):
        client.send(frames.HEADERS, frames.END_HEADERS, stream_id, client.head())
    assert resets(client) == {}
    client.send(frames.HEADERS, frames.END_HEADERS, 2 * MAX_STREAMS + 1, client.head())
    assert resets(client) == {2 * MAX_STREAMS + 1: ErrorCode.REFUSED_STREAM}


def test_data_beyond_a_streams_window_ends_the_stream(client: Client) -> None:
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.connection.streams[1].held = True  # as a handler that does not read
    client.send(frames.DATA, 0, 1, b"\0" + (4 << 20).to_bytes(4, "big") + bytes(11))
    for _ in range(STREAM_WINDOW // 16_384):
        client.send(frames.DATA, 0, 1, bytes(16_384))
    assert resets(client)[1] is ErrorCode.FLOW_CONTROL_ERROR


def test_a_message_larger_than_the_window_gets_credit_as_it_arrives(client: Client) -> None:
    message = BytesValue(value=bytes(3 << 20)).SerializeToString()
    body = packed(message)
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    window = STREAM_WINDOW
    for at in range(0, len(body), 16_384):
        part = body[at : at + 16_384]
        end = at + 16_384 >= len(body)
        client.send(frames.DATA, frames.END_STREAM if end else 0, 1, part)
        window -= len(part)
        assert window >= 0, "the server let the client run dry"
        if not end:
            window += sum(
                int.from_bytes(each.payload, "big")
                for each in client.take()
                if each.kind == frames.WINDOW_UPDATE and each.stream_id == 1
            )
    assert client.take()[0].kind == frames.HEADERS


def test_the_connections_window_is_filled_up_as_data_arrives(client: Client) -> None:
    credit = 0
    for stream_id in range(1, 200, 2):
        client.call(stream_id, BytesValue(value=bytes(16_000)).SerializeToString())
    credit = sum(
        int.from_bytes(each.payload, "big")
        for each in client.take()
        if each.kind == frames.WINDOW_UPDATE and not each.stream_id
    )
    assert credit == 0  # 1.6 MB of 16 MiB
    for stream_id in range(201, 201 + 2 * 500, 2):
        client.call(stream_id, BytesValue(value=bytes(16_000)).SerializeToString())
    credit = sum(
        int.from_bytes(each.payload, "big")
        for each in client.take()
        if each.kind == frames.WINDOW_UPDATE and not each.stream_id
    )
    assert CONNECTION_WINDOW // 2 < credit < CONNECTION_WINDOW


def test_an_answer_waits_for_the_peers_window_and_then_leaves_in_full() -> None:
    client = Client(ECHO)
    client.greet({Setting.INITIAL_WINDOW_SIZE: 10})
    client.call(1, MESSAGE)
    data = b"".join(each.payload for each in client.take() if each.kind == frames.DATA)
    assert data == packed(MESSAGE)[:10]
    client.send(frames.WINDOW_UPDATE, 0, 1, (1).to_bytes(4, "big"))
    data += b"".join(each.payload for each in client.take() if each.kind == frames.DATA)
    assert data == packed(MESSAGE)[:11]
    client.send(frames.SETTINGS, 0, 0, b"\0\x04" + (1000).to_bytes(4, "big"))
    fields, rest = client.answer(1)
    assert data + rest == packed(MESSAGE)
    assert fields["grpc-status"] == "0"


def test_answers_never_exceed_the_connections_window(client: Client) -> None:
    message = BytesValue(value=bytes(30_000)).SerializeToString()
    for stream_id in (1, 3, 5):
        client.send(frames.HEADERS, frames.END_HEADERS, stream_id, client.head())
        body = packed(message)
        client.send(frames.DATA, 0, stream_id, body[:16_000])
        client.send(frames.DATA, frames.END_STREAM, stream_id, body[16_000:])
    sent = sum(len(each.payload) for each in client.take() if each.kind == frames.DATA)
    assert sent == frames.DEFAULT_WINDOW
    client.send(frames.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))
    rest = [each for each in client.take() if each.kind in (frames.DATA, frames.HEADERS)]
    assert sent + sum(len(each.payload) for each in rest if each.kind == frames.DATA) == 3 * len(packed(message))
    assert max(len(each.payload) for each in rest) <= frames.DEFAULT_FRAME_SIZE


def test_a_reset_while_an_answer_waits_frees_everything() -> None:
    client = Client(ECHO)
    client.greet({Setting.INITIAL_WINDOW_SIZE: 1})
    client.call(1, MESSAGE)
    client.send(frames.RST_STREAM, 0, 1, int(ErrorCode.CANCEL).to_bytes(4, "big"))
    client.take()
    client.send(frames.WINDOW_UPDATE, 0, 0, (1000).to_bytes(4, "big"))
    assert client.take() == []
    assert not client.connection.streams


def test_draining_lets_begun_requests_end_and_refuses_new_ones(client: Client) -> None:
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    client.connection.announce_drain()
    client.send(frames.HEADERS, frames.END_HEADERS, 3, client.head())
    client.connection.drain()
    away = [each for each in client.take() if each.kind == frames.GOAWAY]
    assert [int.from_bytes(each.payload[:4], "big") for each in away] == [frames.MAX_STREAM_ID, 3]
    client.send(frames.HEADERS, frames.END_HEADERS, 5, client.head())
    assert resets(client) == {5: ErrorCode.REFUSED_STREAM}
    for stream_id in (1, 3):
        client.send(frames.DATA, frames.END_STREAM, stream_id, packed(MESSAGE))
        assert client.answer(stream_id)[1] == packed(MESSAGE)


def test_a_length_that_no_body_can_have_is_malformed(client: Client) -> None:
    client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head(content_length="9" * 5000))
    assert resets(client) == {1: ErrorCode.PROTOCOL_ERROR}
    client.call(3, MESSAGE)
    assert client.answer(3)[1] == packed(MESSAGE)


def test_a_peer_that_asks_very_much_at_once_is_answered_by_turns() -> None:
    client = Client(ECHO)
    client.greet({Setting.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
    head, body = client.head(), packed(MESSAGE)
    calls = TURN_FRAMES
    asked = b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * call + 1, head)
        + frames.frame(frames.DATA, frames.END_STREAM, 2 * call + 1, body)
        for call in range(calls)
    )
    answered = []
    unfinished = client.connection.receive(asked)
    answered.append(sum(each.kind == frames.DATA for each in client.take()))
    while unfinished:
        unfinished = client.connection.receive(b"")
        answered.append(sum(each.kind == frames.DATA for each in client.take()))
    assert answered == [TURN_FRAMES // 2, TURN_FRAMES // 2]


def test_a_turn_ends_when_answers_are_large() -> None:
    large = BytesValue(value=bytes(TURN_BYTES))
    client = Client({PATH.encode(): Unary(BytesValue.FromString, lambda _request, _call: large)})
    client.greet({Setting.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
    client.connection.receive(frames.window_update(0, 1 << 30))
    head, body = client.head(), packed(MESSAGE)
    asked = b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, head)
        + frames.frame(frames.DATA, frames.END_STREAM, stream_id, body)
        for stream_id in (1, 3)
    )
    assert client.connection.receive(asked)
    assert {each.stream_id for each in client.take()} == {1}
    assert not client.connection.receive(b"")
    assert {each.stream_id for each in client.take()} == {3}


def test_connections_that_fill_the_memory_together_do_not_stop_those_that_hold_little() -> None:
    budget = Budget()
    greedy, modest = Client(ECHO, budget=budget), Client(ECHO, budget=budget)
    for client in (greedy, modest):
        client.greet()
        client.send(frames.HEADERS, frames.END_HEADERS, 1, client.head())
    budget.used = MAX_BUFFERED_BY_ALL - FAIR_SHARE
    part = bytes((0, 0, 0x3F, 0xFF, 0xFF)) + bytes(frames.DEFAULT_FRAME_SIZE - 5)
    while not (ended := [each for each in greedy.take() if each.kind == frames.RST_STREAM]):
        greedy.send(frames.DATA, 0, 1, part)
    assert [each.stream_id for each in ended] == [1]
    assert budget.used == MAX_BUFFERED_BY_ALL - FAIR_SHARE, "what the greedy one held is free again"
    budget.used = MAX_BUFFERED_BY_ALL
    modest.send(frames.DATA, 0, 1, packed(MESSAGE)[:3])
    modest.send(frames.DATA, frames.END_STREAM, 1, packed(MESSAGE)[3:])
    assert modest.answer(1)[1] == packed(MESSAGE)
