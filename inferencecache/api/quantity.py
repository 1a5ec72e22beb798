"""Kubernetes quantities: exact numbers that remember how they were written.

`1Gi`, `1024Mi` and `1073741824` are equal; a quantity is written back the way its owner spelled it, so that passing one
through never shows up as a change. Arithmetic is exact (`Fraction`), because limits are compared, divided and rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import total_ordering
from typing import Any, Final

from pydantic_core import CoreSchema, core_schema

PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""The pattern Kubernetes puts into the schema of a quantity."""

_NUMBER = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]+))?", re.ASCII
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_LARGEST_EXPONENT: Final = 100
_LONGEST: Final = 100


@total_ordering
class Quantity:
    """An exact, immutable amount; `text` is its spelling, `value` the number it stands for.

    Raises `ValueError` on text that is no quantity.
    """

    __slots__ = ("_raw", "text", "value")

    def __init__(self, raw: str | int | float) -> None:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise ValueError(  # noqa: TRY004 - pydantic turns only ValueErrors into complaints about the field
                f"{raw!r} is not a quantity: write a number or text such as 500m, 4Gi or 2"
            )
        self._raw = raw
        self.text = str(raw)
        self.value = _parse(self.text)

    @property
    def raw(self) -> str | int | float:
        """The JSON value this was decoded from."""
        return self._raw

    def ceil_div(self, unit: int) -> int:
        """How many whole `unit`s hold this amount, rounded up."""
        return -((-self.value) // unit)

    def __int__(self) -> int:
        """The amount in whole units, rounded up, as Kubernetes reads the number of bytes."""
        return -(-self.value.numerator // self.value.denominator)

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Quantity({self._raw!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda raw: raw if isinstance(raw, cls) else cls(raw),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda q: q.raw),
        )


def binary(amount: int) -> str:
    """Bytes as a quantity, exact and with the largest binary suffix that leaves a whole number: `16Mi`, `6100806`."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_BINARY):
        amount //= 1024
        power += 1
    return f"{amount}{('', *_BINARY)[power]}"


def _parse(text: str) -> Fraction:
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or (match[4] and abs(int(match[4])) > _LARGEST_EXPONENT):
        raise ValueError(
            f"{text[:_LONGEST]!r} is not a quantity: write a number with an optional suffix, as 500m, 4Gi or 2"
        )
    number = Fraction(match[1].rstrip("."))
    if match[2]:
        return number * Fraction(2 ** (10 * _BINARY[match[2]]))
    exponent = _DECIMAL[match[3]] if match[3] else int(match[4] or 0)
    return number * Fraction(10**exponent) if exponent >= 0 else number / Fraction(10**-exponent)
