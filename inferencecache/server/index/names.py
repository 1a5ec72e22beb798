"""How much memory the names of the index take, and whose are given up when it is too much.

The cap counts holds, and a hold costs little beside what there is once for the names it comes under: a **bearer**,
which is a replica's lane of one adapter or its stats of one model, and the levels above. Producers choose the names,
and how many. One that makes them up would fill the memory of the server long before the cap, or with stats alone.

Where names take more than they may, the bearer that was not heard of for longest goes. Who is alive reports all the
time, so it is mostly made-up names that go, and what is lost of others comes back with their next report.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from inferencecache.server.index.partition import Lane
    from inferencecache.server.index.tree import StatsRow

MOST_BYTES: Final = 128 << 20
"""Room for 70,000 lanes under names of ordinary length."""

_WIDEST_CHARACTER: Final = 8  # four bytes, and four in the UTF-8 that a string keeps once it was asked for


class Node(IntEnum):
    """What there is once for a name, and the bytes it takes without holds: as measured, rounded up."""

    TENANT = 300
    MODEL = 400
    SCOPE = 500
    PARTITION = 2400  # with the order of its keys, which tenants over a quota have
    LANE = 1800
    STATS = 600


class Names:
    """The names of one index. `size` is the bytes that they take."""

    __slots__ = ("_heard", "size")

    def __init__(self) -> None:
        self.size = 0
        self._heard: OrderedDict[Lane | StatsRow, None] = OrderedDict()

    def add(self, node: Node, name: str) -> None:
        """Count a node that has come."""
        self.size += node + _length(name)

    def drop(self, node: Node, name: str) -> None:
        """Count a node less that has gone."""
        self.size -= node + _length(name)

    def hear(self, bearer: Lane | StatsRow) -> None:
        """Note that a bearer has come, or was reported once more."""
        self._heard[bearer] = None
        self._heard.move_to_end(bearer)

    def forget(self, bearer: Lane | StatsRow) -> None:
        """Note that a bearer has gone."""
        del self._heard[bearer]

    def longest_silent(self) -> Lane | StatsRow | None:
        """The bearer that was not heard of for longest."""
        return next(iter(self._heard), None)


def _length(name: str) -> int:
    return len(name) if name.isascii() else _WIDEST_CHARACTER * len(name)
