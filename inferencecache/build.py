"""Which build this is, as `--version` (spec 09 §1) and the server's first line say it: its version and its commit.

A commit is known by one of three ways. Who builds an artefact from a copy of the sources leaves it in the file `COMMIT`
of the package; pip writes down what it installed from a repository; and a checkout has its `.git`.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
from pathlib import Path
from typing import Final

import inferencecache

UNKNOWN: Final = "unknown"


def version() -> str:
    """`v<version> (commit <commit>)`."""
    return f"v{inferencecache.__version__} (commit {commit()})"


def commit(package: Path = Path(inferencecache.__file__).parent) -> str:
    """The commit in full, `unknown` if nothing tells."""
    return _left_by_the_build(package) or _written_by_pip() or _of_checkout(package.parent / ".git") or UNKNOWN


def _left_by_the_build(package: Path) -> str:
    try:
        return (package / "COMMIT").read_text().strip()
    except OSError:
        return ""


def _written_by_pip() -> str:
    try:
        written = json.loads(metadata.distribution("inferencecache").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    return str((written.get("vcs_info") or {}).get("commit_id") or "")


def _of_checkout(git: Path) -> str:
    """What is checked out: HEAD names a commit, or a branch, which has a file of its own or is among the packed."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / branch).exists():
            return (git / branch).read_text().strip()
        packed = (line.split(" ") for line in (git / "packed-refs").read_text().splitlines())
        return next((found[0] for found in packed if found[1:] == [branch]), "")
    except OSError:
        return ""
