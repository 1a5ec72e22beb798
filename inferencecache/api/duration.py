"""Durations in Go's grammar (`1h30m`, `250ms`, `0`), compared by value and written back as they were spelled."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import total_ordering
from typing import Any, Final

from pydantic_core import CoreSchema, core_schema

_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LARGEST: Final = 2**63 - 1
_LONGEST: Final = 200


@total_ordering
class Duration:
    """A signed span of time; `nanoseconds` is its value, `text` its spelling. Raises `ValueError` on other text."""

    __slots__ = ("nanoseconds", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a duration: write text such as 5m or 1h30m")  # noqa: TRY004 - for pydantic
        self.text = text
        self.nanoseconds = _parse(text)

    @property
    def timedelta(self) -> timedelta:
        """This span at microsecond precision."""
        return timedelta(microseconds=self.nanoseconds // 1000)

    def __eq__(self, other: object) -> bool:
        return self.nanoseconds == other.nanoseconds if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: Duration) -> bool:
        return self.nanoseconds < other.nanoseconds

    def __hash__(self) -> int:
        return hash(self.nanoseconds)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Duration({self.text!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda raw: raw if isinstance(raw, cls) else cls(raw),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda d: d.text),
        )


def _parse(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, position = Fraction(0), 0
    while position < len(rest) <= _LONGEST:
        match = _PART.match(rest, position)
        if match is None:
            break
        total += int(Fraction(match[1].rstrip(".")) * _UNITS[match[2]])
        position = match.end()
    if not rest or position != len(rest):
        raise ValueError(
            f"{text[:_LONGEST]!r} is not a duration: write numbers with units ns, us, ms, s, m or h, as 5m or 1h30m"
        )
    if total > _LARGEST + (sign < 0):
        raise ValueError(f"duration {text!r} is out of range: the longest is about 292 years")
    return sign * int(total)
