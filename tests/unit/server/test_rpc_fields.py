"""The HPACK decoder, against the hpack package and the RFC's own examples."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.wire.http2.fields import Decoder, FieldError, FieldListTooLong, literal

_NAMES = st.sampled_from([b":path", b":method", b"grpc-timeout", b"user-agent", b"x-a", b"te", b"authorization"])
_FIELDS = st.lists(st.tuples(_NAMES, st.binary(max_size=40)), max_size=12)


@given(blocks=st.lists(st.tuples(_FIELDS, st.booleans()), max_size=12))
def test_a_sequence_of_blocks_decodes_to_what_was_encoded(blocks: list[tuple[list[tuple[bytes, bytes]], bool]]) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(1 << 20)
    for fields, huffman in blocks:
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields


@given(sizes=st.lists(st.integers(0, 4096), max_size=8), fields=_FIELDS)
def test_changes_of_the_tables_size_are_followed(sizes: list[int], fields: list[tuple[bytes, bytes]]) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(1 << 20)
    for size in sizes:
        encoder.header_table_size = size
        assert decoder.decode(encoder.encode(fields)) == fields


@settings(max_examples=500)
@given(st.binary(max_size=64))
def test_any_bytes_decode_as_the_hpack_package_decodes_them_or_are_refused(block: bytes) -> None:
    reference = hpack.Decoder()
    try:
        expected = [(bytes(name), bytes(value)) for name, value in reference.decode(block, raw=True)]
    except hpack.HPACKError:
        with pytest.raises(FieldError):
            Decoder(1 << 20).decode(block)
    else:
        assert Decoder(1 << 20).decode(block) == expected


def test_the_rfcs_requests_decode() -> None:
    # RFC 7541 C.4: three requests on one connection, Huffman coded.
    decoder = Decoder(1 << 14)
    first = decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"))
    assert first[-1] == (b":authority", b"www.example.com")
    second = decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf"))
    assert second[-2:] == [(b":authority", b"www.example.com"), (b"cache-control", b"no-cache")]
    third = decoder.decode(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"))
    assert third == [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ]


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "index 0"),
        (b"\xff\xff\xff\xff\xff\xff\x01", "an integer that is too long"),
        (b"\xc0", "an index into an empty table"),
        (b"\x40", "a literal without its name"),
        (b"\x40\x05ab", "a string longer than the block"),
        (b"\x3f\xe2\x1f", "a table larger than offered"),
        (b"\x82\x20", "a change of size after a field"),
    ],
)
def test_a_malformed_block_is_refused(block: bytes, why: str) -> None:
    with pytest.raises(FieldError):
        Decoder(1 << 14).decode(block)


def test_fields_beyond_the_limit_are_refused_but_still_change_the_table() -> None:
    encoder, decoder = hpack.Encoder(), Decoder(200)
    with pytest.raises(FieldListTooLong):
        decoder.decode(encoder.encode([(b"x-a", b"1" * 100), (b"x-b", b"2" * 100)]))
    assert decoder.decode(encoder.encode([(b"x-a", b"1" * 100)])) == [(b"x-a", b"1" * 100)]


def test_a_block_of_known_fields_leaves_the_table_unchanged() -> None:
    encoder, decoder = hpack.Encoder(), Decoder(1 << 14)
    decoder.decode(encoder.encode([(b"x-a", b"1")]))
    assert decoder.changed
    decoder.decode(encoder.encode([(b"x-a", b"1")]))
    assert not decoder.changed


@given(name=st.binary(min_size=1, max_size=300), value=st.binary(max_size=20_000))
def test_our_literals_are_read_by_others_and_never_indexed(name: bytes, value: bytes) -> None:
    reference = hpack.Decoder()
    reference.max_header_list_size = 1 << 20
    [(read_name, read_value)] = reference.decode(literal(name, value), raw=True)
    assert (bytes(read_name), bytes(read_value)) == (name, value)
    assert len(reference.header_table.dynamic_entries) == 0
