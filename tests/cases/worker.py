"""Carries out the start script of the multi-process worker in a scratch folder and tells what it does.

Recorded cases say what the worker *runs*, not how its script is spelled: the files it writes, and the argument vector
it ends in.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

_STUB = """#!/bin/sh
printf '%s\\0' python3 "$@" > "$ARGV_FILE"
"""


def with_effect(container: dict[str, Any]) -> dict[str, Any]:
    """The worker's container with `runs` in place of command and args, and its probe as the address it dials."""
    shown = dict(container)
    shown["runs"] = effect([*shown.pop("command", []), *shown.pop("args", [])])
    probe = shown.get("startupProbe", {})
    dialled = re.search(r"127\.0\.0\.1\D+(\d+)", " ".join(probe.get("exec", {}).get("command", [])))
    if dialled:
        shown["startupProbe"] = {**probe, "exec": {"command": f"<connects to 127.0.0.1:{dialled[1]}>"}}
    return shown


def effect(argv: list[str]) -> dict[str, Any]:
    """What `sh -c SCRIPT` writes below /etc/lmcache and finally executes; another program is what it is."""
    if len(argv) != 3 or argv[1] != "-c":
        return {"argv": argv}
    shell, option, script = argv
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        etc, tools, out = root / "etc", root / "bin", root / "argv"
        etc.mkdir()
        tools.mkdir()
        (tools / "python3").write_text(_STUB)
        (tools / "python3").chmod(0o755)
        subprocess.run(
            [shell, option, script.replace("/etc/lmcache", str(etc))],
            env={"PATH": f"{tools}:/usr/bin:/bin", "ARGV_FILE": str(out)},
            cwd=root,
            check=True,
            timeout=120,
        )
        executed: list[Any] = out.read_text().split("\0")[:-1]
        files = {f"/etc/lmcache/{path.name}": yaml.safe_load(path.read_text()) for path in sorted(etc.iterdir())}
    if "--l2-adapter" in executed:
        place = executed.index("--l2-adapter") + 1
        executed[place] = {"json": json.loads(executed[place])}
    return {"argv": executed, "files": files}
