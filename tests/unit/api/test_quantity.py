"""Quantities: exact, compared by value, and spelled as they were written."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.quantity import Quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("+1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("500m", Fraction(1, 2)),
        ("1k", 1000),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 1024),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("12E-1", Fraction(12, 10)),
        (4, 4),
    ],
)
def test_every_suffix_has_its_value(text: Any, value: Any) -> None:
    assert Quantity(text).value == value


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1gi", "1KI", "Gi", "1..2", "1e", "0x1", "NaN", "1Gi1", "١", "1e999", True]
)
def test_other_text_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity(text)


def test_equality_is_by_value_and_spelling_is_kept() -> None:
    assert Quantity("1Gi") == Quantity("1024Mi") == Quantity(2**30)
    assert hash(Quantity("1k")) == hash(Quantity("1e3"))
    assert str(Quantity("1024Mi")) == "1024Mi"
    assert Quantity(7).raw == 7


@pytest.mark.parametrize(("text", "gib"), [("1", 1), ("1Gi", 1), ("1073741825", 2), (str(2**63 - 1), 2**33)])
def test_whole_units_are_rounded_up(text: str, gib: int) -> None:
    assert Quantity(text).ceil_div(2**30) == gib


@given(st.integers(-(2**63), 2**63), st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_order_is_the_order_of_values(number: int, suffix: str) -> None:
    one, more = Quantity(f"{number}{suffix}"), Quantity(f"{number + 1}{suffix}")
    assert one < more
    assert Quantity(str(one)) == one


@given(st.text(max_size=12))
def test_garbage_gives_the_documented_error_only(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert str(Quantity(text)) == text
