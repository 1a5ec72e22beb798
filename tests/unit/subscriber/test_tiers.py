"""Media and tiers: which medium an event means, and what a block's media amount to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.subscriber.tiers import GPU, Tier, added, medium_of, removed, tiers_in
from inferencecache.wire.v1alpha1 import inferencecache_pb2

NAMES = [None, "GPU", "CPU", "cpu", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL", "FLOPPY"]


def test_tiers_have_the_wires_values() -> None:
    assert {tier.value: f"CACHE_TIER_{tier.name}" for tier in Tier} == {
        number: name for name, number in inferencecache_pb2.CacheTier.items() if number
    }


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        (None, Tier.T1),
        ("GPU", Tier.T1),
        ("CPU", Tier.T2),
        ("cpu", Tier.T2),
        ("CPU_PINNED", Tier.T2),
        ("DISK", Tier.T3),
        ("STORAGE", Tier.T3),
        ("EXTERNAL", Tier.T3),
        ("FLOPPY", Tier.T3),
        ("", Tier.T3),
    ],
)
def test_each_medium_has_its_tier(name: str | None, tier: Tier) -> None:
    medium = medium_of(name)
    assert medium.tier is tier
    assert tiers_in(medium.alone) == medium.tiers == 1 << tier - 1


def test_a_medium_of_another_machine_is_a_store_elsewhere() -> None:
    assert medium_of("CPU", "REMOTE") is medium_of("EXTERNAL")
    assert medium_of("CPU", "LOCAL") is medium_of("CPU")


def test_host_memory_is_one_medium_however_it_is_spelled_and_stores_are_several() -> None:
    assert medium_of("CPU") is medium_of("CPU_PINNED") is medium_of("cpu")
    assert len({medium_of(name).shift for name in ("DISK", "STORAGE", "EXTERNAL", "FLOPPY")}) == 4


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES)), max_size=60))
def test_media_are_a_counter_except_that_the_gpu_is_there_or_not(changes: list[tuple[bool, str | None]]) -> None:
    media, counts = 0, Counter[int]()
    for adds, name in changes:
        medium = medium_of(name)
        media = (added if adds else removed)(media, medium)
        wanted = max(0, counts[medium.shift] + (1 if adds else -1))
        counts[medium.shift] = min(wanted, 1) if medium is GPU else wanted
        held = {medium_of(other).tier for other in NAMES if counts[medium_of(other).shift]}
        assert {tier for tier in Tier if tiers_in(media) >> tier - 1 & 1} == held


def test_counts_end_where_they_would_run_into_the_next_medium() -> None:
    media = 0
    for _ in range(300):
        media = added(media, medium_of("CPU"))
    assert tiers_in(media) == 2
    for _ in range(255):
        media = removed(media, medium_of("CPU"))
    assert media == 0
