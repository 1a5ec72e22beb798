"""Child processes of the quickstart: started by the commands users know, awaited, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READY_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 20.0


class ProcessError(Exception):
    """A child process ended or did not get ready; the message has what it said last."""


@dataclass(frozen=True)
class Child:
    """A running child process, what to call it, and where it writes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    async def wait_until(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `ready` holds. Raises `ProcessError` when the process ends first, or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        while not await ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                ended = self.process.poll() is not None
                state = f"ended with exit {self.process.returncode}" if ended else "did not become ready"
                said = await asyncio.to_thread(self.log.read_text, errors="replace")
                raise ProcessError(f"the {self.name} {state}; it said last:\n{said[-3000:]}")
            await asyncio.sleep(0.1)

    async def wait_answers(self, url: str) -> None:
        """Wait until a GET of `url` is answered with 200. Raises as `wait_until` does."""
        await self.wait_until(lambda: asyncio.to_thread(answers, url))


def command(*arguments: str) -> list[str]:
    """A command line of this distribution's script, as a user would type it."""
    script = shutil.which("inferencecache", path=os.fspath(Path(sys.executable).parent)) or "inferencecache"
    return [script, *arguments]


@contextlib.asynccontextmanager
async def child(name: str, command: Sequence[str], log: Path) -> AsyncIterator[Child]:
    """A child process, stopped by SIGTERM when the context ends, and killed if that takes too long."""
    environment = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "POD_NAMESPACE")}
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches us alone, and we stop the children before the control plane they need.
        process = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    try:
        yield Child(name, process, log)
    finally:
        process.terminate()
        try:
            await asyncio.shield(asyncio.to_thread(process.wait, _STOP_SECONDS))
        except (subprocess.TimeoutExpired, asyncio.CancelledError):
            process.kill()
            process.wait()
            raise


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200 now; proxies are not asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
