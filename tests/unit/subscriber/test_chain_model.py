"""The index that the chain's deltas build equals the engine's own state, hash by hash (decision D11)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.subscriber.chain import Add, Chain, Clear, Delta, Evict, Renew
from inferencecache.subscriber.tiers import Tier
from inferencecache.wire.events import EventDecoder
from tests.unit.subscriber.engine import STEPS, Engine, Step, one_by_one

Index = dict[tuple[int, str], Tier]
LOGS = st.lists(STEPS, max_size=30)


class Follower:
    """Decoder, chain, and an index that does what it is told."""

    def __init__(self, **options: Any) -> None:
        self.decoder = EventDecoder()
        self.chain = Chain(**options)
        self.index: Index = {}

    def hear(self, payload: bytes) -> None:
        decoded = self.decoder.decode(payload)
        self.tell(self.chain.apply(decoded.events, decoded.data_parallel_rank or 0))

    def rebuilt(self) -> Index:
        """What a server knows that is told everything anew."""
        told = [*self.chain.holds(), *(add for add, _ in self.chain.moved())]
        return {(add.prefix_hash, add.adapter): add.tier for add in told}

    def tell(self, deltas: list[Delta]) -> None:
        if Renew() in deltas:
            self.index = self.rebuilt()  # of what the chain holds by now
            return
        for delta in one_by_one(deltas):
            match delta:
                case Add(prefix, _, adapter, tier):
                    self.index[prefix, adapter] = tier
                case Evict(prefix, adapter):
                    del self.index[prefix, adapter]  # only what is held is ever evicted
                    if not adapter:  # to a server that is the prefix with every adapter
                        self.index = {key: tier for key, tier in self.index.items() if key[0] != prefix}
                case Clear():
                    self.index.clear()


def payloads(engine: Engine, steps: list[Step]) -> list[bytes]:
    return [engine.do(step) for step in steps]


@given(LOGS)
@settings(max_examples=200)
def test_after_every_batch_the_index_equals_the_engines_state(steps: list[Step]) -> None:
    engine, follower = Engine(), Follower()
    for step in steps:
        follower.hear(engine.do(step))
        assert follower.index == engine.index()
    assert {(hold.prefix_hash, hold.adapter): hold.tier for hold in follower.chain.holds()} == engine.index()
    assert follower.chain.alive == sum(
        len({block for (of, _), blocks in engine.held.items() if of == rank for block in +blocks}) for rank in (0, 1)
    )


@given(LOGS, st.integers(0, 10))
@settings(max_examples=100)
def test_who_joins_late_never_says_more_than_the_engine_holds(steps: list[Step], missed: int) -> None:
    engine, follower = Engine(), Follower()
    for number, payload in enumerate(payloads(engine, steps)):
        if number >= missed:
            follower.hear(payload)
    truth = engine.index()
    assert all(tier >= truth[key] for key, tier in follower.index.items())


@given(LOGS, st.integers(0, 29), st.integers(1, 5))
@settings(max_examples=100)
def test_a_replay_from_the_beginning_after_a_gap_restores_the_engines_state(
    steps: list[Step], first: int, lost: int
) -> None:
    engine, follower = Engine(), Follower()
    log = payloads(engine, steps)
    for payload in [*log[:first], *log[first + lost :]]:
        follower.hear(payload)
    for rank in (0, 1):
        follower.tell(follower.chain.clear(rank))
    for payload in log:
        follower.hear(payload)
    assert follower.index == engine.index()


@given(LOGS)
@settings(max_examples=100)
def test_with_an_offload_tier_the_index_is_the_engines_state_and_what_left_the_gpu_in_t2(steps: list[Step]) -> None:
    engine, follower = Engine(), Follower(offloads=True)
    for step in steps:
        follower.hear(engine.do(step))
        truth = engine.index()
        assert truth.items() <= follower.index.items()
        assert all(tier is Tier.T2 for key, tier in follower.index.items() if key not in truth)


@given(LOGS)
@settings(max_examples=100)
def test_with_an_offload_tier_a_server_that_is_told_everything_anew_knows_what_it_knew(steps: list[Step]) -> None:
    """Of one rank: of several, each may have moved what the index knew to be faster, and then to be gone."""
    engine, follower = Engine(), Follower(offloads=True)
    for step in steps:
        follower.hear(engine.do(step._replace(rank=0)))
        assert follower.rebuilt() == follower.index


@given(LOGS)
@settings(max_examples=50)
def test_of_moves_long_ago_some_are_forgotten_and_none_is_made_up(steps: list[Step]) -> None:
    engine, follower = Engine(), Follower(offloads=True, remembered=2)
    for step in steps:
        follower.hear(engine.do(step._replace(rank=0)))
        assert engine.index().items() <= follower.rebuilt().items() <= follower.index.items()
