"""The fake engine's cache behaves as an engine's does: a naive replay of its events gives its content."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferencecache.fakeengine.cache import BlockCache, block_hashes
from inferencecache.wire.events import BlockRemoved, BlockStored

PROMPTS = st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=12), st.sampled_from(["", "sql"])), max_size=30)


@given(PROMPTS, st.integers(1, 8))
def test_following_the_events_gives_what_the_cache_holds(prompts: list[tuple[list[int], str]], capacity: int) -> None:
    cache = BlockCache(2, capacity)
    names: dict[int, tuple[tuple[int, ...], str]] = {}
    for tokens, adapter in prompts:
        for event in cache.compute(tokens, adapter).events:
            if isinstance(event, BlockStored):
                prefix = names[event.parent_block_hash][0] if event.parent_block_hash is not None else ()
                for index, name in enumerate(event.block_hashes):
                    prefix += tuple((event.token_ids or [])[index * 2 : index * 2 + 2])
                    names[name] = (prefix, event.lora_name or "")
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del names[name]
        assert set(names.values()) == set(cache.blocks())
        assert len(cache) <= capacity


def test_a_prompt_hits_what_an_earlier_one_left_and_no_further() -> None:
    cache = BlockCache(2, 100)
    assert cache.compute([1, 2, 3, 4, 5]).hit_tokens == 0
    assert cache.compute([1, 2, 3, 4, 9]).hit_tokens == 4
    assert cache.compute([1, 2, 9, 9]).hit_tokens == 2
    assert cache.compute([1, 2], adapter="sql").hit_tokens == 0


def test_of_one_prompt_the_last_blocks_are_evicted_first() -> None:
    cache = BlockCache(1, 3)
    cache.compute([1, 2, 3])
    removed = cache.compute([9]).events[-1]
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == [block_hashes([1, 2, 3], 1)[2]]


def test_nothing_is_told_when_nothing_changes() -> None:
    cache = BlockCache(2, 10)
    cache.compute([1, 2, 3, 4])
    assert cache.compute([1, 2, 3, 4]).events == []
    assert cache.compute([7]).events == []
