"""What this server accepted and has not yet read back from the shared log.

An entry waits to be sent, is sent, and leaves when the log's reader meets it. If the connection breaks in between, what
was sent may or may not have arrived: everything still here is sent again, in order, under its old numbers, and readers
skip what they have seen. Bounded in bytes; the oldest entries give way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from inferencecache.server.store.records import Record


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted record.

    Attributes:
        sequence: its number among the records of this server, from 1.
        record: what was accepted.
        applied: it is in the index of this server already.
        waiter: who waits for it to be appended and applied.
        sent_at: when it was sent for the last time, in seconds of a monotonic clock.
    """

    sequence: int
    record: Record
    applied: bool
    waiter: asyncio.Future[None] | None = None
    sent_at: float = 0.0

    def settle(self) -> None:
        """Tell whoever waits that the record is where it has to be."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None


class Outbox:
    """A queue in two parts: sent, and still to be sent."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sent_bytes = 0
        self._sequence = 0
        self._sent: deque[Entry] = deque()
        self._unsent: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._sent) + len(self._unsent)

    def __iter__(self) -> Iterator[Entry]:
        return chain(self._sent, self._unsent)

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    @property
    def sent_size(self) -> int:
        """Bytes on their way."""
        return self._sent_bytes

    @property
    def waiting_since(self) -> float | None:
        """When the entry that has been on its way for the longest was sent; None when none is on its way."""
        return self._sent[0].sent_at if self._sent else None

    def push(self, record: Record, *, applied: bool) -> tuple[Entry, list[Entry]]:
        """Add `record`. Also gives the entries that had to leave for it; at least the new one stays."""
        self._sequence += 1
        entry = Entry(self._sequence, record, applied)
        self._unsent.append(entry)
        self._bytes += record.size
        dropped = []
        while self._bytes > self._max_bytes and len(self) > 1:
            dropped.append(self._pop())
        return entry, dropped

    def take(self, max_records: int, max_bytes: int, now: float) -> list[Entry]:
        """The next entries to send, at least one if there is any, with consecutive numbers; they count as sent."""
        taken: list[Entry] = []
        size = 0
        while self._unsent and len(taken) < max_records:
            entry = self._unsent[0]
            size += entry.record.size
            if taken and (size > max_bytes or entry.sequence != taken[-1].sequence + 1):
                break
            entry.sent_at = now
            taken.append(self._unsent.popleft())
            self._sent_bytes += entry.record.size
        self._sent.extend(taken)
        return taken

    def rewind(self) -> None:
        """Everything is to be sent again."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0

    def met(self, sequence: int) -> tuple[Entry | None, list[Entry]]:
        """The entry of that number, which the log holds, and those before it, which the log must have lost.

        All of them leave. No entry: it had left before.
        """
        lost: list[Entry] = []
        while len(self) and next(iter(self)).sequence <= sequence:
            entry = self._pop()
            if entry.sequence == sequence:
                return entry, lost
            lost.append(entry)
        return None, lost

    def _pop(self) -> Entry:
        if self._sent:
            entry = self._sent.popleft()
            self._sent_bytes -= entry.record.size
        else:
            entry = self._unsent.popleft()
        self._bytes -= entry.record.size
        return entry
