"""The repeated batch is that of spec 08 §12."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.fakeengine.repeated import RepeatedBatch


def test_blocks_are_spread_evenly_and_each_event_continues_the_one_before() -> None:
    events = RepeatedBatch(block_size=2, num_blocks=5, events=3, start_token=10).stored()
    assert [(event.block_hashes, event.parent_block_hash, event.token_ids) for event in events] == [
        ([0xE000, 0xE001], None, [10, 11, 12, 13]),
        ([0xE002, 0xE003], 0xE001, [14, 15, 16, 17]),
        ([0xE004], 0xE003, [18, 19]),
    ]


def test_the_default_expects_the_published_fingerprint() -> None:
    assert list(RepeatedBatch().expectations()) == ["EXPECT prefix_hash[0]=83f90a7debd4f39c token_count=128"]


def test_without_tokens_nothing_is_expected() -> None:
    batch = RepeatedBatch(omit_token_ids=True)
    assert batch.stored()[0].token_ids is None
    assert [line.startswith("EXPECT nothing") for line in batch.expectations()] == [True]


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"block_size": 0}, "--block-size"),
        ({"num_blocks": 0}, "--num-blocks"),
        ({"block_size": 2**12, "num_blocks": 2**12 + 1}, "--num-blocks"),
        ({"start_token": -1}, "--start-token"),
        ({"start_token": 2**32 - 1}, "--start-token"),
        ({"events": 0}, "--events"),
        ({"events": 2}, "--events"),
    ],
)
def test_what_cannot_be_published_is_refused_by_the_flag(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        RepeatedBatch(**fields)


def test_the_greatest_tokens_can_be_published() -> None:
    assert RepeatedBatch(block_size=1, start_token=2**32 - 1).tokens == range(2**32 - 1, 2**32)
