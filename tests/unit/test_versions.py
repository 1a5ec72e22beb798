"""One version everywhere: what is released together says so alike, and the release notes begin with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from inferencecache import __version__

ROOT = Path(__file__).parents[2]


def test_the_distribution_has_the_version_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_the_newest_release_notes_are_of_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == __version__


@pytest.mark.parametrize(
    "file",
    [
        *sorted((ROOT / "manifests").rglob("*.yaml")),
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "Dockerfile",
        *sorted((ROOT / "e2e").rglob("Dockerfile")),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_image_and_archive_of_ours_that_a_file_names_is_of_this_version(file: Path) -> None:
    named = re.findall(r"\binferencecache(?:-subscriber)?:(\d[\w.+-]*\d)", file.read_text())
    named += re.findall(r"kubectl-inferencecache_(\d[\d.]*\d)", file.read_text())
    assert set(named) <= {__version__}
