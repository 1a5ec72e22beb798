"""What a person is told who meets a reason in `kubectl describe`."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One reason: with which status it stands, what it means, and the remedy; empty: nothing is to be done."""

    status: str
    reason: str
    means: str
    remedy: str = ""
