"""From bytes to deltas: what is told to whom, and what is said of the rest."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from inferencecache.fakeengine.encoding import Encoding, encode
from inferencecache.subscriber.chain import Adds, Chain, Clear, Delta
from inferencecache.subscriber.pipeline import UNDECODABLE, Pipeline
from inferencecache.wire.events import AllBlocksCleared, BlockRemoved, BlockStored

STORED = BlockStored([1], None, [1, 2], 2)


class Recorder:
    """A recipient that keeps what it is given."""

    def __init__(self) -> None:
        self.told: list[tuple[list[Delta], int]] = []

    def put(self, deltas: list[Delta], timestamp_us: int) -> None:
        self.told.append((deltas, timestamp_us))

    def kinds(self) -> list[str]:
        return [type(delta).__name__ for deltas, _ in self.told for delta in deltas]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pipeline(*recipients: Recorder, clock: Clock | None = None) -> Pipeline:
    return Pipeline(Chain(), lambda: list(recipients), clock or Clock())


@pytest.mark.parametrize("encoding", list(Encoding))
def test_each_recipient_is_told_what_changed_and_when(encoding: Encoding) -> None:
    one, other = Recorder(), Recorder()
    it = pipeline(one, other)
    it.batch(0, encode([STORED], encoding, ts=1.5))
    it.batch(0, encode([BlockRemoved([9])], encoding, ts=2.5))
    it.batch(0, encode([BlockRemoved([1])], encoding, ts=3.5))
    assert one.told == other.told
    assert [(type(deltas[0]).__name__, us) for deltas, us in one.told] == [("Adds", 1_500_000), ("Evict", 3_500_000)]


def test_ranks_are_told_apart_by_their_sockets_and_by_what_they_say() -> None:
    recorder = Recorder()
    it = pipeline(recorder)
    for source, rank in ((0, 0), (0, 1), (1, 0)):
        it.batch(source, encode([STORED], Encoding.MAP, rank=rank))
    it.batch(0, encode([BlockRemoved([1])], Encoding.MAP, rank=0))
    it.void(0)
    assert "Evict" not in recorder.kinds()
    assert it.chain.alive == 1
    it.batch(1, encode([AllBlocksCleared()], Encoding.MAP, rank=0))
    assert it.chain.alive == 0
    assert recorder.told[-1][0] == [Clear()]


def test_a_source_that_held_nothing_voids_nothing() -> None:
    recorder = Recorder()
    it = pipeline(recorder)
    it.void(0)
    it.batch(1, encode([STORED], Encoding.MAP))
    it.void(0)
    assert recorder.kinds() == ["Adds"]


def test_what_is_left_out_is_counted_each_time_and_said_now_and_then() -> None:
    clock = Clock()
    recorder = Recorder()
    it = pipeline(recorder, clock=clock)
    with capture_logs() as lines:
        for _ in range(3):
            it.batch(0, b"\xc1")
            it.batch(0, encode([BlockStored([5], None, None, 2)], Encoding.MAP))
        clock.now = 31.0
        it.batch(0, b"\xc1")
    assert it.dropped == {UNDECODABLE: 4, "unknown_block": 3}
    assert [(line["log_level"], line["reason"], line["total"]) for line in lines] == [
        ("warning", UNDECODABLE, 1),
        ("warning", "unknown_block", 1),
        ("warning", UNDECODABLE, 4),
    ]
    assert "token_ids" in lines[1]["event"]


def test_each_adapter_without_a_name_is_told_once_by_its_number() -> None:
    it = pipeline()
    with capture_logs() as lines:
        for _ in range(2):
            for lora_id in (7, -1, None):
                it.batch(0, encode([BlockStored([1], None, [1, 2], 2, lora_id)], Encoding.ARRAY))
    assert it.dropped == {"unmapped_adapter": 4}
    assert [line["lora_id"] for line in lines if "--lora-adapter-names" in line["event"]] == [7, -1]


def test_a_bad_batch_does_not_keep_the_next_one_out() -> None:
    recorder = Recorder()
    it = pipeline(recorder)
    it.batch(0, encode([STORED], Encoding.ARRAY)[:-3])
    it.batch(0, encode([STORED], Encoding.ARRAY))
    ((deltas, timestamp_us),) = recorder.told
    assert isinstance(deltas[0], Adds)
    assert timestamp_us == 0
