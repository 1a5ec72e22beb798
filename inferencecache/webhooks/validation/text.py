"""Free text that ends on command lines, in documents and in the columns of tables: what cannot be seen breaks those.

And the other way round, the text of warnings, which ends on terminals: Kubernetes asks for 120 characters at most.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_BREAKING: Final = frozenset({"Cc", "Zl", "Zp"})
"""Control characters, line breaks and tabs among them, and Unicode's separators of lines and paragraphs."""


LONGEST_WARNING: Final = 120


def warning(text: str, *names: str) -> str:
    """A text with names in the places of `{}`; the longest are cut to the same length where all do not fit."""
    room = LONGEST_WARNING - len(text.format(*("" for _ in names)))
    longest = max(map(len, names), default=0)
    while sum(min(len(name), longest) for name in names) > room:
        longest -= 1
    return text.format(*(name if len(name) <= longest else f"{name[: longest - 1]}…" for name in names))


def breaks(text: str) -> bool:
    """Whether a character in the text would break a line, or do what no writing does."""
    return any(unicodedata.category(char) in _BREAKING for char in text)
