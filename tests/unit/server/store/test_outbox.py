"""The outbox beside a model of two plain lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inferencecache.server.store.outbox import Entry, Outbox
from inferencecache.server.store.records import EVENT, Record

LIMIT = 2000


def event(size: int = 0) -> Record:
    return Record(EVENT, bytes(size))


def numbers(entries: Iterable[Entry]) -> list[int]:
    return [entry.sequence for entry in entries]


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(LIMIT)
        self.sent: list[Entry] = []
        self.unsent: list[Entry] = []
        self.pushed = 0

    @rule(size=st.integers(0, 3000))
    def push(self, size: int) -> None:
        entry, dropped = self.outbox.push(event(size), applied=False)
        self.pushed += 1
        assert entry.sequence == self.pushed
        self.unsent.append(entry)
        expected = []
        while sum(e.record.size for e in self.sent + self.unsent) > LIMIT and len(self.sent) + len(self.unsent) > 1:
            expected.append((self.sent or self.unsent).pop(0))
        assert dropped == expected

    @rule(records=st.integers(1, 4), size=st.integers(1, 1000))
    def take(self, records: int, size: int) -> None:
        taken = self.outbox.take(records, size, now=1.0)
        assert taken == self.unsent[: len(taken)]
        assert bool(taken) == bool(self.unsent)
        assert len(taken) <= records
        assert len(taken) <= 1 or sum(entry.record.size for entry in taken) <= size
        assert not taken or numbers(taken) == list(range(taken[0].sequence, taken[0].sequence + len(taken)))
        del self.unsent[: len(taken)]
        self.sent += taken

    @rule()
    def rewind(self) -> None:
        self.outbox.rewind()
        self.unsent = self.sent + self.unsent
        self.sent = []

    @rule(data=st.data())
    def met(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, self.pushed))
        entry, lost = self.outbox.met(sequence)
        leaving = [e for e in self.sent + self.unsent if e.sequence <= sequence]
        assert numbers(lost) == [number for number in numbers(leaving) if number != sequence]
        assert (entry is not None) == (sequence in numbers(leaving))
        self.sent = [e for e in self.sent if e.sequence > sequence]
        self.unsent = [e for e in self.unsent if e.sequence > sequence]

    @invariant()
    def agrees_with_the_lists(self) -> None:
        assert list(self.outbox) == self.sent + self.unsent
        assert len(self.outbox) == len(self.sent) + len(self.unsent)
        assert self.outbox.size == sum(entry.record.size for entry in self.outbox)
        assert self.outbox.sent_size == sum(entry.record.size for entry in self.sent)
        assert (self.outbox.waiting_since is None) == (not self.sent)


OutboxMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestOutbox = OutboxMachine.TestCase


def test_a_record_larger_than_the_whole_buffer_is_kept_alone() -> None:
    outbox = Outbox(100)
    outbox.push(event(), applied=False)
    entry, dropped = outbox.push(event(5000), applied=False)
    assert list(outbox) == [entry]
    assert numbers(dropped) == [1]


@pytest.mark.parametrize("waits", [True, False])
async def test_settling_tells_whoever_waits_and_only_once(waits: bool) -> None:
    entry = Entry(1, event(), applied=True)
    waiter = entry.waiter = asyncio.get_running_loop().create_future()
    if not waits:
        waiter.cancel()
    entry.settle()
    entry.settle()
    assert waiter.cancelled() != waits
