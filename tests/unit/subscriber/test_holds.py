"""What a replica holds in the end, counted over all blocks that are the same prefix."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inferencecache.subscriber.holds import Holds
from inferencecache.subscriber.tiers import Tier

T1, T2, T3 = 1, 2, 4


def test_a_hold_is_as_fast_as_its_fastest_block_and_ends_with_the_last() -> None:
    holds = Holds()
    assert holds.change(7, 0, 0, T3) == (None, Tier.T3)
    assert holds.change(7, 0, 0, T2) == (Tier.T3, Tier.T2)
    assert holds.change(7, 0, T2, T1 | T2) == (Tier.T2, Tier.T1)
    assert holds.best(7, 0) is Tier.T1
    assert holds.change(7, 0, T1 | T2, T2) == (Tier.T1, Tier.T2)
    assert holds.change(7, 0, T2, 0) == (Tier.T2, Tier.T3)
    assert holds.change(7, 0, T3, 0) == (Tier.T3, None)
    assert holds.best(7, 0) is None
    assert len(holds) == 0


def test_equal_prefixes_of_two_adapters_are_two_holds() -> None:
    holds = Holds()
    holds.change(7, 1, 0, T1)
    assert holds.best(7, 0) is None
    holds.change(7, 0, 0, T2)
    assert (holds.best(7, 0), holds.best(7, 1), holds.best(7, 2)) == (Tier.T2, Tier.T1, None)


def test_prefixes_are_gained_together_if_none_of_them_is_held() -> None:
    holds = Holds()
    assert holds.gain([1, 2], 0)
    assert holds.gain([1, 2], 1)
    assert not holds.gain([3, 2], 0)
    holds.change(4, 0, 0, T2)
    assert not holds.gain([3, 4], 0)
    assert not holds.gain([3, 3], 0)
    assert holds.best(3, 0) is None
    assert holds.change(1, 1, T1, 0) == (Tier.T1, None)
    assert (holds.best(1, 0), len(holds)) == (Tier.T1, 4)


_KEYS = st.tuples(st.integers(0, 2), st.integers(0, 1))
_CHANGES = st.tuples(_KEYS, st.integers(0, 3), st.integers(0, T1 | T2 | T3))


@given(st.lists(_CHANGES, max_size=40))
def test_holds_are_what_a_list_of_all_blocks_says(changes: list[tuple[tuple[int, int], int, int]]) -> None:
    """Each change makes one of four blocks of a key be in other tiers than before."""
    holds = Holds()
    blocks: dict[tuple[tuple[int, int], int], int] = {}

    def best(key: tuple[int, int]) -> Tier | None:
        tiers: Counter[Tier] = Counter()
        for (of, _), bits in blocks.items():
            tiers.update(tier for tier in Tier if of == key and bits >> tier - 1 & 1)
        return min(tiers, default=None)

    for key, block, after in changes:
        before = blocks.get((key, block), 0)
        if before == after:
            continue
        expected = best(key)
        blocks[key, block] = after
        assert holds.change(*key, before, after) == (expected, best(key))
        assert holds.best(*key) == best(key)
    assert len(holds) == len({key for (key, _), bits in blocks.items() if bits})
