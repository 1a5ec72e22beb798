"""The numbers of an engine's messages: what a number means for what was heard before (decision D3, spec 08 §3).

Each publisher counts its batches from 0. A number beyond the expected one is a gap, one that is not beyond the last is
another life of the engine. After a replay, which may run ahead of the stream, numbers of the stream that were replayed
already are met again, in order, and are no restart. But it cannot run ahead by more than what waits on the way: numbers
that are further behind were not replayed, whatever the replay said.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

MAX_AHEAD: Final = 1 << 18
"""An engine keeps 100,000 batches in a queue and as many in its socket, unless it is told otherwise (spec 08 §3)."""


class Meaning(Enum):
    """What the number of a message on the stream says."""

    FIRST = auto()
    """Nothing was heard before."""
    NEXT = auto()
    """The one that was due."""
    REPLAYED = auto()
    """It was applied already."""
    GAP = auto()
    """Those before it are missing."""
    RESTART = auto()
    """The engine began anew."""


class Sequence:
    """Where one rank's stream is.

    Attributes:
        due: the number of the next batch to apply; None before the first one.
    """

    __slots__ = ("_last", "due")

    def __init__(self) -> None:
        self.due: int | None = None
        self._last: int | None = None

    def judge(self, number: int) -> Meaning:
        """What a number on the stream means. Nothing changes until the batch is `applied`, except after a restart."""
        known = self._last is not None and number <= self._last
        if known or (self.due is not None and number < self.due - MAX_AHEAD):
            self.forget()
            self._last = number
            return Meaning.RESTART
        self._last = number
        if self.due is None:
            return Meaning.FIRST
        if number < self.due:
            return Meaning.REPLAYED
        return Meaning.NEXT if number == self.due else Meaning.GAP

    def applied(self, number: int) -> None:
        """The batch of this number was applied, whether it came on the stream or by replay."""
        self.due = number + 1

    def forget(self) -> None:
        """Begin anew: the connection was lost, or the engine is another one."""
        self.due = self._last = None
