"""Where ranks are."""

from __future__ import annotations

import pytest

from inferencecache.wire.ranks import of_rank


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557"),
        ("tcp://127.0.0.1:5557", 3, "tcp://127.0.0.1:5560"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("", 2, ""),
        ("inproc://events", 0, "inproc://events"),
    ],
)
def test_a_rank_is_on_the_port_that_many_higher(endpoint: str, rank: int, expected: str) -> None:
    assert of_rank(endpoint, rank) == expected


@pytest.mark.parametrize("endpoint", ["inproc://events", "tcp://127.0.0.1:*", "tcp://127.0.0.1"])
def test_without_a_port_there_is_no_other_rank(endpoint: str) -> None:
    with pytest.raises(ValueError, match="port to count from"):
        of_rank(endpoint, 1)
