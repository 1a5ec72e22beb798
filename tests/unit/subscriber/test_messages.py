"""What is told of a replica, as a server reads it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferencecache.subscriber.chain import Add
from inferencecache.subscriber.messages import Identity
from inferencecache.subscriber.outbox import PARCEL, Additions, Key
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.fingerprint import key
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

IDENTITY = Identity("replica", "model", "tenant", "sglang")
PREFIX_HASHES = st.sampled_from([0, 2**64 - 1, 2**63]) | st.integers(0, 2**64 - 1)
TOKEN_COUNTS = st.sampled_from([16, 32, 2**31 - 1]) | st.integers(1, 2**31 - 1)
ADDS = st.builds(
    Add,
    PREFIX_HASHES,
    TOKEN_COUNTS,
    st.sampled_from(["", "sql", "ÿ" * 70]),
    st.sampled_from(list(Tier)),
)


KEYS = PREFIX_HASHES | st.tuples(PREFIX_HASHES, st.sampled_from(["sql", "ÿ" * 70]))


@given(st.dictionaries(KEYS, TOKEN_COUNTS, max_size=20), st.sampled_from(list(Tier)), st.integers(0, 2**62))
def test_additions_are_read_as_they_were_meant(entries: dict[Key, int], tier: Tier, timestamp_us: int) -> None:
    update = pb.CacheStateUpdate.FromString(IDENTITY.additions(Additions(0, tier, timestamp_us, entries)))
    assert (update.replica_id, update.model_id, update.tenant_id, update.hash_scheme) == (
        "replica",
        "model",
        "tenant",
        "sglang",
    )
    assert update.timestamp_us == timestamp_us
    assert [(entry.prefix_hash, entry.token_count, entry.adapter_id, entry.tier) for entry in update.prefixes] == [
        (key(which[0]), tokens, which[1], tier) if isinstance(which, tuple) else (key(which), tokens, "", tier)
        for which, tokens in entries.items()
    ]


def test_everything_comes_in_updates_of_a_parcels_size() -> None:
    holds = [Add(number, 16, "", Tier.T1) for number in range(2 * PARCEL + 1)]
    updates = [pb.CacheStateUpdate.FromString(update) for update in IDENTITY.everything(holds)]
    assert [len(update.prefixes) for update in updates] == [PARCEL, PARCEL, 1]
    assert [entry.prefix_hash for update in updates for entry in update.prefixes] == [
        key(hold.prefix_hash) for hold in holds
    ]


@given(st.lists(st.tuples(ADDS, st.integers(0, 40_000_000)), max_size=20))
def test_moves_are_told_as_of_at_most_ten_seconds_earlier_and_never_later(moved: list[tuple[Add, int]]) -> None:
    updates = [pb.CacheStateUpdate.FromString(update) for update in IDENTITY.moves(moved)]
    told = [
        (entry.prefix_hash, entry.token_count, entry.adapter_id, entry.tier, update.timestamp_us)
        for update in updates
        for entry in update.prefixes
    ]
    expected = [
        (key(add.prefix_hash), add.token_count, add.adapter, add.tier, since_us // 10_000_000 * 10_000_000)
        for add, since_us in moved
    ]
    assert sorted(told) == sorted(expected)
    assert len(updates) == len({since_us // 10_000_000 for _, since_us in moved})


def test_many_moves_of_one_time_take_several_updates() -> None:
    moved = [(Add(number, 16, "", Tier.T2), 7) for number in range(100_000)]
    updates = IDENTITY.moves(moved)
    assert max(map(len, updates)) < 70_000
    entries = [entry for update in updates for entry in pb.CacheStateUpdate.FromString(update).prefixes]
    assert [entry.prefix_hash for entry in entries] == [key(add.prefix_hash) for add, _ in moved]


def test_evictions_name_the_adapter_of_those_that_have_one() -> None:
    first, second = (pb.CacheEvent.FromString(event) for event in IDENTITY.evictions([((7, "sql"), 5), (8, 6)]))
    assert (first.prefix_hash, first.adapter_id, first.timestamp_us) == (key(7), "sql", 5)
    assert (second.prefix_hash, second.adapter_id, second.timestamp_us) == (key(8), "", 6)
    assert first.type == second.type == pb.CacheEvent.PREFIX_EVICTED
