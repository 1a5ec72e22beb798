"""gRPC's own encodings."""

from __future__ import annotations

import gzip
from urllib.parse import unquote_to_bytes

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.rpc import messages
from inferencecache.server.rpc.messages import MAX_MESSAGE, Code, MessageReader, Status


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"250m", 0.25),
        (b"99u", 99e-6),
        (b"5n", 5e-9),
        (b"0S", 0.0),
        (b"99999999H", 366 * 86_400.0),
        (b"", None),
        (b"S", None),
        (b"-1S", None),
        (b"1s", None),
        (b"1.5S", None),
        (b"123456789S", None),
    ],
)
def test_a_timeout_is_read_or_recognised_as_none(header: bytes, seconds: float | None) -> None:
    assert messages.timeout(header) == (None if seconds is None else pytest.approx(seconds))


@given(bodies=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 30), max_size=40))
def test_messages_are_the_same_however_the_body_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    body = b"".join(map(messages.packed, bodies))
    reader, found = MessageReader(), []
    while body:
        size = cuts.pop() if cuts else len(body)
        found += reader.feed(body[:size])
        body = body[size:]
    assert [messages.unpacked(each, b"identity") for each in found] == bodies
    assert reader.waiting == 0


def test_an_unfinished_message_is_counted() -> None:
    reader = MessageReader()
    assert reader.feed(messages.packed(b"whole") + b"\0\0\0\0\x09part") == [messages.packed(b"whole")]
    assert reader.waiting == 9


def test_the_longest_message_is_taken_and_a_longer_one_refused_from_its_prefix() -> None:
    assert messages.size_of(b"\0" + MAX_MESSAGE.to_bytes(4, "big")) == MAX_MESSAGE + 5
    with pytest.raises(Status) as refused:
        MessageReader().feed(b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big"))
    assert refused.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("prefixed", "encoding", "code"),
    [
        (b"\x01\0\0\0\x01x", b"identity", Code.INTERNAL),
        (b"\x02\0\0\0\x01x", b"gzip", Code.INTERNAL),
        (b"\x01\0\0\0\x01x", b"gzip", Code.INTERNAL),
        (b"\x01\0\0\0\x00" + gzip.compress(b"abc" * 100, mtime=0)[:-9], b"gzip", Code.INTERNAL),
        (b"\x01\0\0\0\x00" + gzip.compress(bytes(MAX_MESSAGE + 1), mtime=0), b"gzip", Code.RESOURCE_EXHAUSTED),
    ],
)
def test_a_message_that_cannot_be_unpacked_is_refused(prefixed: bytes, encoding: bytes, code: Code) -> None:
    with pytest.raises(Status) as refused:
        messages.unpacked(prefixed, encoding)
    assert refused.value.code is code


@given(st.binary(max_size=1000))
def test_a_compressed_message_is_unpacked(message: bytes) -> None:
    assert messages.unpacked(b"\x01\0\0\0\0" + gzip.compress(message), b"gzip") == message


@given(st.text(max_size=300))
def test_a_status_message_survives_its_header(text: str) -> None:
    block = messages.trailers(Status(Code.NOT_FOUND, text))
    fields = {bytes(name): bytes(value) for name, value in hpack.Decoder().decode(block, raw=True)}
    assert fields[b"grpc-status"] == b"5"
    assert fields[b"grpc-message"].isascii()
    assert unquote_to_bytes(fields[b"grpc-message"]) == text.encode(errors="surrogatepass")[:1024]
