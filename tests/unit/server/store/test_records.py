from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.store.records import KINDS, Batch, Record, UnreadableEntry, decode, encode

records = st.builds(Record, kind=st.sampled_from(sorted(KINDS)), body=st.binary(max_size=50), name=st.text(max_size=5))
batches = st.builds(
    Batch, origin=st.text(max_size=8), sequence=st.integers(1, 2**62), records=st.lists(records, min_size=1)
)


def as_the_store_returns(fields: dict[str, str | bytes | int]) -> dict[bytes, bytes]:
    return {name.encode(): value if isinstance(value, bytes) else str(value).encode() for name, value in fields.items()}


@given(batches)
def test_a_batch_comes_back_as_it_was_sent(batch: Batch) -> None:
    assert decode(as_the_store_returns(encode(batch))) == batch


@given(st.dictionaries(st.sampled_from([b"origin", b"sequence", b"records", b"x"]), st.binary(max_size=20)))
def test_anything_else_is_unreadable_and_nothing_worse(fields: dict[bytes, bytes]) -> None:
    try:
        batch = decode(fields)
    except UnreadableEntry:
        return
    assert decode(as_the_store_returns(encode(batch))) == batch


def test_a_kind_of_a_newer_server_can_be_read() -> None:
    batch = Batch("other", 7, [Record("from-the-future", b"x")])
    assert decode(as_the_store_returns(encode(batch))) == batch


@pytest.mark.parametrize("missing", ["origin", "sequence", "records"])
def test_no_field_may_be_missing(missing: str) -> None:
    fields = as_the_store_returns(encode(Batch("a", 1, [Record("event", b"")])))
    del fields[missing.encode()]
    with pytest.raises(UnreadableEntry, match=missing):
        decode(fields)
