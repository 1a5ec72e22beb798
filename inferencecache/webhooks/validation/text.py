"""Free text that ends on command lines, in documents and in the columns of tables: what cannot be seen breaks those."""

from __future__ import annotations

import unicodedata
from typing import Final

_BREAKING: Final = frozenset({"Cc", "Zl", "Zp"})
"""Control characters, line breaks and tabs among them, and Unicode's separators of lines and paragraphs."""


def breaks(text: str) -> bool:
    """Whether a character in the text would break a line, or do what no writing does."""
    return any(unicodedata.category(char) in _BREAKING for char in text)
