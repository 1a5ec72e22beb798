"""A large report in portions says what it says as a whole, and leaves others their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import portions as module
from inferencecache.server import reports
from inferencecache.server.portions import Portion, apportioned, portions
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.unit.server.waiting import counted_turns

NOW_US = 1_700_000_000_000_000

_HASHES = st.binary(max_size=3)
_COUNTS = st.integers(-(2**31), 2**31 - 1)
_CHAINS = st.lists(st.tuples(_HASHES, _COUNTS), max_size=12)


@st.composite
def entries(draw: st.DrawFn) -> pb.PrefixEntry:
    chain = draw(_CHAINS)
    counts = [count for _, count in chain]
    return pb.PrefixEntry(
        prefix_hash=draw(_HASHES),
        token_count=draw(_COUNTS),
        block_hashes=[block for block, _ in chain],
        block_token_counts=counts if draw(st.integers(0, 5)) else counts[1:],
        tier=draw(st.sampled_from([0, 1, 2])),  # type: ignore[arg-type]
        adapter_id=draw(st.sampled_from(["", "a"])),
    )


def said(parts: Iterable[Portion]) -> tuple[list[tuple[object, ...]], Counter[str], list[object]]:
    """All holds in order, what was dropped, and the stats."""
    holds: list[tuple[object, ...]] = []
    dropped: Counter[str] = Counter()
    stats = []
    for update, hashless in parts:
        dropped += Counter({reports.NO_HASH: hashless})
        if update is None:
            continue
        reading = reports.read(update, NOW_US)
        for run in reading.report.holds:
            holds += [
                (run.adapter_id, run.tier, block, count)
                for block, count in zip(run.hashes, run.token_counts, strict=True)
            ]
        dropped += Counter(reading.dropped)
        stats += [reading.report.stats] if reading.report.stats is not None else []
    return holds, dropped, stats


@given(st.lists(entries(), max_size=10), st.integers(1, 8), st.booleans())
def test_portions_say_what_the_whole_says(given_entries: list[pb.PrefixEntry], size: int, with_stats: bool) -> None:
    update = pb.CacheStateUpdate(replica_id="r", model_id="m", hash_scheme="v", adapter_id="b", prefixes=given_entries)
    if with_stats:
        update.stats.hit_rate = 0.5
    whole = said([Portion(update, 0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALL_BYTES", -1)
        patch.setattr(module, "HASHLESS_ENTRIES", 2)
        told = list(portions(update, size))
    assert said(told) == whole
    cut = [each for each, _ in told if each is not None]
    assert all((each.replica_id, each.model_id) == ("r", "m") for each in cut)
    limit = size + max((len(entry.block_hashes) for entry in given_entries), default=0)
    assert all(sum(1 + len(entry.block_hashes) for entry in each.prefixes) <= max(limit, size) for each in cut)


def test_a_small_report_is_passed_on_as_it_is() -> None:
    update = pb.CacheStateUpdate(prefixes=[pb.PrefixEntry(prefix_hash=b"x" * 8)] * 64)
    [(only, _)] = portions(update)
    assert only is update


def test_one_long_chain_is_cut() -> None:
    hashes = [number.to_bytes(8, "big") for number in range(5000)]
    update = pb.CacheStateUpdate(hash_scheme="v", prefixes=[pb.PrefixEntry(block_hashes=hashes)])
    update.prefixes[0].block_token_counts.extend([16] * 5000)
    cut = list(portions(update))
    assert len(cut) == 5000 // module.PORTION_BLOCKS
    assert said(cut) == said([Portion(update, 0)])


def test_entries_without_a_hash_are_counted_in_turns_and_copied_nowhere() -> None:
    prefixes = [pb.PrefixEntry(tier=pb.CACHE_TIER_T1)] * 12_000 + [pb.PrefixEntry(prefix_hash=b"x")]
    told = list(portions(pb.CacheStateUpdate(hash_scheme="v", prefixes=prefixes)))
    assert [(hashless, update and len(update.prefixes)) for update, hashless in told] == [
        (5000, None),
        (5000, None),
        (2000, 1),
    ]


def test_a_report_without_a_hash_scheme_is_not_looked_through() -> None:
    update = pb.CacheStateUpdate(prefixes=[pb.PrefixEntry(prefix_hash=b"x" * 8)] * 20_000)
    assert list(portions(update)) == [(update, 0)]


async def test_others_get_their_turn_between_portions() -> None:
    entry = pb.PrefixEntry(prefix_hash=b"x" * 8)
    async with counted_turns() as turns:
        number = len(
            [each async for each in apportioned(pb.CacheStateUpdate(hash_scheme="v", prefixes=[entry] * 20_000))]
        )
    assert number == 20
    assert turns.count >= number - 1
