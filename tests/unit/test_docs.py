"""The hand-written documentation keeps up: its links lead somewhere, and no reason goes unexplained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferencecache.controllers.cachebackend import reasons

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a forge makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_reason_is_explained_to_users() -> None:
    guide = "".join((ROOT / "docs" / page).read_text() for page in ("cachebackend.md", "conditions.md"))
    given = [value for name, value in vars(reasons).items() if name.isupper()]
    assert given
    assert [reason for reason in given if f"`{reason}`" not in guide] == []
