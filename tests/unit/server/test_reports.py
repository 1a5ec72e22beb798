"""From a producer's message to the index: what is kept, what is dropped and why, and whose clock counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import reports
from inferencecache.server.index import MAX_AHEAD_US, Holds, Report, Stats
from inferencecache.server.reports import BROKEN_CHAIN, COLDEST, NO_HASH, NO_SCHEME, OVERLONG
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheStateUpdate, PrefixEntry, ReplicaStats

NOW = 1_700_000_000_000_000
MAX = 2**31 - 1


def _update(*entries: PrefixEntry, **fields: Any) -> CacheStateUpdate:
    known: dict[str, Any] = {
        "replica_id": "r",
        "model_id": "m",
        "tenant_id": "t",
        "hash_scheme": "vllm",
        "timestamp_us": NOW,
    }
    return CacheStateUpdate(**known | fields, prefixes=entries)


def _holds(*entries: PrefixEntry, **fields: Any) -> list[Holds]:
    return list(reports.read(_update(*entries, **fields), NOW).report.holds)


def test_an_entry_per_block_is_one_run_of_holds() -> None:
    entries = [PrefixEntry(prefix_hash=bytes([i]), token_count=16 * i, tier=1) for i in (1, 2, 3)]  # type: ignore[arg-type]
    reading = reports.read(_update(*entries, stats=ReplicaStats(replica_id="nested", hit_rate=0.5)), NOW)
    assert reading.report == Report(
        replica_id="r",
        tenant="t",
        model="m",
        hash_scheme="vllm",
        timestamp_us=NOW,
        holds=[Holds("", 1, [b"\x01", b"\x02", b"\x03"], [16, 32, 48])],
        stats=Stats(cache_memory_bytes=0, hit_rate=0.5, pressure=0.0),
    )
    assert not reading.dropped
    assert not reading.clamped


def test_a_chain_counts_up_and_its_own_hash_comes_with_it() -> None:
    chain = PrefixEntry(block_hashes=[b"a", b"b"], block_token_counts=[16, 20], prefix_hash=b"x", token_count=40)
    assert _holds(chain) == [Holds("", 1, [b"a", b"b", b"x"], [16, 36, 40])]


def test_entries_keep_their_order_so_that_of_two_for_one_hash_the_last_counts() -> None:
    def entry(tier: int, count: int) -> PrefixEntry:
        return PrefixEntry(prefix_hash=b"h", token_count=count, tier=tier)  # type: ignore[arg-type]

    assert _holds(entry(1, 16), entry(2, 32), entry(1, 48)) == [
        Holds("", 1, [b"h"], [16]),
        Holds("", 2, [b"h"], [32]),
        Holds("", 1, [b"h"], [48]),
    ]


@pytest.mark.parametrize(
    ("wire", "kept"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (99, 99), (MAX, MAX), (-1, COLDEST), (-(2**31), COLDEST)]
)
def test_no_corrupt_tier_becomes_the_engines_own(wire: int, kept: int) -> None:
    entry = PrefixEntry(prefix_hash=b"h", tier=wire)  # type: ignore[arg-type]
    assert [run.tier for run in _holds(entry)] == [kept]


@pytest.mark.parametrize(
    ("of_entry", "of_update", "adapter"), [("", "", ""), ("a", "", "a"), ("", "u", "u"), ("a", "u", "a")]
)
def test_an_entry_without_an_adapter_has_the_updates(of_entry: str, of_update: str, adapter: str) -> None:
    entry = PrefixEntry(prefix_hash=b"h", adapter_id=of_entry)
    assert [run.adapter_id for run in _holds(entry, adapter_id=of_update)] == [adapter]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (PrefixEntry(), NO_HASH),
        (PrefixEntry(token_count=16, tier=2), NO_HASH),  # type: ignore[arg-type]
        (PrefixEntry(block_hashes=[b"a"]), BROKEN_CHAIN),
        (PrefixEntry(block_token_counts=[16]), BROKEN_CHAIN),
        (PrefixEntry(block_hashes=[b"a"], block_token_counts=[16, 16]), BROKEN_CHAIN),
        (PrefixEntry(block_hashes=[b"a"], prefix_hash=b"h", token_count=16), BROKEN_CHAIN),
        (PrefixEntry(block_hashes=[b"a", b""], block_token_counts=[16, 16]), BROKEN_CHAIN),
        (PrefixEntry(prefix_hash=bytes(257), token_count=16), OVERLONG),
        (PrefixEntry(block_hashes=[b"a", bytes(257)], block_token_counts=[16, 16]), OVERLONG),
        (PrefixEntry(prefix_hash=b"a", token_count=16, adapter_id="a" * 1025), OVERLONG),
    ],
)
def test_an_unusable_entry_is_dropped_counted_and_costs_no_other(entry: PrefixEntry, reason: str) -> None:
    good = PrefixEntry(prefix_hash=b"good", token_count=16)
    reading = reports.read(_update(good, entry, good), NOW)
    assert [hash_ for run in reading.report.holds for hash_ in run.hashes] == [b"good", b"good"]
    assert reading.dropped == {reason: 1}


def test_without_a_hash_scheme_only_the_stats_count() -> None:
    entry = PrefixEntry(prefix_hash=b"h", token_count=16)
    reading = reports.read(_update(entry, entry, hash_scheme="", stats=ReplicaStats(pressure=0.25)), NOW)
    assert reading.report.holds == []
    assert reading.report.stats == Stats(0, 0.0, 0.25)
    assert reading.dropped == {NO_SCHEME: 2}


@pytest.mark.parametrize("name", ["replica_id", "model_id", "tenant_id", "hash_scheme", "adapter_id"])
def test_an_update_with_a_name_that_is_none_is_dropped_as_a_whole(name: str) -> None:
    entries = [PrefixEntry(prefix_hash=b"a"), PrefixEntry(prefix_hash=b"b")]
    reading = reports.read(_update(*entries, stats=ReplicaStats(hit_rate=0.5), **{name: "n" * 1025}), NOW)
    assert (reading.report.holds, reading.report.stats) == ([], None)
    assert reading.dropped == {OVERLONG: 2}


def test_the_longest_names_and_hashes_are_kept() -> None:
    entry = PrefixEntry(prefix_hash=bytes(256), token_count=16, adapter_id="a" * 1024)
    assert _holds(entry, model_id="m" * 1024) == [Holds("a" * 1024, 1, [bytes(256)], [16])]


def test_no_stats_and_empty_stats_differ() -> None:
    assert reports.read(_update(), NOW).report.stats is None
    assert reports.read(_update(stats=ReplicaStats()), NOW).report.stats == Stats(0, 0.0, 0.0)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
def test_rates_that_are_no_numbers_are_zero(rate: float) -> None:
    stats = ReplicaStats(hit_rate=rate, pressure=rate, cache_memory_bytes=9, t2_hit_tokens=6, t2_query_tokens=10)
    assert reports.read(_update(stats=stats), NOW).report.stats == Stats(9, 0.0, 0.0, 6, 10)


@pytest.mark.parametrize("rate", [-0.5, 1.5])
def test_rates_out_of_range_are_kept(rate: float) -> None:
    assert reports.read(_update(stats=ReplicaStats(hit_rate=rate)), NOW).report.stats == Stats(0, rate, 0.0)


@pytest.mark.parametrize("amount", [-1, -(2**63)])
def test_a_negative_amount_is_none(amount: int) -> None:
    stats = ReplicaStats(cache_memory_bytes=amount, t2_hit_tokens=amount, t2_query_tokens=amount, pressure=0.25)
    assert reports.read(_update(stats=stats), NOW).report.stats == Stats(0, 0.0, 0.25, 0, 0)


@pytest.mark.parametrize(
    ("sent", "taken", "clamped"),
    [
        (0, NOW, False),
        (NOW, NOW, False),
        (1, 1, False),
        (NOW + MAX_AHEAD_US, NOW + MAX_AHEAD_US, False),
        (NOW + MAX_AHEAD_US + 1, NOW + MAX_AHEAD_US, True),
        (2**63 - 1, NOW + MAX_AHEAD_US, True),
        (-1, 1, False),
        (-(2**63), 1, False),
    ],
)
def test_a_producers_clock_may_be_behind_but_hardly_ahead(sent: int, taken: int, clamped: bool) -> None:
    reading = reports.read(_update(timestamp_us=sent), NOW)
    assert (reading.report.timestamp_us, reading.clamped) == (taken, clamped)


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ([16, 16], [16, 32]),
        ([-16, 40], [0, 24]),
        ([MAX, MAX, -1], [MAX, MAX, MAX]),
    ],
)
def test_token_counts_stay_within_what_a_reply_can_carry(counts: Sequence[int], kept: list[int]) -> None:
    blocks = [bytes([i]) for i in range(len(counts))]
    assert [list(run.token_counts) for run in _holds(PrefixEntry(block_hashes=blocks, block_token_counts=counts))] == [
        kept
    ]


_int32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 20)
_entry = st.builds(
    PrefixEntry,
    prefix_hash=st.binary(max_size=3),
    token_count=_int32,
    block_hashes=st.lists(st.binary(max_size=3), max_size=3),
    block_token_counts=st.lists(_int32, max_size=3),
    tier=_int32,
    adapter_id=st.sampled_from(["", "a", "b"]),
)


@given(st.lists(_entry, max_size=6), st.sampled_from(["", "u"]))
def test_what_comes_out_is_always_fit_for_the_index(entries: list[PrefixEntry], adapter: str) -> None:
    """Against the contract's loop, spelled out entry by entry."""
    reading = reports.read(_update(*entries, adapter_id=adapter), NOW)
    flat = [
        (run.adapter_id, run.tier, hash_, count)
        for run in reading.report.holds
        for hash_, count in zip(run.hashes, run.token_counts, strict=True)
    ]
    expected = []
    dropped = 0
    for entry in entries:
        key = (entry.adapter_id or adapter, 1 if entry.tier == 0 else entry.tier if entry.tier > 0 else COLDEST)
        if entry.block_hashes or entry.block_token_counts:
            if len(entry.block_hashes) != len(entry.block_token_counts) or b"" in entry.block_hashes:
                dropped += 1
                continue
            total = 0
            for hash_, count in zip(entry.block_hashes, entry.block_token_counts, strict=True):
                total += count
                expected.append((*key, hash_, min(max(total, 0), MAX)))
        if entry.prefix_hash:
            expected.append((*key, entry.prefix_hash, min(max(entry.token_count, 0), MAX)))
        elif not entry.block_hashes:
            dropped += 1
    assert flat == expected
    assert sum(reading.dropped.values()) == dropped
