"""Whatever is put, sent, thrown away and put again: a server that follows the parcels knows what was put."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.subscriber.chain import Add, Adds, Clear, Delta, Evict, Renew
from inferencecache.subscriber.outbox import (
    PARCEL,
    SAME_TIME_US,
    Additions,
    Clearing,
    Evictions,
    Key,
    Outbox,
    Parcel,
)
from inferencecache.subscriber.tiers import Tier
from tests.unit.subscriber.engine import one_by_one

A, B, C = (Add(number, number * 16, "", Tier.T1) for number in (1, 2, 3))


def slower(add: Add, tier: Tier = Tier.T2) -> Add:
    return Add(add.prefix_hash, add.token_count, add.adapter, tier)


def adapted(add: Add) -> Add:
    return Add(add.prefix_hash, add.token_count, "sql", add.tier)


def gone(add: Add) -> Evict:
    return Evict(add.prefix_hash, add.adapter)


def key_of(delta: Add | Evict) -> Key:
    return (delta.prefix_hash, delta.adapter) if delta.adapter else delta.prefix_hash


def prefix_of(key: Key) -> int:
    return key if isinstance(key, int) else key[0]


def forget(index: dict[Key, Tier], key: Key) -> None:
    """As a server does: without an adapter, the prefix goes with all of them."""
    index.pop(key, None)
    if isinstance(key, int):
        for other in [other for other in index if isinstance(other, tuple) and other[0] == key]:
            del index[other]


def drained(outbox: Outbox) -> list[Parcel]:
    parcels = []
    while (parcel := outbox.take()) is not None:
        parcels.append(parcel)
        outbox.delivered(parcel)
    assert len(outbox) == 0
    return parcels


def said(parcels: list[Parcel]) -> list[str]:
    """Parcels in short: a+b, -a, clear."""
    names = {1: "a", 2: "b", 3: "c"}
    lines = []
    for parcel in parcels:
        if isinstance(parcel, Clearing):
            lines.append("clear")
        elif isinstance(parcel, Evictions):
            lines.append("".join(f"-{names[prefix_of(key)]}" for key in parcel.entries))
        else:
            lines.append("+".join(f"{names[prefix_of(key)]}{int(parcel.tier)}" for key in parcel.entries))
    return lines


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([], []),
        ([A, B], ["a1+b1"]),
        ([A, A], ["a1"]),
        ([A, gone(A)], ["a1", "-a"]),
        ([gone(A), A], ["-a", "a1"]),
        ([gone(A), B, gone(C)], ["-a-c", "b1"]),
        ([A, slower(A), A], ["a1", "a2", "a1"]),
        ([A, slower(A), B], ["a1+b1", "a2"]),
        ([A, slower(A), gone(A)], ["a1", "a2", "-a"]),
        ([A, gone(B), gone(A), A, B], ["a1", "-b-a", "a1+b1"]),
        ([A, Clear()], ["clear"]),
        ([A, Clear(), B], ["clear", "b1"]),
        ([Adds([1, 2], [16, 32], "", Tier.T1), C], ["a1+b1+c1"]),
        ([A, gone(B), Adds([3, 2], [48, 32], "", Tier.T1)], ["a1", "-b", "c1+b1"]),
        ([slower(A), slower(B, Tier.T3), slower(C)], ["a2+c2", "b3"]),
        ([gone(A), adapted(A), gone(A)], ["-a", "a1", "-a"]),
        ([gone(A), adapted(A), gone(B)], ["-a-b", "a1"]),
    ],
)
def test_the_order_in_which_changes_are_told(deltas: list[Delta], expected: list[str]) -> None:
    outbox = Outbox()
    outbox.put(deltas, 1)
    assert said(drained(outbox)) == expected


def test_additions_have_the_time_of_the_last_batch_that_has_one() -> None:
    outbox = Outbox()
    outbox.put([A], 5)
    outbox.put([B], 7)
    outbox.put([C], 0)
    (parcel,) = drained(outbox)
    assert isinstance(parcel, Additions)
    assert parcel.timestamp_us == 7


def test_a_move_to_a_slower_tier_keeps_its_time() -> None:
    outbox = Outbox()
    outbox.put([slower(A)], 5)
    outbox.put([slower(B)], 5 + SAME_TIME_US)
    outbox.put([slower(C)], 6 + SAME_TIME_US)
    outbox.put([C], 10**9)
    times = [(parcel.timestamp_us, len(parcel.entries)) for parcel in drained(outbox) if isinstance(parcel, Additions)]
    assert times == [(5, 2), (6 + SAME_TIME_US, 1), (10**9, 1)]


def test_evictions_keep_the_times_of_their_batches() -> None:
    outbox = Outbox()
    outbox.put([gone(A)], 5)
    outbox.put([gone(B)], 9)
    (parcel,) = drained(outbox)
    assert isinstance(parcel, Evictions)
    assert list(parcel.entries.values()) == [5, 9]


def test_a_parcel_stays_pending_until_it_is_delivered_and_takes_nothing_more() -> None:
    outbox = Outbox()
    outbox.put([A], 1)
    first = outbox.take()
    outbox.put([B], 2)
    assert outbox.take() is first
    assert len(outbox) == 2
    assert first is not None
    outbox.delivered(first)
    assert said(drained(outbox)) == ["b1"]


def test_a_clear_voids_a_parcel_that_was_taken() -> None:
    outbox = Outbox()
    outbox.put([A], 1)
    taken = outbox.take()
    assert taken is not None
    outbox.put([Clear()], 2)
    outbox.delivered(taken)
    assert said(drained(outbox)) == ["clear"]


def test_parcels_are_bounded() -> None:
    outbox = Outbox()
    outbox.put([Add(number, 16, "", Tier.T1) for number in range(PARCEL + 1)], 1)
    assert [len(parcel.entries) for parcel in drained(outbox) if isinstance(parcel, Additions)] == [PARCEL, 1]
    count = 2 * PARCEL + 5
    outbox.put([Adds(range(count), range(16, 16 * count + 1, 16), "", Tier.T1)], 1)
    parcels = [parcel.entries for parcel in drained(outbox) if isinstance(parcel, Additions)]
    assert [len(entries) for entries in parcels] == [PARCEL, PARCEL, 5]
    assert {key: tokens for entries in parcels for key, tokens in entries.items()} == {
        number: 16 * (number + 1) for number in range(count)
    }


def test_an_overflow_throws_everything_away_until_the_reset() -> None:
    outbox = Outbox(capacity=2)
    outbox.put([A, B], 1)
    assert not outbox.void
    outbox.put([C], 1)
    assert (outbox.void, outbox.overflows) == (True, 1)
    outbox.put([A], 1)
    assert (len(outbox), outbox.take()) == (0, None)
    outbox.reset()
    outbox.put([B], 1)
    assert said(drained(outbox)) == ["b1"]


def test_when_everything_has_to_be_told_anew_all_of_it_is_thrown_away_until_the_reset() -> None:
    outbox = Outbox()
    outbox.put([A, gone(B), Renew(), C], 1)
    assert (outbox.void, outbox.overflows, len(outbox), outbox.take()) == (True, 0, 0, None)
    outbox.reset()
    outbox.put([B], 1)
    assert said(drained(outbox)) == ["b1"]


_KEYS = st.tuples(st.integers(0, 3), st.sampled_from(["", "sql"]))
_DELTAS = st.one_of(
    st.builds(
        lambda prefixes, adapter, tier: Adds(prefixes, [16] * len(prefixes), adapter, tier),
        st.lists(st.integers(0, 3), unique=True),
        st.sampled_from(["", "sql"]),
        st.sampled_from(list(Tier)),
    ),
    st.builds(lambda key, tier: Add(key[0], 16, key[1], tier), _KEYS, st.sampled_from(list(Tier))),
    st.builds(lambda key: Evict(*key), _KEYS),
    st.just(Clear()),
    st.just(Renew()),
)
_STEPS = st.lists(st.tuples(st.lists(_DELTAS, max_size=4), st.integers(0, 3), st.booleans()), max_size=12)


@given(_STEPS)
def test_who_follows_the_parcels_knows_what_was_put(steps: list[tuple[list[Delta], int, bool]]) -> None:
    """Steps put some deltas, then take parcels, the last of which may be lost on its way and has to come again."""
    outbox = Outbox()
    truth: dict[Key, Tier] = {}
    told: dict[Key, Tier] = {}

    def tell(parcel: Parcel) -> None:
        if isinstance(parcel, Clearing):
            told.clear()
        elif isinstance(parcel, Evictions):
            for key in parcel.entries:
                forget(told, key)
        else:
            told.update(dict.fromkeys(parcel.entries, parcel.tier))

    for number, (deltas, parcels, lost) in enumerate(steps):
        outbox.put(deltas, number)
        for delta in one_by_one(deltas):
            if isinstance(delta, Add):
                truth[key_of(delta)] = delta.tier
            elif isinstance(delta, Evict):
                forget(truth, key_of(delta))
            elif isinstance(delta, Clear):
                truth.clear()
        if outbox.void:
            outbox.reset()
            told = dict(truth)
        for _ in range(parcels):
            parcel = outbox.take()
            if parcel is None:
                break
            tell(parcel)  # the server may have applied what it did not acknowledge
            if not lost:
                outbox.delivered(parcel)
    while (parcel := outbox.take()) is not None:
        tell(parcel)
        outbox.delivered(parcel)
    assert told == truth
    assert len(outbox) == 0
    assert not outbox._places, "places of what was delivered are forgotten"
