"""A build names its version and its commit, wherever the commit is told (spec 09 §1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inferencecache import __version__, build
from inferencecache.cli.main import app

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"inferencecache/COMMIT": f"{COMMIT}\n", ".git/HEAD": OTHER}, COMMIT),
        ({".git/HEAD": f"{COMMIT}\n"}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"}, COMMIT),
        (
            {
                ".git/HEAD": "ref: refs/heads/main\n",
                ".git/packed-refs": f"# pack-refs with: peeled\n{OTHER} refs/heads/x\n{COMMIT} refs/heads/main\n",
            },
            COMMIT,
        ),
        ({".git/HEAD": "ref: refs/heads/main\n"}, build.UNKNOWN),
        ({}, build.UNKNOWN),
    ],
    ids=["left by the build", "a commit", "a branch", "a packed branch", "an unborn branch", "nothing"],
)
def test_the_commit_is_found_where_it_is_told(tmp_path: Path, files: Mapping[str, str], told: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert build.commit(tmp_path / "inferencecache") == told


def test_the_version_is_printed_with_the_commit() -> None:
    told = CliRunner().invoke(app, ["--version"]).stdout
    assert re.fullmatch(rf"v{re.escape(__version__)} \(commit ([0-9a-f]{{40}}|{build.UNKNOWN})\)\n", told)
