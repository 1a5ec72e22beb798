"""Whatever bytes arrive, the decoder answers with a batch or its one error, in memory that they justify."""

from __future__ import annotations

import tracemalloc
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack

from inferencecache.wire.events import BlockRemoved, BlockStored, EventBatch, EventDecoder, UndecodableBatch
from tests.unit.wire.encodings import (
    REMOVED,
    SHAPES,
    STORED,
    as_array,
    as_map,
    batch,
    cleared,
    map_batch,
    removed,
    stored,
)

INTEGERS = st.integers(-(2**63), 2**64 - 1)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=8) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TAGS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockMoved"])
NAMES = st.sampled_from([*STORED, "locality", "cache_salt", "type", "ownership"])
NEARLY_EVENTS = (
    st.tuples(TAGS, st.lists(VALUES, max_size=13)).map(lambda parts: [parts[0], *parts[1]])
    | st.tuples(TAGS, st.dictionaries(NAMES, VALUES, max_size=8)).map(lambda parts: {**parts[1], "type": parts[0]})
    | VALUES
)
HASHES = st.lists(INTEGERS | st.binary(min_size=32, max_size=32), max_size=4)
GOOD_EVENTS = st.one_of(
    st.builds(
        stored,
        HASHES,
        st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=8),
        st.integers(0, 64),
        parent_block_hash=st.none() | INTEGERS,
        medium=st.sampled_from([None, "GPU", "CPU", "EXTERNAL"]),
        lora_name=st.none() | st.text(max_size=5),
    ),
    st.builds(removed, HASHES, medium=st.sampled_from([None, "GPU", "CPU"])),
    st.builds(cleared),
)


def decode(payload: bytes) -> EventBatch | None:
    """The batch, or None; and whatever was decoded has the types it declares."""
    try:
        decoded = EventDecoder().decode(payload)
    except UndecodableBatch:
        return None
    for event in decoded.events:
        if isinstance(event, BlockStored):
            assert all(type(token) is int and 0 <= token < 2**32 for token in event.token_ids or ())
            assert event.parent_block_hash is None or type(event.parent_block_hash) is int
            assert event.lora_name is None or isinstance(event.lora_name, str)
        if isinstance(event, BlockStored | BlockRemoved):
            assert all(type(block_hash) is int for block_hash in event.block_hashes)
    assert all(isinstance(reason, str) and count > 0 for reason, count in decoded.dropped.items())
    assert isinstance(decoded.timestamp_us, int)
    return decoded


@given(st.binary(max_size=200))
@example(b"\x92\x01\x91\xdf\xff\xff\xff\xff")
def test_random_bytes_are_survived(payload: bytes) -> None:
    decode(payload)


@given(VALUES)
def test_random_messages_are_survived(value: Any) -> None:
    decode(msgpack.encode(value))


@given(st.lists(NEARLY_EVENTS, max_size=6), st.booleans())
def test_each_nearly_event_is_kept_or_counted_by_itself(events: list[Any], in_map: bool) -> None:
    decoded = decode(map_batch(*events) if in_map else batch(*events))
    assert decoded is not None
    assert len(decoded.events) + sum(decoded.dropped.values()) == len(events)


@given(st.lists(GOOD_EVENTS, min_size=1, max_size=5), st.data())
def test_mutated_batches_are_survived(events: list[Any], data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(list(SHAPES.values())))
    payload = bytearray(batch(*map(shape, events)))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    decode(bytes(payload))


@given(st.lists(GOOD_EVENTS, max_size=5), NEARLY_EVENTS, st.integers(0, 5))
def test_good_events_are_the_same_in_both_encodings_whatever_stands_among_them(
    events: list[Any], other: Any, position: int
) -> None:
    position = min(position, len(events))
    answers = []
    for shape in (as_array, as_map):
        encoded = [shape(event) for event in events]
        clean = decode(batch(*encoded))
        assert clean is not None
        assert clean.dropped == {}
        encoded.insert(position, other)
        mixed = decode(batch(*encoded))
        assert mixed is not None
        kept = [fields_of(event) for event in mixed.events]
        answers.append([fields_of(event) for event in clean.events])
        if mixed.dropped:
            assert kept == answers[-1]
        else:
            assert [*kept[:position], *kept[position + 1 :]] == answers[-1]
    assert answers[0] == answers[1]


def fields_of(event: Any) -> list[Any]:
    names = STORED if isinstance(event, BlockStored) else REMOVED if isinstance(event, BlockRemoved) else ()
    values = [getattr(event, name) for name in names]
    return [
        [one % 2**64 for one in value] if name == "block_hashes" else value
        for name, value in zip(names, values, strict=True)
    ]


def test_memory_is_in_proportion_to_the_bytes() -> None:
    """An empty array is a byte on the wire, and some 60 in memory: nothing may take much more than that."""
    for filler in (b"\x90", b"\x80", b"\xc0", b"\x91\x90", b"\xa0"):
        payload = b"\x92\x01\xdd" + (50_000 // len(filler)).to_bytes(4, "big") + filler * (50_000 // len(filler))
        tracemalloc.start()
        decode(payload)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 256 * len(payload)
