"""How statuses spell amounts."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def binary(amount: int) -> str:
    """Bytes as a quantity, exact and with the largest binary suffix that leaves a whole number: `16Mi`, `6100806`."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_UNITS) - 1:
        amount //= 1024
        power += 1
    return f"{amount}{_UNITS[power]}"
