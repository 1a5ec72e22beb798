"""Long work in turns with other work: a generator that yields where others may go on, and returns the result.

Whoever has nothing else to do takes it `at_once`. Work of one slice never yields, so that both are the same for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

SLICE: Final = 512
"""Replicas that are looked at, ranked or told of in one turn: a few milliseconds."""


def slices(items: Sequence[T]) -> Iterable[tuple[bool, Sequence[T]]]:
    """The items, `SLICE` at a time; and whether it is time for a turn of others before."""
    return ((False, items),) if len(items) <= SLICE else _slices(items)


def _slices(items: Sequence[T]) -> Iterator[tuple[bool, Sequence[T]]]:
    for start in range(0, len(items), SLICE):
        yield start > 0, items[start : start + SLICE]


def at_once(turns: Generator[None, None, T]) -> T:
    """The result, without turns of others."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: T = end.value
            return result
