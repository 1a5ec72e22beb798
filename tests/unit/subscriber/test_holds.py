"""What a replica holds in the end, counted over all blocks that are the same prefix."""

from __future__ import annotations

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
