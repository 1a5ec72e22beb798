"""Waiting for what happens in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], T | None], within: float = 60.0) -> T:
    """What `look` finds, once it finds something; fails after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while loop.time() < deadline:
        if (found := look()) is not None:
            return found
        await asyncio.sleep(0.001)
    raise AssertionError(f"nothing was found within {within:g} s")


@dataclass
class Turns:
    """How often others had their turn."""

    count: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count the turns that others get while the block is at work."""
    turns = Turns()

    async def others() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    try:
        yield turns
    finally:
        other.cancel()
