"""What a call of the server's functional probe can come to (spec 05 §5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

STAGES: Final = ("ingest", "routing", "t2")
OK: Final = "ok"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered: the result of each stage, in the order of `STAGES`, and what it said about failed ones."""

    results: tuple[str, str, str]
    errors: tuple[tuple[str, str], ...] = ()

    def said(self, stage: str) -> str:
        """The first thing that is said about a stage; empty if nothing is."""
        return next((text for name, text in self.errors if name == stage and text.strip()), "").strip()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """There was no usable answer."""

    why: str


Outcome: TypeAlias = Answered | Unanswered
