"""How the values of annotations that users set are read (spec 03 §5)."""

from __future__ import annotations

from typing import Final

_FALSE: Final = frozenset({"", "0", "f", "F", "FALSE", "false", "False"})
_NO: Final = frozenset({"no", "off", "disable", "disabled"})


def opts_out(value: str) -> bool:
    """The truth of the skip-inject annotation: false as Go reads booleans, a few words for no, all else yes."""
    return value not in _FALSE and value.lower() not in _NO
