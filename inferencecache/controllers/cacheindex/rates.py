"""Rates as text: the shortest decimal that is the same 32-bit float, without an exponent (spec 05 §7.2).

A status holds text where Kubernetes has no fractions. The server counts in 32 bits, and `0.8` must not become
`0.800000011920929`.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Final

_LARGEST: Final = float.fromhex("0x1.fffffep+127")


def rate_text(value: float) -> str:
    """A finite number as text; `0` for zero only. What float32 cannot hold is cut to its largest."""
    short = f"{value:.6g}"
    if float(short) == value and "e" not in short:
        return short.removeprefix("-") if value == 0 else short  # so few digits are never two 32-bit floats
    packed = struct.pack("f", max(-_LARGEST, min(value, _LARGEST)))
    rounded: float = struct.unpack("f", packed)[0]
    if rounded == 0:
        # A rate that is tiny, yet not zero, must not read as "never".
        return "0" if value == 0 else _plain(value, 1)
    return next(text for digits in range(1, 10) if struct.pack("f", float(text := _plain(rounded, digits))) == packed)


def _plain(value: float, digits: int) -> str:
    return format(Decimal(f"{value:.{digits}g}").normalize(), "f")
