"""What engines send is decoded in every encoding and build, and what they should not send harms only itself."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import msgpack

from inferencecache.wire.events import (
    MALFORMED,
    UNKNOWN_TYPE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventDecoder,
    UndecodableBatch,
)
from tests.unit.wire.encodings import SHAPES, as_array, as_map, batch, cleared, map_batch, removed, stored

ARRAYS = (
    "93cb3ff80000000000009396ab426c6f636b53746f726564920a0bc0940001020302c092ac426c6f636b52656d6f76656491"
    "0491b0416c6c426c6f636b73436c656172656400"
)
MAPS = (
    "93cb3ff8000000000000928aa474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573910ab1706172656e745f626c6f63"
    "6b5f68617368c0a9746f6b656e5f696473920001aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72"
    "615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def decode(payload: bytes) -> EventBatch:
    return EventDecoder().decode(payload)


def only(payload: bytes) -> Any:
    """The one event of a batch from which nothing was dropped."""
    decoded = decode(payload)
    assert decoded.dropped == {}
    (event,) = decoded.events
    return event


def kind_of(event: Any) -> type:
    (kind,) = (kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared) if isinstance(event, kind))
    return kind


def test_the_published_array_sample_is_decoded() -> None:
    decoded = decode(bytes.fromhex(ARRAYS))
    first, second, third = decoded.events
    assert (decoded.ts, decoded.data_parallel_rank, decoded.dropped) == (1.5, 0, {})
    assert isinstance(first, BlockStored)
    assert (first.block_hashes, first.parent_block_hash, first.token_ids) == ([10, 11], None, [0, 1, 2, 3])
    assert (first.block_size, first.lora_id, first.medium) == (2, None, None)
    assert isinstance(second, BlockRemoved)
    assert second.block_hashes == [4]
    assert isinstance(third, AllBlocksCleared)


def test_the_published_map_sample_is_decoded() -> None:
    decoded = decode(bytes.fromhex(MAPS))
    first, second = decoded.events
    assert (decoded.ts, decoded.data_parallel_rank, decoded.dropped) == (1.5, 0, {})
    assert isinstance(first, BlockStored)
    assert (first.block_hashes, first.parent_block_hash, first.token_ids) == ([10], None, [0, 1])
    assert (first.block_size, first.medium, first.extra_keys, first.group_idx) == (2, "GPU", [None], 0)
    assert isinstance(second, AllBlocksCleared)


@SHAPE
def test_every_field_arrives_in_both_encodings(shape: Any) -> None:
    fields = {
        "parent_block_hash": 9,
        "lora_id": 3,
        "medium": "CPU",
        "lora_name": "sql",
        "extra_keys": [["sql"], None],
        "group_idx": 1,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": 128,
    }
    event = only(batch(shape(stored([1, 2], [5, 6, 7, 8], **fields))))
    assert isinstance(event, BlockStored)
    assert {name: getattr(event, name) for name in fields} == fields
    event = only(batch(shape(removed([1], medium="CPU", group_idx=1))))
    assert isinstance(event, BlockRemoved)
    assert (event.block_hashes, event.medium, event.group_idx) == ([1], "CPU", 1)


@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 10, 12])
def test_an_array_of_every_builds_length_is_decoded(length: int) -> None:
    whole = stored(
        [1], [5, 6], lora_id=None, medium="GPU", lora_name=None, extra_keys=[None], group_idx=0,
        kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    event = only(batch(as_array(whole, length)))
    assert (event.block_hashes, event.token_ids) == ([1], [5, 6])
    assert event.medium == ("GPU" if length > 6 else None)
    assert event.kv_cache_spec_kind == ("full_attention" if length > 10 else None)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_removal_of_every_builds_length_is_decoded(length: int) -> None:
    assert only(batch(as_array(removed([1, 2], medium="GPU", group_idx=0), length))).block_hashes == [1, 2]


def test_fields_that_only_maps_have_are_decoded() -> None:
    event = only(batch(as_map(stored([1], [5, 6], locality="REMOTE", cache_salt="s", ownership="x", session_id="y"))))
    assert (event.locality, event.cache_salt) == ("REMOTE", "s")
    assert only(batch(as_map(removed([1], locality="REMOTE", ownership="x")))).locality == "REMOTE"
    lookahead = {**as_map(stored([1], [5, 6])), "lookahead_token_ids": [[1, 2], [3]]}
    assert only(batch(lookahead)).block_hashes == [1]


def test_the_salt_that_a_build_sends_in_place_of_the_adapters_name_is_a_salt() -> None:
    event = only(batch(["BlockStored", [1], None, [5, 6], 2, None, "GPU", {"cache_salt": "s"}]))
    assert (event.lora_name, event.cache_salt) == (None, "s")


@pytest.mark.parametrize("length", [12, 13, 14, 20])
def test_what_follows_the_known_positions_is_ignored(length: int) -> None:
    event = [*as_array(stored([1], [5, 6])), *range(length)][:length]
    assert only(batch(event)).block_hashes == [1]
    assert only(batch([*as_array(removed([1])), *range(9)])).block_hashes == [1]
    assert isinstance(only(batch(["AllBlocksCleared", 1, None])), AllBlocksCleared)


def test_what_follows_the_known_positions_is_no_field_of_the_maps() -> None:
    full = ["BlockStored", [1], None, [5, 6], 2, None, "GPU", None, None, 0, "full_attention", None]
    for spelling in ([1], [DIGEST]):
        full[1] = spelling
        event = only(batch([*full, "REMOTE", "salt"]))
        assert (event.medium, event.locality, event.cache_salt) == ("GPU", None, None)
    assert only(batch(["BlockRemoved", [1], "GPU", 0, "REMOTE"])).locality is None


def test_token_pairs_of_speculative_decoding_are_read_as_the_tokens_that_they_begin_with() -> None:
    assert only(batch(as_array(stored([1], [[5, 6], [6, 7]])))).token_ids == [5, 6]


@SHAPE
@pytest.mark.parametrize("tokens", [None, []])
@pytest.mark.parametrize("block_size", [0, 16])
def test_an_event_may_have_no_tokens(shape: Any, tokens: list[int] | None, block_size: int) -> None:
    event = only(batch(shape(stored([1], tokens, block_size))))
    assert not event.token_ids
    assert event.block_size == block_size


DIGEST = bytes(range(32))


@SHAPE
@pytest.mark.parametrize(
    ("sent", "same"),
    [
        pytest.param(-1, 2**64 - 1, id="signed"),
        pytest.param(-(2**63), 2**63, id="lowest"),
        pytest.param(2**64 - 1, -1, id="highest"),
        pytest.param(DIGEST, int.from_bytes(DIGEST[-8:], "big"), id="digest"),
        pytest.param((7).to_bytes(16, "big"), 7, id="short digest"),
        pytest.param(b"\x07", 7, id="byte"),
    ],
)
def test_names_of_one_block_are_equal_modulo_2_to_the_64(shape: Any, sent: Any, same: int) -> None:
    event = only(batch(shape(stored([sent], [5, 6], parent_block_hash=sent))))
    assert (event.block_hashes[0] - same) % 2**64 == 0
    assert (event.parent_block_hash - same) % 2**64 == 0
    assert (only(batch(shape(removed([sent])))).block_hashes[0] - same) % 2**64 == 0


def test_textual_hashes_are_told_apart_by_all_of_their_text() -> None:
    event = only(batch(as_array(stored(["aa-12345678", "bb-12345678"], [5, 6, 7, 8]))))
    assert len(set(event.block_hashes)) == 2
    assert only(batch(as_array(removed(["bb-12345678"])))).block_hashes == event.block_hashes[1:]


# Spec 08 §5 by the event instead of by the batch (decision D1).

BAD: list[tuple[str, Any, str]] = [
    ("nil", None, MALFORMED),
    ("text", "BlockStored", MALFORMED),
    ("number", 7, MALFORMED),
    ("empty array", [], MALFORMED),
    ("empty map", {}, MALFORMED),
    ("tag is no text", [7, [1]], MALFORMED),
    ("tag is an array", [[], [1]], MALFORMED),
    ("map's tag is no text", {"type": 7}, MALFORMED),
    ("too short", ["BlockStored", [1], None, [5, 6]], MALFORMED),
    ("map lacks the parent", {"type": "BlockStored", "block_hashes": [], "token_ids": [], "block_size": 1}, MALFORMED),
    ("removal without hashes", ["BlockRemoved"], MALFORMED),
    ("unknown tag", ["BlockMoved", [1]], UNKNOWN_TYPE),
    ("unknown tag in a map", {"type": "BlockMoved"}, UNKNOWN_TYPE),
]  # fmt: skip

FIELDS: list[tuple[str, Any]] = [
    *(("block_hashes", value) for value in (None, 1, [None], [True], [1.0], [[1]], [1, None])),
    *(("parent_block_hash", value) for value in (True, 1.0, [1], {})),
    *(("token_ids", value) for value in (7, [-1], [2**32], [True], ["5"], [5, [6, 7]], [[5], 6.0], [[], [5]])),
    *(("block_size", value) for value in (-1, 2.0, 2**31, None, True, "2")),
    *(("lora_id", value) for value in (True, "1", [], 2**63, 1.0)),
    *(("lora_name", value) for value in (1, [], {}, {"other": "s"}, b"sql")),
    *(("medium", value) for value in (1, b"GPU", [])),
    *(("extra_keys", value) for value in ("s", [1], {"0": "s"})),
    *(("group_idx", value) for value in (-1, "0", True, 2**20)),
    *(("kv_cache_spec_kind", value) for value in (1, [])),
]


@pytest.mark.parametrize(("event", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_is_no_event_drops_itself_and_is_counted(event: Any, reason: str) -> None:
    for build in (batch, map_batch):
        decoded = decode(build(as_array(stored([1], [5, 6])), event, as_array(removed([2]))))
        assert [kept.block_hashes for kept in decoded.events if not isinstance(kept, AllBlocksCleared)] == [[1], [2]]
        assert decoded.dropped == {reason: 1}


@SHAPE
@pytest.mark.parametrize(("field", "value"), FIELDS, ids=lambda part: repr(part))
def test_an_unreadable_field_drops_its_event_under_the_fields_name(shape: Any, field: str, value: Any) -> None:
    event = {**stored([3], [5, 6]), field: value}
    bad = {**as_map(event), field: value} if shape is as_map else as_array(event)
    decoded = decode(batch(shape(stored([1], [5, 6])), bad, bad, shape(cleared())))
    assert [kind_of(kept) for kept in decoded.events] == [BlockStored, AllBlocksCleared]
    assert decoded.dropped == {field: 2}


def test_an_adapter_that_cannot_be_read_is_never_taken_for_the_base_model() -> None:
    for value in (True, "1", [1], 2**63):
        assert decode(batch(["BlockStored", [1], None, [5, 6], 2, value])).events == []


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(msgpack.encode("batch"), id="no array"),
        pytest.param(msgpack.encode([1.5]), id="too short"),
        pytest.param(msgpack.encode([]), id="empty"),
        pytest.param(msgpack.encode([None, [], 0]), id="nil ts"),
        pytest.param(msgpack.encode(["now", [], 0]), id="textual ts"),
        pytest.param(msgpack.encode([1.5, None, 0]), id="nil events"),
        pytest.param(msgpack.encode([1.5, {}, 0]), id="events are a map"),
        pytest.param(msgpack.encode([1.5, [], "0"]), id="textual rank"),
        pytest.param(msgpack.encode([1.5, [], -1]), id="negative rank"),
        pytest.param(msgpack.encode({"ts": 1.5}), id="map without events"),
        pytest.param(msgpack.encode({"events": []}), id="map without ts"),
        pytest.param(bytes.fromhex(ARRAYS)[:-1], id="truncated"),
        pytest.param(bytes.fromhex(ARRAYS) + b"\x00", id="something behind"),
        pytest.param(b"\x93\xcb?\xf8\0\0\0\0\0\0" + b"\x91" * 100_000 + b"\x00\x00", id="nested too deeply"),
        pytest.param(b"\x92\x01\xdd\xff\xff\xff\xff", id="array of four billion that is not there"),
    ],
)
def test_an_unreadable_envelope_fails_with_the_documented_error(payload: bytes) -> None:
    decoder = EventDecoder()
    with pytest.raises(UndecodableBatch):
        decoder.decode(payload)
    assert len(decoder.decode(bytes.fromhex(ARRAYS)).events) == 3


@SHAPE
def test_both_envelopes_say_the_same(shape: Any) -> None:
    events = [shape(stored([1], [5, 6])), shape(removed([2])), shape(cleared())]
    expected = decode(batch(*events, rank=3))
    assert expected.data_parallel_rank == 3
    assert decode(map_batch(*events, data_parallel_rank=3)) == expected
    assert decode(map_batch(*events, attn_dp_rank=3)) == expected


def test_a_batch_may_lack_the_rank_and_have_more_behind_it() -> None:
    assert decode(msgpack.encode([1, []])).data_parallel_rank is None
    assert decode(map_batch()).data_parallel_rank is None
    assert decode(msgpack.encode([1, [], 0, "more"])).data_parallel_rank == 0


def test_a_batch_may_mix_the_encodings_and_an_engine_may_change_them() -> None:
    decoder = EventDecoder()
    for _ in range(2):
        mixed = decoder.decode(batch(as_array(stored([1], [5, 6])), as_map(removed([1])), as_array(cleared())))
        assert mixed.dropped == {}
        assert [kind_of(event) for event in mixed.events] == [BlockStored, BlockRemoved, AllBlocksCleared]
        for shape in (as_map, as_array):
            assert decoder.decode(batch(shape(stored([7], [5, 6])))).dropped == {}


@pytest.mark.parametrize(
    ("ts", "microseconds"),
    [
        (1.5, 1_500_000),
        (1700000000, 1_700_000_000_000_000),
        (0.0000019, 1),
        (0, 0),
        (-1.0, 0),
        (float("nan"), 0),
        (float("inf"), 0),
        (1e300, 0),
    ],
)
def test_a_time_is_whole_microseconds_and_none_is_zero(ts: float, microseconds: int) -> None:
    assert decode(batch(ts=ts)).timestamp_us == microseconds


@SHAPE
def test_builds_that_change_their_spelling_from_batch_to_batch_are_read_all_the_same(shape: Any) -> None:
    decoder = EventDecoder()
    integers = stored([1, 2], [7, 8], 1, parent_block_hash=3)
    digests = integers | {"block_hashes": [bytes(31) + b"\1", 2], "parent_block_hash": bytes(31) + b"\3"}
    pairs = integers | {"token_ids": [[7, 8], [8, 9]]}
    both = digests | {"token_ids": [[7, 8], 8]}
    for spelled in (integers, digests, pairs, both, digests, integers, pairs, pairs, integers):
        decoded = decoder.decode(batch(shape(spelled), shape(removed(spelled["block_hashes"])), shape(cleared())))
        first, second, third = decoded.events
        assert isinstance(first, BlockStored)
        assert isinstance(second, BlockRemoved)
        assert isinstance(third, AllBlocksCleared)
        assert (first.block_hashes, first.parent_block_hash, first.token_ids) == ([1, 2], 3, [7, 8])
        assert second.block_hashes == [1, 2]
        assert decoded.dropped == {}
