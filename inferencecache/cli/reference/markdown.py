"""Markdown in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

GENERATED: Final = "<!-- Generated from the code by `make generate`; change the code, not this file. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars in cells are escaped, line breaks become blanks."""
    head, *body = (f"| {' | '.join(map(_cell, line))} |\n" for line in (header, *rows))
    return f"{head}|{'---|' * len(header)}\n{''.join(body)}"


def code(text: str) -> str:
    """Text as inline code; empty text stays empty."""
    return f"`{text}`" if text else ""


def fenced(language: str, text: str) -> str:
    """Text as a code block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
