"""Long work in turns with other work: a generator that yields where others may go on, and returns the result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE: Final = 512
"""Replicas that are looked at, ranked or told of in one turn: a few milliseconds."""


def in_turns(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Iterable[Result]]
) -> Generator[None, None, list[Result]]:
    """What `work` makes of the items, which are given to it `SLICE` at a time."""
    done: list[Result] = []
    for start in range(0, len(items), SLICE):
        if start:
            yield
        done += work(items[start : start + SLICE])
    return done
