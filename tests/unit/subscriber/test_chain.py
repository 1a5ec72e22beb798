"""What the index is told of an engine's events: prefixes, tiers, partitions, and nothing that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from inferencecache.subscriber.chain import (
    BLOCK_COUNT,
    PARTIAL_GROUP,
    UNKNOWN_BLOCK,
    UNKNOWN_PARENT,
    UNMAPPED_ADAPTER,
    Add,
    Adds,
    Clear,
    Delta,
    Evict,
    Renew,
)
from inferencecache.subscriber.chain import Chain as BareChain
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from inferencecache.wire.fingerprint import prefix_hashes
from tests.unit.subscriber.engine import one_by_one

T1, T2, T3 = Tier
SIZE = 2
TOKENS = range(100, 140)
PREFIXES = prefix_hashes(TOKENS, SIZE)


class Chain(BareChain):
    """With additions one by one, however they are told together."""

    def apply(self, events: Sequence[Event], rank: int = 0, timestamp_us: int = 0) -> list[Delta]:
        return one_by_one(super().apply(events, rank, timestamp_us))


def stored(hashes: Sequence[int], first: int = 0, parent: int | None = None, **fields: Any) -> BlockStored:
    """Blocks `first`, `first + 1`, … of the sequence TOKENS."""
    tokens = list(TOKENS[first * SIZE : (first + len(hashes)) * SIZE])
    return BlockStored(**{  # type: ignore[arg-type]
        "block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": tokens, "block_size": SIZE, **fields
    })  # fmt: skip


def tokenless(*hashes: int, medium: str | None = "CPU", **fields: Any) -> BlockStored:
    return BlockStored(list(hashes), None, None, 0, medium=medium, **fields)


def removed(*hashes: int, **fields: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), **fields)


def add(block: int, tier: Tier = T1, adapter: str = "") -> Add:
    return Add(PREFIXES[block], (block + 1) * SIZE, adapter, tier)


def evict(block: int, adapter: str = "") -> Evict:
    return Evict(PREFIXES[block], adapter)


def test_blocks_of_one_kind_that_continue_each_other_are_told_together() -> None:
    events = [stored([1]), stored([2], 1, parent=1), stored([3], 2, parent=2, medium="CPU")]
    assert BareChain().apply(events) == [Adds(PREFIXES[:2], range(SIZE, 3 * SIZE, SIZE), "", T1), add(2, T2)]


def test_events_that_continue_each_other_give_the_same_keys_as_the_whole_sequence() -> None:
    chain = Chain()
    assert chain.apply([stored([1, 2])]) == [add(0), add(1)]
    assert chain.apply([stored([3], 2, parent=2), stored([4, 5], 3, parent=3)]) == [add(2), add(3), add(4)]
    assert chain.alive == 5
    assert chain.dropped == {}


def test_hashes_are_equal_modulo_2_to_the_64() -> None:
    chain = Chain()
    chain.apply([stored([-1])])
    assert chain.apply([stored([2**63], 1, parent=2**64 - 1)]) == [add(1)]
    assert chain.apply([removed(-(2**63), 2**64 - 1)]) == [evict(1), evict(0)]


def test_a_removal_tells_the_key_once_and_forgets_the_block() -> None:
    chain = Chain()
    chain.apply([stored([1, 2])])
    assert chain.apply([removed(2, 9)]) == [evict(1)]
    assert chain.apply([removed(2)]) == []
    assert chain.alive == 1


def test_store_and_removal_of_one_batch_are_told_in_order() -> None:
    assert Chain().apply([stored([1]), removed(1), stored([1])]) == [add(0), evict(0), add(0)]


def test_a_block_that_is_announced_again_is_added_again_and_removed_once() -> None:
    chain = Chain()
    assert chain.apply([stored([1]), stored([1])]) == [add(0), add(0)]
    assert chain.apply([removed(1)]) == [evict(0)]
    assert chain.alive == 0


def test_an_unknown_parent_gives_no_key_and_is_counted() -> None:
    chain = Chain()
    assert chain.apply([stored([2], 1, parent=1), stored([3], 2, parent=2)]) == []
    assert (chain.alive, chain.dropped) == (0, {UNKNOWN_PARENT: 2})
    assert chain.apply([stored([1]), stored([2], 1, parent=1)]) == [add(0), add(1)]


def test_a_known_block_after_an_unknown_parent_is_known_nevertheless() -> None:
    chain = Chain()
    chain.apply([stored([1]), removed(1)])
    assert chain.apply([stored([1, 2], 0, parent=99, medium="CPU")]) == [add(0, T2)]
    assert chain.dropped == {UNKNOWN_PARENT: 1}


def test_a_removed_block_may_still_be_continued_until_many_others_were_removed() -> None:
    chain = Chain(remembered=2)
    chain.apply([stored([1, 2, 3, 4, 5, 6]), removed(1)])
    assert chain.apply([stored([7], 1, parent=1)]) == [add(1)]
    chain.apply([removed(3, 4, 5, 6)])
    assert chain.apply([stored([8], 1, parent=1)]) == []
    assert chain.dropped == {UNKNOWN_PARENT: 1}


def test_a_clear_forgets_everything_of_the_rank_and_is_always_told() -> None:
    chain = Chain()
    assert chain.apply([AllBlocksCleared()]) == [Clear()]
    chain.apply([stored([1]), stored([1], medium="CPU"), removed(1)])
    assert chain.apply([AllBlocksCleared()]) == [Clear()]
    assert chain.alive == 0
    assert chain.apply([stored([2], 1, parent=1)]) == []
    assert chain.apply([removed(1)]) == []


def test_a_batch_may_go_on_after_a_clear() -> None:
    chain = Chain()
    assert chain.apply([stored([1]), AllBlocksCleared(), stored([1])]) == [add(0), Clear(), add(0)]
    assert chain.alive == 1


@pytest.mark.parametrize(
    ("hashes", "tokens", "block_size"),
    [([1, 2], [5, 6], 2), ([1], [5], 2), ([1], [5, 6, 7, 8], 2), ([1], [5, 6], 0), ([], [5, 6], 2)],
)
def test_blocks_and_tokens_that_do_not_match_are_left_out_and_counted(
    hashes: list[int], tokens: list[int], block_size: int
) -> None:
    chain = Chain()
    assert chain.apply([BlockStored(hashes, None, tokens, block_size)]) == []
    assert (chain.alive, chain.dropped) == (0, {BLOCK_COUNT: 1})


def test_tokens_beyond_the_last_full_block_are_ignored() -> None:
    (only,) = Chain().apply([BlockStored([1], None, [*TOKENS[:2], 7], 2)])
    assert only == add(0)


# Media and tiers.


@pytest.mark.parametrize(("medium", "tier"), [(None, T1), ("GPU", T1), ("CPU", T2), ("CPU_PINNED", T2), ("DISK", T3)])
def test_the_medium_gives_the_tier(medium: str | None, tier: Tier) -> None:
    assert Chain().apply([stored([1], medium=medium)]) == [add(0, tier)]


def test_a_removal_on_one_medium_leaves_the_others() -> None:
    chain = Chain()
    assert chain.apply([stored([1]), tokenless(1), stored([1], medium="EXTERNAL")]) == [add(0)]
    assert chain.apply([removed(1, medium="GPU")]) == [add(0, T2)]
    assert chain.apply([removed(1, medium="CPU")]) == [add(0, T3)]
    assert chain.apply([removed(1, medium="CPU")]) == []
    assert chain.apply([stored([1])]) == [add(0)]
    assert chain.apply([removed(1, medium="EXTERNAL")]) == []
    assert chain.apply([removed(1)]) == [evict(0)]
    assert chain.alive == 0


def test_a_copy_elsewhere_on_the_network_is_the_slowest_tier() -> None:
    chain = Chain()
    assert chain.apply([stored([1], medium="CPU", locality="REMOTE")]) == [add(0, T3)]
    assert chain.apply([removed(1, medium="CPU")]) == []
    assert chain.apply([removed(1, medium="CPU", locality="REMOTE")]) == [evict(0)]


def test_announcements_of_overlapping_offloaded_chunks_are_counted() -> None:
    chain = Chain()
    chain.apply([stored([1, 2], medium="CPU"), stored([1, 2, 3], medium="CPU")])
    assert chain.apply([removed(1, 2, medium="CPU")]) == []
    assert chain.apply([removed(1, 2, 3, medium="CPU")]) == [evict(0), evict(1), evict(2)]


def test_a_copy_without_tokens_is_joined_to_the_block_by_its_hash() -> None:
    chain = Chain()
    chain.apply([stored([1]), removed(1)])
    assert chain.apply([tokenless(1)]) == [add(0, T2)]
    assert chain.apply([tokenless(9)]) == []
    assert chain.dropped == {UNKNOWN_BLOCK: 1}


def test_chunks_of_an_offload_are_a_chain_of_their_own() -> None:
    chunk = prefix_hashes(TOKENS, 8)
    chain = Chain()
    chain.apply([stored([1, 2, 3, 4])])
    events = [BlockStored([77], None, list(TOKENS[:8]), 8, medium="cpu")]
    assert chain.apply(events) == [Add(chunk[0], 8, "", T2)]
    assert chain.apply([BlockStored([78], 77, list(TOKENS[8:16]), 8, medium="cpu")]) == [Add(chunk[1], 16, "", T2)]
    assert chain.apply([removed(77, medium="CPU")]) == [Evict(chunk[0], "")]


# An offload tier that does not tell (`--ignore-block-removed`).


def test_with_an_offload_tier_what_leaves_the_gpu_becomes_t2_and_is_forgotten() -> None:
    chain = Chain(offloads=True)
    told = chain.apply([stored([1]), removed(1), stored([1])])
    assert told == [add(0), add(0, T2), add(0)]
    assert chain.apply([removed(1), removed(1)]) == [add(0, T2)]
    assert chain.alive == 0
    assert list(chain.holds()) == []


def test_with_an_offload_tier_a_known_copy_decides_and_its_removal_ends_the_hold() -> None:
    chain = Chain(offloads=True)
    chain.apply([stored([1], medium="CPU"), stored([1])])
    assert chain.apply([removed(1)]) == [add(0, T2)]
    assert chain.apply([removed(1, medium="CPU")]) == [evict(0)]
    chain.apply([stored([1]), stored([1], medium="DISK")])
    assert chain.apply([removed(1)]) == [add(0, T3)]


def test_with_an_offload_tier_a_clear_is_told() -> None:
    chain = Chain(offloads=True)
    assert chain.apply([stored([1]), AllBlocksCleared()]) == [add(0), Clear()]


# Adapters.


def test_equal_tokens_of_two_adapters_have_equal_keys_in_two_partitions() -> None:
    chain = Chain(adapter_names={1: "sql", 2: "chat"})
    events = [stored([1], lora_id=1), stored([2], lora_id=2), stored([3], lora_name="wire"), stored([4])]
    assert chain.apply(events) == [add(0, T1, name) for name in ("sql", "chat", "wire", "")]
    assert chain.apply([removed(2)]) == [evict(0, "chat")]
    # To the index, this is an eviction of all adapters' blocks.
    assert chain.apply([removed(4)]) == [evict(0), add(0, T1, "sql"), add(0, T1, "wire")]


def test_an_adapter_without_a_name_is_neither_added_nor_removed() -> None:
    chain = Chain(adapter_names={1: "sql"})
    assert chain.apply([stored([1], lora_id=7), removed(1)]) == []
    assert (chain.alive, chain.dropped) == (0, {UNMAPPED_ADAPTER: 1})


def test_a_copy_without_tokens_stays_in_its_blocks_partition() -> None:
    chain = Chain()
    chain.apply([stored([1], lora_name="sql")])
    assert chain.apply([tokenless(1), removed(1)]) == [add(0, T2, "sql")]


# Salts, images, prompt embeddings.

OTHER_KEYS = [
    pytest.param({"extra_keys": [["salt"]]}, id="salt"),
    pytest.param({"extra_keys": [[["image", 0]]]}, id="image"),
    pytest.param({"extra_keys": [[b"digest"]]}, id="embeddings"),
    pytest.param({"extra_keys": [["sql", "salt"]], "lora_name": "sql"}, id="adapter and salt"),
    pytest.param({"extra_keys": [["sql"]]}, id="salt that is an adapter's name elsewhere"),
    pytest.param({"extra_keys": [[None]]}, id="something unnamed"),
    pytest.param({"cache_salt": "salt"}, id="salt of a field of its own"),
    pytest.param({"extra_keys": [None, ["salt"]]}, id="salt beyond the blocks"),
]


@pytest.mark.parametrize("fields", OTHER_KEYS)
def test_a_block_that_tokens_alone_do_not_determine_is_followed_and_never_told(fields: dict[str, Any]) -> None:
    chain = Chain()
    assert chain.apply([stored([1], **fields)]) == []
    assert chain.apply([stored([2, 3], 1, parent=1, extra_keys=[None, None])]) == []
    assert chain.apply([tokenless(1, 2), removed(1, 2, 3), removed(1, 2, medium="CPU")]) == []
    assert (chain.alive, chain.dropped) == (0, {})


def test_blocks_before_an_image_are_plain_and_all_after_it_are_not() -> None:
    chain = Chain()
    assert chain.apply([stored([1, 2, 3], extra_keys=[None, [["image", 0]], None])]) == [add(0)]


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_keys": None},
        {"extra_keys": [None]},
        {"extra_keys": [[]]},
        {"cache_salt": ""},
        {"extra_keys": [["sql"], ["sql"]], "lora_name": "sql"},
        {"extra_keys": [[7]], "lora_name": "sql", "lora_id": 7},
    ],
)
def test_an_adapters_name_among_the_keys_is_no_salt(fields: dict[str, Any]) -> None:
    (told,) = Chain().apply([stored([1], **fields)])
    assert told == add(0, T1, fields.get("lora_name", ""))


def test_keys_beyond_an_events_blocks_make_no_salted_block_of_a_later_one_plain() -> None:
    keys = [None, ["salt"]]
    assert Chain().apply([stored([1], extra_keys=keys), stored([2, 3], 1, parent=1, extra_keys=keys)]) == []


@pytest.mark.parametrize("keys", [[["salt"], None, None], [None, [["image", 0]], None]])
@pytest.mark.parametrize("gone", [[], [removed(1, 2, 3)]])
@pytest.mark.parametrize(
    "copies",
    [
        [stored([1, 2, 3], medium="CPU")],
        [stored([1], medium="CPU"), stored([2], 1, parent=1, medium="CPU"), stored([3], 2, parent=2, medium="CPU")],
    ],
)
def test_an_offload_that_tells_no_extra_keys_makes_no_block_plain(
    keys: list[Any], gone: list[Event], copies: list[Event]
) -> None:
    chain = Chain()
    chain.apply([stored([1, 2, 3], extra_keys=keys), *gone])
    plain = keys[0] is None
    assert chain.apply(copies) == ([add(0, T2)] if plain and gone else [])
    assert {held.prefix_hash for held in chain.holds()} == ({PREFIXES[0]} if plain else set())


def test_plain_and_salted_blocks_of_equal_tokens_do_not_touch_each_other() -> None:
    chain = Chain()
    assert chain.apply([stored([1]), stored([2], extra_keys=[["salt"]])]) == [add(0)]
    assert chain.apply([removed(2)]) == []
    assert chain.apply([removed(1)]) == [evict(0)]


# Groups of hybrid models.


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("full_attention", True),
        ("mla_attention", True),
        ("sink_full_attention", True),
        ("sliding_window", False),
        ("sliding_window_mla", False),
        ("mamba", False),
        ("chunked_local_attention", False),
        ("encoder_only_attention", False),
        ("cross_attention", False),
        ("something_new", False),
    ],
)
def test_only_kinds_that_keep_whole_prefixes_are_told(kind: str, whole: bool) -> None:
    chain = Chain()
    assert chain.apply([stored([1], group_idx=1, kv_cache_spec_kind=kind)]) == ([add(0)] if whole else [])
    assert chain.dropped == ({} if whole else {PARTIAL_GROUP: 1})


def test_a_partial_groups_removal_of_the_same_hash_ends_nothing() -> None:
    chain = Chain()
    chain.apply([stored([1], group_idx=0, kv_cache_spec_kind="sliding_window")])
    chain.apply([stored([1], group_idx=1, kv_cache_spec_kind="full_attention")])
    assert chain.apply([removed(1, group_idx=0)]) == []
    assert chain.apply([removed(1, group_idx=1)]) == [evict(0)]


@pytest.mark.parametrize("kind", [None, "unknown"])
def test_builds_that_do_not_tell_the_kind_are_taken_to_keep_prefixes_in_group_0(kind: str | None) -> None:
    chain = Chain()
    fields = {"kv_cache_spec_kind": kind}
    assert chain.apply([stored([1], group_idx=0, **fields), stored([1], group_idx=1, **fields)]) == [add(0)]
    assert chain.apply([removed(1, group_idx=1)]) == []
    assert chain.apply([removed(1, group_idx=0)]) == [evict(0)]


# Ranks.


def test_a_block_of_two_ranks_is_held_until_both_dropped_it() -> None:
    chain = Chain()
    assert chain.apply([stored([1])], rank=0) == [add(0)]
    assert chain.apply([stored([7])], rank=1) == [add(0)]
    assert chain.apply([removed(1)], rank=0) == []
    assert chain.apply([removed(1)], rank=1) == []
    assert chain.apply([removed(7)], rank=1) == [evict(0)]


def test_ranks_do_not_know_each_others_hashes() -> None:
    chain = Chain()
    chain.apply([stored([1])], rank=0)
    assert chain.apply([stored([2], 1, parent=1)], rank=1) == []
    assert chain.dropped == {UNKNOWN_PARENT: 1}


def test_the_tier_is_the_best_of_all_ranks() -> None:
    chain = Chain()
    chain.apply([stored([1])], rank=0)
    assert chain.apply([stored([1], medium="CPU")], rank=1) == []
    assert chain.apply([removed(1)], rank=0) == [add(0, T2)]


def test_clearing_one_rank_leaves_what_the_others_hold() -> None:
    chain = Chain()
    chain.apply([stored([1, 2])], rank=0)
    chain.apply([stored([5])], rank=1)
    assert chain.apply([AllBlocksCleared()], rank=0) == [Renew()]
    assert list(chain.holds()) == [add(0)]
    assert chain.apply([AllBlocksCleared()], rank=0) == []
    assert chain.clear(1) == [Clear()]


def test_with_an_offload_tier_clearing_one_rank_leaves_what_left_the_gpu_of_the_others() -> None:
    chain = Chain(offloads=True)
    for rank, events in ((0, [stored([1]), removed(1)]), (1, [stored([2, 3]), removed(3)])):
        chain.apply(events, rank, timestamp_us=7 + rank)
    assert chain.apply([AllBlocksCleared()], rank=0) == [Renew()]
    assert (list(chain.holds()), list(chain.moved())) == ([add(0)], [(add(1, T2), 8)])
    chain.apply([removed(2)], rank=1, timestamp_us=9)
    assert chain.apply([AllBlocksCleared()], rank=0) == [], "it had said nothing since"
    chain.apply([stored([1]), removed(1)], rank=0, timestamp_us=10)
    assert chain.clear(0) == [Renew()], "nothing is held, but the index knows what left the GPU"
    assert sorted(since for _, since in chain.moved()) == [8, 9]
    assert chain.clear(1) == [Clear()]


# The same hash with other content.


def test_a_hash_that_is_restated_with_other_content_is_moved() -> None:
    chain = Chain()
    chain.apply([stored([1], medium="CPU")])
    assert chain.apply([stored([1], lora_name="sql")]) == [evict(0), add(0, T1, "sql")]
    assert chain.alive == 1
    assert chain.apply([removed(1)]) == [evict(0, "sql")]


def test_a_hash_that_comes_repeatedly_in_one_event_stands_for_the_last_of_its_blocks() -> None:
    chain = Chain()
    assert chain.apply([stored([1, 2, 1, 1])]) == [add(0), add(1), evict(0), add(2), evict(2), add(3)]
    assert chain.alive == 2
    assert chain.apply([removed(1)]) == [evict(3)]


def test_two_hashes_of_one_prefix_are_one_hold() -> None:
    chain = Chain()
    assert chain.apply([stored([1]), stored([2]), removed(1)]) == [add(0), add(0)]
    assert chain.apply([removed(2)]) == [evict(0)]


# What it keeps.


def test_all_holds_can_be_read_for_an_index_that_has_to_be_rebuilt() -> None:
    chain = Chain()
    chain.apply([stored([1, 2]), tokenless(2), removed(2), stored([3], lora_name="sql"), stored([4], cache_salt="s")])
    assert sorted(chain.holds(), key=lambda hold: (hold.adapter, hold.token_count)) == [
        add(0),
        add(1, T2),
        add(0, T1, "sql"),
    ]


def test_holds_that_change_while_they_are_read_are_noticed() -> None:
    chain = Chain()
    chain.apply([stored([1, 2])])
    reading = chain.holds()
    next(reading)
    chain.apply([removed(1)])
    with pytest.raises(RuntimeError, match="changed"):
        next(reading)


@pytest.mark.parametrize("offloads", [False, True])
def test_nothing_accumulates_over_many_blocks_stored_and_removed(offloads: bool) -> None:
    chain = Chain(offloads=offloads, remembered=50)
    for number in range(0, 6000, 3):
        hashes = [number, number + 1, number + 2]
        salt = "salt" if number % 2 else None
        chain.apply([stored(hashes, cache_salt=salt), tokenless(*hashes)])
        chain.apply([removed(*hashes), removed(*hashes, medium="CPU")])
    assert chain.alive == 0
    assert chain.entries <= 2 * 50


def test_what_becomes_known_of_a_group_counts_for_events_like_those_before() -> None:
    chain = Chain()
    window = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    assert chain.apply([stored([1], group_idx=0), stored([2], 1, parent=1, **window)]) == [add(0)]
    assert chain.apply([stored([3], group_idx=0)]) == []
    assert chain.dropped == {PARTIAL_GROUP: 2}


def test_a_block_that_continues_the_newest_one_is_known_after_that_was_removed() -> None:
    chain = Chain(remembered=1)
    chain.apply([stored([1, 2])])
    assert chain.apply([removed(2), stored([3], 2, parent=2)]) == [evict(1), add(2)]
    assert chain.apply([AllBlocksCleared(), stored([4], 3, parent=3)]) == [Clear()]
    assert chain.dropped == {UNKNOWN_PARENT: 1}


def test_what_left_the_gpu_is_known_with_its_time_until_it_comes_back_or_is_told_to_be_gone() -> None:
    chain = Chain(offloads=True)
    chain.apply([stored([1, 2, 3])], timestamp_us=5)
    chain.apply([removed(2)], timestamp_us=7)
    chain.apply([removed(3)], timestamp_us=9)
    assert list(chain.moved()) == [(add(1, T2), 7), (add(2, T2), 9)]
    chain.apply([stored([2], 1, parent=1)], timestamp_us=11)
    assert list(chain.moved()) == [(add(2, T2), 9)]
    chain.apply([tokenless(3), removed(3, medium="CPU"), removed(2)], timestamp_us=13)
    assert list(chain.moved()) == [(add(1, T2), 13)]
    chain.apply([AllBlocksCleared()])
    assert list(chain.moved()) == []


def test_without_an_offload_tier_nothing_is_moved() -> None:
    chain = Chain()
    chain.apply([stored([1]), removed(1)], timestamp_us=5)
    assert list(chain.moved()) == []


def test_a_hash_that_comes_several_times_in_one_event_stands_for_the_last_block() -> None:
    chain = Chain()
    assert chain.apply([stored([1, 1, 1, 2])]) == [add(0), evict(0), add(1), evict(1), add(2), add(3)]
    assert chain.apply([removed(1, 2)]) == [evict(2), evict(3)]
    assert (chain.alive, list(chain.holds())) == (0, [])
