"""The public names are exactly the documented ones."""

from __future__ import annotations

import re
from pathlib import Path

from inferencecache import kube

GUIDE = Path(__file__).parents[3] / "docs" / "framework.md"


def test_the_exported_names_are_exactly_those_of_the_guide() -> None:
    _, _, reference = GUIDE.read_text().partition("## All public names")
    documented = re.findall(r"^\| `(\w+)", reference, flags=re.MULTILINE)
    assert sorted(documented) == sorted(kube.__all__)
    assert all(hasattr(kube, name) for name in kube.__all__)
    assert len(set(kube.__all__)) == len(kube.__all__)


def test_public_names_say_what_they_are() -> None:
    undocumented = [
        name
        for name in kube.__all__
        if callable(getattr(kube, name)) and not (getattr(kube, name).__doc__ or "").strip()
    ]
    assert undocumented == []
