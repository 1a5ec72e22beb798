"""Where helm and promtool are, and how they are run."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


@functools.cache
def path_of(tool: str) -> str:
    """The path of a tool, built if there is none."""
    done = subprocess.run(
        [ROOT / "hack" / "get-tool.sh", tool], stdout=subprocess.PIPE, text=True, timeout=3600, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def run(tool: str, *arguments: str) -> str:
    """What a tool prints; it must succeed."""
    done = subprocess.run([path_of(tool), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
