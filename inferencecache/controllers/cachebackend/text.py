"""Foreign text in conditions: cut, so that a stack trace does not fill a status (spec 05 §1.5)."""

from __future__ import annotations

from typing import Final

LIMIT_BYTES: Final = 512


def shortened(text: str) -> str:
    """At most 512 bytes of UTF-8, cut between characters, with `...` at the end if something was cut."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= LIMIT_BYTES:
        return text
    return encoded[: LIMIT_BYTES - 3].decode(errors="ignore") + "..."
