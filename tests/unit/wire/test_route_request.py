"""A chain that is left in one piece says what it says to protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.wire import route_request
from inferencecache.wire.route_request import Fingerprints, parse
from inferencecache.wire.v1alpha1.inferencecache_pb2 import SLO, LookupRouteRequest

# Lengths beyond 127 take a second byte, and a hash may look like the beginning of another.
_HASHES = st.lists(st.binary(min_size=8, max_size=8) | st.just(b"\x3a\x08" * 4), min_size=1, max_size=6)
_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "model_id": st.sampled_from(["m", "m" * 127, "m" * 128]),
        "tenant_id": st.text(max_size=3),
        "prefix_hash": st.sampled_from([b"\x3a\x08", b"x" * 8]),
        "prefix_token_count": st.integers(-(2**31), 2**31 - 1),
        "hash_scheme": st.just("vllm"),
        "slo": st.builds(SLO, ttft_ms=st.integers(0, 300)),
        "block_hashes": _HASHES | st.lists(st.binary(max_size=10), max_size=4),
        "block_token_counts": st.lists(st.sampled_from([8, 16, 0x3A, 1 << 20]), max_size=6),
        "token_ids": st.lists(st.integers(0, 2**32 - 1), max_size=3),
        "prompt_text": st.text(max_size=5),
        "adapter_id": st.sampled_from(["a", ":\x08" * 5]),
    },
)


@pytest.fixture(autouse=True)
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the shortest chains in one piece."""
    monkeypatch.setattr(route_request, "FEWEST", 1)


@given(st.lists(_REQUESTS, min_size=1, max_size=3))
def test_any_message_says_the_same_even_one_that_is_several_put_together(parts: list[dict[str, Any]]) -> None:
    body = b"".join(LookupRouteRequest(**part).SerializeToString() for part in parts)
    assert whole(body) == LookupRouteRequest.FromString(body)


@given(_REQUESTS, st.data())
def test_what_protobuf_refuses_is_refused_and_what_it_takes_is_taken(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(LookupRouteRequest(**fields).SerializeToString() + b"\x3a\x08")
    body = body[: data.draw(st.integers(0, len(body)))]
    for _ in range(data.draw(st.integers(0, 2)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = LookupRouteRequest.FromString(bytes(body))
    except DecodeError:
        with pytest.raises(DecodeError):
            parse(bytes(body))
    else:
        assert whole(bytes(body)) == expected


def test_blocks_inside_of_a_field_with_a_long_tag_are_no_blocks() -> None:
    field = b"\x82\x01\x78" + (b"\x3a\x08" + b"12345678") * 12  # number 16, 120 bytes
    body = field + b"\x82\x01\x78" + bytes(120)
    assert whole(body) == LookupRouteRequest.FromString(body)


@pytest.mark.parametrize(("hashes", "packed"), [([b"12345678"] * 3, True), ([b"12345678", b"1234567"], False)])
def test_only_hashes_of_one_length_are_left_in_one_piece(hashes: list[bytes], packed: bool) -> None:
    message, blocks = parse(LookupRouteRequest(model_id="m", block_hashes=hashes).SerializeToString())
    assert (blocks is not None, bool(message.block_hashes)) == (packed, not packed)


def test_a_short_chain_is_parsed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_request, "FEWEST", 3)
    assert parse(LookupRouteRequest(block_hashes=[b"12345678"] * 2).SerializeToString()).blocks is None
    assert parse(LookupRouteRequest(block_hashes=[b"12345678"] * 3).SerializeToString()).blocks is not None


def test_a_long_chain_is_unpacked_as_far_as_somebody_reads() -> None:
    hashes = [number.to_bytes(8, "big") for number in range(2 * route_request._PIECE + 1)]
    packed = Fingerprints(b"".join(hashes))
    assert list(packed) == hashes
    pieces: list[int] = []

    class Counted(Fingerprints):
        __slots__ = ()

        def __getitem__(self, at: Any) -> Any:
            pieces.append(at.start)
            return super().__getitem__(at)

    assert next(iter(Counted(packed.packed))) == hashes[0]
    assert pieces == [0]


@given(st.lists(st.binary(min_size=8, max_size=8), max_size=6), st.slices(6), st.integers(-8, 8))
def test_fingerprints_are_a_sequence_of_their_hashes(hashes: list[bytes], some: slice, at: int) -> None:
    packed: Sequence[bytes] = Fingerprints(b"".join(hashes))
    assert list(packed) == hashes
    assert list(packed[some]) == hashes[some]
    if -len(hashes) <= at < len(hashes):
        assert packed[at] == hashes[at]
    else:
        with pytest.raises(IndexError):
            packed[at]


def whole(body: bytes) -> LookupRouteRequest:
    """The message with the blocks that were left out of it."""
    message, blocks = parse(body)
    if blocks is not None:
        assert not message.block_hashes
        message.block_hashes.extend(blocks)
    return message
