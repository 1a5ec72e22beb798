"""What a backend's leader says of itself: its health, its figures and what is mounted (spec 10 §6.3).

The three questions are asked at the same time, so that a leader that does not answer costs one timeout, not three
(decision F3). Each answer stands for itself: an error is part of what was read, and only the health tells whether the
others mean anything, as a leader that does not serve yet answers with figures that are all zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from inferencecache.controllers.mooncake.admin import AdminClient, Health, MasterError, Segment
from inferencecache.controllers.mooncake.exposition import Scrape, ScrapeError, parse

T = TypeVar("T")


class Masters(Protocol):
    """How leaders are reached."""

    def at(self, address: str) -> AdminClient:
        """The leader with this Admin address."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of a leader, or why there is none."""

    health: Health | MasterError
    scrape: Scrape | MasterError | ScrapeError
    segments: list[Segment] | MasterError

    @property
    def serving(self) -> bool:
        """Whether the leader serves, and what it says can be believed."""
        return isinstance(self.health, Health) and self.health.service_ready


async def read(master: AdminClient) -> Reading:
    """Ask a leader everything. Raises nothing for what the leader may do."""
    async with asyncio.TaskGroup() as group:
        health = group.create_task(_answer(master.health()))
        scrape = group.create_task(_answer(_scrape(master)))
        segments = group.create_task(_answer(master.segments()))
    return Reading(health.result(), scrape.result(), segments.result())


async def _scrape(master: AdminClient) -> Scrape | ScrapeError:
    try:
        # As long as it may be, and Pods are admitted on this loop.
        return await asyncio.to_thread(parse, await master.metrics())
    except ScrapeError as error:
        return error


async def _answer(call: Coroutine[Any, Any, T]) -> T | MasterError:
    try:
        return await call
    except MasterError as error:
        return error
