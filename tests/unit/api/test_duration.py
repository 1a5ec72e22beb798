"""Durations in Go's grammar."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.duration import Duration


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("1ns", 1),
        ("1us", 10**3),
        ("1µs", 10**3),
        ("1μs", 10**3),
        ("1ms", 10**6),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 10**9),
        ("5m", 300 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("-1m", -60 * 10**9),
        ("+1m", 60 * 10**9),
        ("30m1h", 5400 * 10**9),
    ],
)
def test_the_grammar_of_go(text: str, nanoseconds: int) -> None:
    assert Duration(text).nanoseconds == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "1d", "--1s", "1s ", "five minutes", "1e3s", "٥s", "."])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Duration(text)


def test_more_than_an_int64_of_nanoseconds_is_refused() -> None:
    assert Duration("2562047h47m16.854775807s").nanoseconds == 2**63 - 1
    assert Duration("-9223372036854775808ns").nanoseconds == -(2**63)
    with pytest.raises(ValueError, match="out of range"):
        Duration("2562047h47m16.854775808s")


def test_equality_is_by_value_and_spelling_is_kept() -> None:
    assert Duration("5m") == Duration("5m0s") == Duration("300s")
    assert str(Duration("5m0s")) == "5m0s"
    assert Duration("90s").timedelta == timedelta(minutes=1, seconds=30)


@given(st.integers(0, 10**6), st.sampled_from(["ns", "us", "ms", "s", "m", "h"]))
def test_order_is_the_order_of_values(number: int, unit: str) -> None:
    assert Duration(f"{number}{unit}") < Duration(f"{number + 1}{unit}")


@given(st.text(max_size=12))
def test_garbage_gives_the_documented_error_only(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert str(Duration(text)) == text
