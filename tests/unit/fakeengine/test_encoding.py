"""What the fake engine writes is what engines of either era write, and is read back as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.fakeengine.encoding import Encoding, encode
from inferencecache.wire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventDecoder

_HASHES = st.integers(0, 2**63 - 1)
_NAMES = st.none() | st.sampled_from(["GPU", "CPU"])
EVENTS = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=st.lists(_HASHES, max_size=3),
        parent_block_hash=st.none() | _HASHES,
        token_ids=st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=6),
        block_size=st.integers(0, 100),
        lora_id=st.none() | st.integers(0, 9),
        medium=_NAMES,
        lora_name=st.none() | st.just("sql"),
    ),
    st.builds(BlockRemoved, block_hashes=st.lists(_HASHES, max_size=3), medium=_NAMES),
    st.just(AllBlocksCleared()),
)


@given(st.lists(EVENTS, max_size=4), st.sampled_from(list(Encoding)), st.none() | st.integers(0, 7))
def test_what_is_written_is_read_back(events: list[Any], encoding: Encoding, rank: int | None) -> None:
    batch = EventDecoder().decode(encode(events, encoding, ts=1.5, rank=rank))
    assert [msgspec.structs.asdict(event) for event in batch.events] == [
        msgspec.structs.asdict(event) for event in events
    ]
    assert (batch.ts, batch.data_parallel_rank, batch.dropped) == (1.5, rank, {})


@pytest.mark.parametrize(
    ("event", "encoding", "written"),
    [
        (BlockStored([1], None, [5], 1), Encoding.ARRAY, ["BlockStored", [1], None, [5], 1, None]),
        (BlockStored([1], None, [5], 1, medium="GPU"), Encoding.ARRAY, ["BlockStored", [1], None, [5], 1, None, "GPU"]),
        (
            BlockStored([1], None, [5], 1, medium="GPU"),
            Encoding.MAP,
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": None,
                "token_ids": [5],
                "block_size": 1,
                "lora_id": None,
                "medium": "GPU",
            },
        ),
        (BlockRemoved([1]), Encoding.ARRAY, ["BlockRemoved", [1]]),
        (BlockRemoved([1]), Encoding.MAP, {"type": "BlockRemoved", "block_hashes": [1]}),
        (AllBlocksCleared(), Encoding.ARRAY, ["AllBlocksCleared"]),
        (AllBlocksCleared(), Encoding.MAP, {"type": "AllBlocksCleared"}),
    ],
)
def test_an_event_has_the_shape_of_its_era(event: Any, encoding: Encoding, written: Any) -> None:
    assert msgspec.msgpack.decode(encode([event], encoding)) == [0.0, [written]]
