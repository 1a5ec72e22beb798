"""Which records of the log this server has met.

Each origin counts its records, so one number per origin is enough: what is not above it was met before, and a jump says
how many records are missing. The first record of an origin may have any number, as the log's past is trimmed.
"""

from __future__ import annotations

from typing import NamedTuple

from inferencecache.server.store.records import Batch


class News(NamedTuple):
    """What a batch brings. `skip` of its leading records were met before; `gone` records before it never came."""

    skip: int
    gone: int


class History:
    """The highest number met per origin."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def news(self, batch: Batch) -> News:
        """How much of `batch` is new; it does not count as met yet."""
        known = self._met.get(batch.origin)
        if known is None:
            return News(skip=0, gone=0)
        return News(
            skip=min(max(known + 1 - batch.sequence, 0), len(batch.records)), gone=max(batch.sequence - known - 1, 0)
        )

    def meet(self, origin: str, sequence: int) -> None:
        """The record of that number has been applied, and so were those before it."""
        self._met[origin] = sequence
