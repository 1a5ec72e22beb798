"""Comparing many blocks at once finds what looking up each of them finds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferencecache.server.index import PrefixIndex, matching, recency, sequences
from inferencecache.server.index.sequences import SHORTEST, WIDTH, Sequences, pack
from tests.unit.server.index.model import NaiveIndex
from tests.unit.server.index.reports import NOW_US, SCOPE, Filled, chain, report
from tests.unit.server.index.rules import MINUTE, Rules

LENGTH = 300


def fingerprints(number: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(WIDTH) for _ in range(number)]


SYSTEM = fingerprints(40)
PROMPTS = [SYSTEM + fingerprints(LENGTH - len(SYSTEM), seed) for seed in (1, 2, 3)]
PLACES = st.sampled_from([0, 1, 20, 39, 40, 41, 64, 100, 150, 200, 299, LENGTH])
REPLICAS = st.sampled_from(["r1", "r1", "r2"])
PROMPT = st.sampled_from(PROMPTS)
AGES = st.sampled_from([0, 10 * MINUTE, 31 * MINUTE])

REPORTED = st.tuples(st.just("report"), REPLICAS, PROMPT, PLACES, PLACES, AGES, st.sampled_from([1, 2]))
EVICTED = st.tuples(st.just("evict"), REPLICAS, PROMPT, PLACES, PLACES, st.sampled_from([1, 7, -1]))
ASKED = st.tuples(PROMPT, PLACES, PROMPT, PLACES)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(REPORTED, REPORTED, EVICTED), max_size=8),
    st.lists(ASKED, min_size=8, max_size=8),
    st.sampled_from([64, 1024]),
)
def test_a_chain_is_matched_as_in_the_model_whatever_was_reported_and_evicted_how(
    changes: list[tuple[Any, ...]], questions: list[tuple[list[bytes], int, list[bytes], int]], batch: int
) -> None:
    real, model = PrefixIndex(Rules(), capacity=0), NaiveIndex(Rules())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recency, "BATCH", batch)
        for change in changes:
            apply(real, change)
            apply(model, change)
    asked = [(prompt[:turn] + other[turn:])[:end] for prompt, turn, other, end in questions]
    for blocks in [*PROMPTS, *filter(None, asked)]:
        assert real.match(chain(blocks), NOW_US) == model.match(chain(blocks), NOW_US)


@pytest.mark.parametrize(("ago", "tier"), [(MINUTE, 1), (0, 2)])
def test_blocks_that_were_reported_again_count_as_reported_last(ago: int, tier: int) -> None:
    real, model = PrefixIndex(Rules(), capacity=0), NaiveIndex(Rules())
    for index in (real, model):
        index.ingest(report("r", PROMPTS[0]), NOW_US)
        index.ingest(report("r", PROMPTS[0][150:160], ago=ago, tier=tier), NOW_US)
    assert real.match(chain(PROMPTS[0]), NOW_US) == model.match(chain(PROMPTS[0]), NOW_US)


def apply(index: PrefixIndex | NaiveIndex, change: tuple[Any, ...]) -> None:
    what, replica, prompt, start, end, *how = change
    if what == "report":
        ago, tier = how
        if hashes := prompt[start:end]:
            index.ingest(report(replica, hashes, ago=ago, tier=tier), NOW_US)
    else:
        for block in prompt[start:end][:: how[0]]:
            index.evict(tenant=SCOPE.tenant, model=SCOPE.model, replica_id=replica, prefix_hash=block, adapter_id="")


def test_whatever_happens_to_prefixes_no_sequence_tells_of_one_that_has_another_stamp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequences, "WIDTH", 1)
    monkeypatch.setattr(sequences, "SHORTEST", 1)
    monkeypatch.setattr(recency, "BATCH", 4)
    prefixes = [bytes([number]) for number in range(10)]
    rng = random.Random(0)
    held = recency.Recency(Sequences())
    for _ in range(2000):
        match rng.choice(("put", "put", "discard", "keep", "release")):
            case "put":
                held.put(rng.sample(prefixes, rng.randint(1, 6)), rng.randrange(5), rng.choice((1, 2)))
            case "discard":
                held.discard(rng.choice(prefixes))
            case "keep" if held.oldest():
                held.keep_oldest()
            case "release":
                held.release_kept()
        assert held.sequences is not None
        for one, stamp in held.stamps.items():
            for other in held.stamps.keys() - {one}:
                if held.sequences.run(stamp, one + other, 0) == 2:
                    assert held.stamps[other] == stamp


def test_a_prompt_that_was_stored_in_order_takes_one_comparison_for_each_batch_and_replica(
    comparisons: list[int],
) -> None:
    filled = Filled(report("r1", PROMPTS[0]), report("r2", PROMPTS[0][:150]), report("r2", PROMPTS[0][150:], ago=1))
    code, scores = filled.chain(PROMPTS[0])
    assert (code, [score.run for score in scores]) == ("PREFIX_MATCH", [300, 300])
    assert comparisons == [300, 150, 150]


def test_what_was_stored_in_another_order_is_found_with_few_comparisons(comparisons: list[int]) -> None:
    filled = Filled(report("r", PROMPTS[0]))
    _, (score,) = filled.chain(PROMPTS[0][::-1])
    assert score.run == 300
    assert len(comparisons) <= 300 / matching.STRETCH + 1


def test_the_beginning_of_a_prompt_is_still_compared_at_once_after_its_end_was_dropped_block_by_block(
    comparisons: list[int],
) -> None:
    filled = Filled(report("r", PROMPTS[0]))
    for block in reversed(PROMPTS[0][100:]):
        assert filled.evict("r", block) == 1
    _, (score,) = filled.chain(PROMPTS[0])
    assert score.run == 100
    assert comparisons == [100]


def test_blocks_that_make_the_same_bytes_by_other_borders_are_other_blocks() -> None:
    filled = Filled(report("r", PROMPTS[0]))
    moved = [*PROMPTS[0][:200], PROMPTS[0][200][:7], PROMPTS[0][200][7:] + PROMPTS[0][201], *PROMPTS[0][202:]]
    assert b"".join(moved) == b"".join(PROMPTS[0])
    _, (score,) = filled.chain(moved)
    assert score.run == 200


MEETING = [half for number in range(6) for half in (b"%04dleft" % number, b"side%04d" % number)]
ACROSS = b"leftside"
"""A hash that is found wherever two of `MEETING` meet."""


def test_a_hash_that_is_found_where_two_others_meet_is_not_taken_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LONG", 1)
    filled = Filled(report("r", [*MEETING, ACROSS, *fingerprints(20)]))
    for number in range(5):
        behind = b"%04d%04d" % (number, number + 1)
        assert ACROSS + behind in b"".join(MEETING)
        _, (score,) = filled.chain([ACROSS, behind, *fingerprints(20, 1)])
        assert score.run == 1


def test_a_hash_that_is_hard_to_find_among_others_is_gone_all_the_same() -> None:
    before = fingerprints(150)
    filled = Filled(report("r", [*before, ACROSS, *MEETING]))
    assert filled.evict("r", ACROSS) == 1
    _, (score,) = filled.chain([*before, ACROSS, *MEETING])
    assert score.run == len(before)


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each comparison with a sequence finds, in order."""
    found: list[int] = []
    run = Sequences.run

    def counted(self: Sequences, stamp: int, packed: bytes, at: int) -> int:
        found.append(run(self, stamp, packed, at))
        return found[-1]

    monkeypatch.setattr(Sequences, "run", counted)
    return found


class SequencesMachine(RuleBasedStateMachine):
    """The blocks of one batch, and the sequence of them: what it says is true, and it says as much as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = Sequences()
        self.blocks: list[bytes] = []
        self.number = 0

    @rule(number=st.integers(1, 3 * SHORTEST))
    def add(self, number: int) -> None:
        self.number += 1
        hashes = fingerprints(number, self.number)
        self.sequences.add(1, hashes)
        self.blocks += hashes if number >= SHORTEST else []

    @precondition(lambda self: self.blocks)
    @rule(at=st.integers(0, 10_000))
    def cut(self, at: int) -> None:
        at %= len(self.blocks)
        self.sequences.cut(1, self.blocks[at])
        longer = max(self.blocks[:at], self.blocks[at + 1 :], key=len)
        self.blocks = longer if len(longer) >= SHORTEST else []

    @rule()
    def drop(self) -> None:
        self.sequences.drop(1)
        self.blocks = []

    @invariant()
    def every_block_begins_a_run_to_the_end(self) -> None:
        packed = pack(self.blocks)
        for at in range(0, len(self.blocks), 7):
            assert self.sequences.run(1, packed, at) == len(self.blocks) - at
        assert len(self.sequences) == bool(self.blocks)


TestSequences = SequencesMachine.TestCase
TestSequences.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
