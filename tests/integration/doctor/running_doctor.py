"""The doctor as users run it: a process of its own, with an exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    exit: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def findings(self) -> set[tuple[str, str]]:
        """Codes with their resources."""
        return {(one["code"], one.get("resource", "")) for one in self.report["findings"]}

    def message(self, code: str, resource: str = "") -> str:
        """What the finding of a code, about a resource if one is given, says."""
        return next(
            str(one["message"])
            for one in self.report["findings"]
            if one["code"] == code and resource in ("", one.get("resource", ""))
        )


async def run(
    *command: object,
    kubeconfig: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 150,
) -> Ran:
    """Run a script of this distribution, or anything else, to its end."""
    env = {**os.environ, **(environment or {})}
    if kubeconfig is not None:
        env["KUBECONFIG"] = str(kubeconfig)
    program = Path(str(command[0]))
    if not program.is_absolute():
        program = SCRIPTS / program
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, command[1:]),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        process.kill()
        raise
    return Ran(process.returncode or 0, out.decode(), err.decode())
