from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.store.history import History, News
from inferencecache.server.store.records import Batch, Record


def batch(first: int, length: int, origin: str = "a") -> Batch:
    return Batch(origin, first, [Record("event", b"")] * length)


@pytest.mark.parametrize(
    ("known", "first", "length", "news"),
    [
        (None, 1, 3, News(skip=0, gone=0)),
        (None, 900, 3, News(skip=0, gone=0)),
        (5, 6, 3, News(skip=0, gone=0)),
        (5, 4, 3, News(skip=2, gone=0)),
        (5, 1, 3, News(skip=3, gone=0)),
        (5, 8, 3, News(skip=0, gone=2)),
    ],
)
def test_what_a_batch_brings(known: int | None, first: int, length: int, news: News) -> None:
    history = History()
    if known is not None:
        history.meet("a", known)
    assert history.news(batch(first, length)) == news


def test_origins_count_for_themselves() -> None:
    history = History()
    history.meet("a", 5)
    assert history.news(batch(1, 2, origin="b")) == News(skip=0, gone=0)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 8))))
def test_no_record_is_met_twice_and_every_missing_one_is_counted(batches: Sequence[tuple[int, int]]) -> None:
    history, met, gone = History(), list[int](), 0
    for first, length in batches:
        skip, missing = history.news(batch(first, length))
        gone += missing
        for sequence in range(first + skip, first + length):
            met.append(sequence)
            history.meet("a", sequence)
    assert met == sorted(set(met))
    if met:
        assert gone == met[-1] - met[0] + 1 - len(met)
