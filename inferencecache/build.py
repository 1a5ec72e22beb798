"""What a build leaves behind about itself.

A commit cannot be part of what is committed, so an image's build writes it into a file beside this one, if it was told.
Where nobody did, as in a checkout, nothing is known, and nothing is claimed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("COMMIT")


def commit(file: Path = _FILE) -> str | None:
    """The commit that this was built from; None if the build was not told."""
    try:
        return file.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
