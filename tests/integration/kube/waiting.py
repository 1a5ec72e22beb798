"""Waiting for what a real system will do, with a deadline, and with what was seen last when it did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], good: Callable[[T], bool], *, seconds: float = 60) -> T:
    """Look until what is seen is good, and return it."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        seen = await look()
        if good(seen):
            return seen
        assert asyncio.get_running_loop().time() < deadline, f"after {seconds:g} s still: {seen!r}"
        await asyncio.sleep(0.05)
