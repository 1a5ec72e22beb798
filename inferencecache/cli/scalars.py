"""Which plain scalars of YAML are numbers and truth values to kubectl, and so to everybody who writes manifests.

kubectl reads YAML with go-yaml 2, whose rules are neither those of YAML 1.1 nor of 1.2: `y` is true, `08` is eight,
`0o17` is fifteen, `1e3` is a thousand and an integer in JSON, and `22:30` is text. A text that looks like one of these
has to be quoted where it is written, or it arrives as something else.
"""

from __future__ import annotations

import math
import re
from typing import Final

TRUTH: Final = re.compile("^(?:y|Y|yes|Yes|YES|on|On|ON|true|True|TRUE|n|N|no|No|NO|off|Off|OFF|false|False|FALSE)$")
TRUTH_BEGINS: Final = "yYoOtTnNfF"
NUMBER: Final = re.compile(
    r"^[-+]?(?:0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+"
    r"|(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)
NUMBER_BEGINS: Final = "-+.0123456789"

_TRUE: Final = frozenset({"y", "yes", "on", "true"})
_INTEGER: Final = re.compile(r"([-+]?)(?:0([bB][01]+|[oO]?[0-7]*|[xX][0-9a-fA-F]+)|([1-9][0-9]*))")
_BASES: Final = {"b": 2, "o": 8, "x": 16}
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**64 - 1
_WHOLE_IN_JSON: Final = 1e21
"""Below this, Go writes a number without a fraction as an integer."""


def truth(text: str) -> bool:
    """The truth value that a scalar which matches `TRUTH` stands for."""
    return text.lower() in _TRUE


def number(text: str) -> int | float | str:
    """What a scalar that matches `NUMBER` stands for, as JSON has it; the text itself where it is too large for one.

    Raises `ValueError` for what JSON has no number for.
    """
    digits = text.replace("_", "")
    whole = _integer(digits)
    if whole is not None and _SMALLEST <= whole <= _LARGEST:
        return whole
    if digits.lower().lstrip("-+") in (".inf", ".nan"):
        raise ValueError(f"{text} is no number that JSON has")
    try:
        found = float(digits)
    except ValueError:
        return text
    if math.isinf(found):
        return text
    return int(found) if found.is_integer() and abs(found) < _WHOLE_IN_JSON else found


def _integer(digits: str) -> int | None:
    match = _INTEGER.fullmatch(digits)
    if match is None:
        return None
    sign, behind_zero, decimal = match.groups()
    if decimal is not None:
        value = int(decimal)
    else:
        base = _BASES.get(behind_zero[:1].lower())
        value = int(behind_zero[1:] if base else behind_zero or "0", base or 8)
    return -value if sign == "-" else value
