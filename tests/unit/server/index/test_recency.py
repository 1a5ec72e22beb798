"""The order of prefixes by when they were seen, against one sorted dict."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferencecache.server.index import recency
from inferencecache.server.index.oldest_first import OldestFirst, Source
from inferencecache.server.index.recency import Recency, seen_us, tier_of

HASHES = st.integers(0, 15).map(lambda number: bytes([number]))
INSTANTS = st.integers(-3, 6)


class RecencyMachine(RuleBasedStateMachine):
    """`seen` is what should be offered, `kept` what was stepped over."""

    def __init__(self) -> None:
        super().__init__()
        self.recency = Recency()
        self.seen: dict[bytes, tuple[int, int]] = {}
        self.kept: dict[bytes, tuple[int, int]] = {}

    @rule(hashes=st.lists(HASHES, unique=True, max_size=8), at_us=INSTANTS, tier=st.integers(1, 4))
    def put(self, hashes: list[bytes], at_us: int, tier: int) -> None:
        before = self.recency.put(hashes, at_us, tier)
        known = {**self.seen, **self.kept}
        told = [None if stamp is None else (seen_us(stamp), tier_of(stamp)) for stamp in before]
        assert told == [known.get(prefix_hash) for prefix_hash in hashes]
        for prefix_hash in hashes:
            self.kept.pop(prefix_hash, None)
            self.seen[prefix_hash] = (at_us, tier)

    @rule(prefix_hash=HASHES)
    def discard(self, prefix_hash: bytes) -> None:
        was = self.seen.pop(prefix_hash, None) or self.kept.pop(prefix_hash, None)
        stamp = self.recency.discard(prefix_hash)
        assert was == (None if stamp is None else (seen_us(stamp), tier_of(stamp)))

    @precondition(lambda self: self.seen)
    @rule(most=st.integers(1, 4))
    def discard_some_of_the_oldest(self, most: int) -> None:
        assert self.recency.oldest()
        together = self.recency.oldest_together(most)
        assert 1 <= len(together) <= most
        in_order = sorted(self.seen, key=lambda prefix_hash: (self.seen[prefix_hash][0], prefix_hash))
        assert together == in_order[: len(together)]
        assert len({self.seen[prefix_hash][0] for prefix_hash in together}) == 1
        for prefix_hash in together:
            self.recency.discard(prefix_hash)
            del self.seen[prefix_hash]

    @precondition(lambda self: self.seen)
    @rule()
    def keep_oldest(self) -> None:
        oldest = self.recency.oldest()
        assert oldest is not None
        self.recency.keep_oldest()
        self.kept[oldest[1]] = self.seen.pop(oldest[1])

    @rule()
    def release_kept(self) -> None:
        oldest_us = self.recency.release_kept()
        assert oldest_us == min((at_us for at_us, _ in self.kept.values()), default=None)
        self.seen |= self.kept
        self.kept.clear()

    @rule(limit_us=INSTANTS, most=st.integers(1, 5))
    def until(self, limit_us: int, most: int) -> None:
        old = {name for name, (at_us, _) in {**self.seen, **self.kept}.items() if at_us <= limit_us}
        some = self.recency.until(limit_us, most)
        assert set(some) <= old
        assert len(set(some)) == len(some) <= most
        assert bool(some) == bool(old)

    @invariant()
    def a_walk_meets_everything_and_twice_only_what_is_in_a_batch_that_is_taken_from(self) -> None:
        known = {**self.seen, **self.kept}
        groups = list(self.recency.walk())
        assert max(map(len, groups), default=0) < 2 * recency.BATCH
        met = [(prefix_hash, seen_us(stamp), tier_of(stamp)) for group in groups for prefix_hash, stamp in group]
        assert set(met) == {(prefix_hash, *known[prefix_hash]) for prefix_hash in known}
        assert len(met) == len(known) or any(isinstance(batch, list) for batch in self.recency._batches.values())

    def teardown(self) -> None:
        """Whatever happened, all of it can be taken apart in steps."""
        taken: list[bytes] = []
        while some := self.recency.take(3):
            assert len(some) < 3 + 2 * recency.BATCH
            taken += some
        assert sorted(taken) == sorted({*self.seen, *self.kept})
        assert not self.recency.stamps

    @invariant()
    def the_oldest_is_the_first_by_instant_and_hash(self) -> None:
        assert self.recency.oldest() == min(
            ((at_us, prefix_hash) for prefix_hash, (at_us, _) in self.seen.items()), default=None
        )

    @invariant()
    def the_newest_is_the_last_instant(self) -> None:
        instants = [at_us for at_us, _ in (*self.seen.values(), *self.kept.values())]
        assert self.recency.newest_us() == max(instants, default=None)

    @invariant()
    def at_most_half_of_what_is_kept_is_dead(self) -> None:
        refs = sum(map(len, self.recency._batches.values()))
        assert len(self.recency.stamps) <= refs <= 2 * len(self.recency.stamps)


@pytest.mark.parametrize("batch", [1, 2, 5, 1024])
def test_whatever_happens_the_order_is_that_of_a_sorted_dict(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recency, "BATCH", batch)
    machine = RecencyMachine.TestCase
    machine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
    machine("runTest").runTest()


@given(sizes=st.lists(st.integers(1, 3000), max_size=4), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_any_number_of_prefixes_of_one_instant_comes_out_in_the_order_of_hashes(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    many = Recency()
    expected: list[bytes] = []
    for size in sizes:
        hashes = list({rng.randbytes(4) for _ in range(size)} - set(expected))
        many.put(hashes, 5, 1)
        expected += hashes
    taken = []
    while oldest := many.oldest():
        taken.append(oldest[1])
        many.discard(oldest[1])
    assert taken == sorted(expected)
    assert not many._batches
    assert not many._dead


@given(
    st.lists(st.tuples(st.integers(0, 4), HASHES, INSTANTS, st.booleans()), max_size=60),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_many_recencies_are_walked_as_if_they_were_one(
    steps: list[tuple[int, bytes, int, bool]], rng: random.Random
) -> None:
    sources = [Source((str(number % 2),), str(number), Recency()) for number in range(5)]
    queue: OldestFirst[Source] = OldestFirst()
    for number, prefix_hash, at_us, put in steps:
        source = sources[number]
        if put:
            source.recency.put([prefix_hash], at_us, 1)
            queue.offer(source, at_us)
        else:
            source.recency.discard(prefix_hash)
        if rng.random() < 0.2:
            queue.withdraw(source)
            for gone in list(source.recency.stamps):
                source.recency.discard(gone)
        expected = min(
            (
                (seen_us(stamp), one.rank, held, one.tail)
                for one in sources
                for held, stamp in one.recency.stamps.items()
            ),
            default=None,
        )
        oldest = queue.oldest()
        told = oldest and (seen_us(oldest[0].recency.stamps[oldest[1]]), oldest[0].rank, oldest[1], oldest[0].tail)
        assert told == expected
