"""Messages as JSON: what is written is read again, and what cannot be read is named."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.json_messages import JsonError, load, read, schemas, write
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

_INT32 = st.integers(-(2**31), 2**31 - 1)
_TEXT = st.text(max_size=8).filter(lambda text: text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in text))
_ENTRIES = st.builds(
    pb.PrefixEntry,
    prefix_hash=st.binary(max_size=9),
    token_count=_INT32,
    block_hashes=st.lists(st.binary(max_size=9), max_size=4),
    block_token_counts=st.lists(_INT32, max_size=4),
    tier=st.sampled_from(pb.CacheTier.values()),
    adapter_id=_TEXT,
)
# The digits in which protobuf writes the very largest floats are more than its own parser takes.
_FLOATS = st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from([float("inf"), float("-inf")])
_UPDATES = st.builds(
    pb.CacheStateUpdate,
    replica_id=_TEXT,
    timestamp_us=st.integers(-(2**63), 2**63 - 1),
    prefixes=st.lists(_ENTRIES, max_size=3),
    stats=st.builds(pb.ReplicaStats, hit_rate=_FLOATS, cache_memory_bytes=st.just(2**60)),
)


@given(_UPDATES)
def test_a_message_that_was_written_is_read_as_the_same(update: pb.CacheStateUpdate) -> None:
    assert read(load(write(update)), pb.CacheStateUpdate) == update


def test_defaults_are_written_and_large_integers_are_strings() -> None:
    written = json.loads(write(pb.LookupRouteResponse(lookup_latency_us=2**60)))
    assert written == {
        "replicaScores": [],
        "reasonCode": "",
        "lookupLatencyUs": str(2**60),
        "tokenIds": [],
        "adapterId": "",
    }


@pytest.mark.parametrize("text", ["AQI=", "AQI", "-_-_", "+/+/", ""])
def test_base64_is_read_in_both_alphabets_padded_or_not(text: str) -> None:
    assert isinstance(read({"prefixHash": text}, pb.LookupRouteRequest).prefix_hash, bytes)


@pytest.mark.parametrize("text", ["A", "AQI=A", "A Q I", "é", 7, ["AQI="], {}])
def test_what_is_no_base64_never_becomes_a_hash(text: Any) -> None:
    with pytest.raises(JsonError) as refused:
        read({"prefixHash": text}, pb.LookupRouteRequest)
    assert refused.value.field == "prefixHash"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["modelId", "slo", "blockHashes", "ttftMs", "x"]), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_any_json_value_is_read_or_refused(value: Any) -> None:
    try:
        message = read(value, pb.LookupRouteRequest)
    except JsonError:
        return
    assert isinstance(message, pb.LookupRouteRequest)


@pytest.mark.parametrize("kind", [pb.LookupRouteRequest, pb.CacheStateUpdate, pb.CacheEvent, pb.RenderTemplateRequest])
@pytest.mark.parametrize("value", ["1e400", "-1e400", "1e300", "1.5", "true", r'"\ud800"', r'{"\ud800":""}', '"1e400"'])
def test_any_value_of_any_field_is_read_or_refused(kind: type[Message], value: str) -> None:
    for document in _with_each_field(kind.DESCRIPTOR, value):
        try:
            message = read(load(document.encode()), kind)
        except JsonError:
            continue
        assert read(load(write(message)), kind) == message


def _with_each_field(descriptor: Any, value: str) -> Iterator[str]:
    """Documents of one value, at the place of each field that a message has, those of messages in it included."""
    for field in descriptor.fields:
        values = [value]
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            inner = list(_with_each_field(field.message_type, value))
            values += [f"[{each}]" for each in inner] if field.is_repeated else inner
        yield from (f'{{"{field.camelcase_name}":{each}}}' for each in values)


@given(st.binary(max_size=30))
def test_any_bytes_are_loaded_or_refused(body: bytes) -> None:
    try:
        load(body)
    except JsonError:
        return
    json.loads(body)


def test_null_means_absent() -> None:
    assert read({"modelId": None, "blockHashes": None}, pb.LookupRouteRequest) == pb.LookupRouteRequest()


def test_the_schema_of_a_message_names_every_field_as_json_does() -> None:
    found = schemas(pb.CacheStateUpdate)
    assert set(found) == {"CacheStateUpdate", "PrefixEntry", "ReplicaStats"}
    written = json.loads(write(pb.CacheStateUpdate(stats=pb.ReplicaStats())))
    assert set(found["CacheStateUpdate"]["properties"]) == set(written)


def test_a_name_that_is_no_text_is_no_field() -> None:
    with pytest.raises(JsonError, match="there is no such field"):
        read(load(b'{"\\ud800": 1}'), pb.LookupRouteRequest)


def test_a_name_given_twice_is_found_among_very_many_at_once() -> None:
    names = [f'"n{number}":1' for number in range(100_000)]
    started = time.process_time()
    with pytest.raises(JsonError, match="n99999: given twice"):
        load(("{" + ",".join([*names, names[-1]]) + "}").encode())
    assert time.process_time() - started < 30, "walking all names for each name takes minutes"
