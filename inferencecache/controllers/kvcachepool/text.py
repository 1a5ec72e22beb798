"""How statuses spell amounts and lists of names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LISTED: Final = 20
"""Names that a message lists before it only counts (spec 10 §2.3)."""

_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def binary(amount: int) -> str:
    """Bytes as a quantity, exact and with the largest binary suffix that leaves a whole number: `16Mi`, `6100806`."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_UNITS) - 1:
        amount //= 1024
        power += 1
    return f"{amount}{_UNITS[power]}"


def listed(names: Iterable[object]) -> str:
    """Names in a row, the rest as a number."""
    texts = [str(name) for name in names]
    head = ", ".join(texts[:LISTED])
    return head if len(texts) <= LISTED else f"{head} and {len(texts) - LISTED} more"
