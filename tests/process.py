"""A process of a test's own that can be killed, frozen and started anew."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class OwnProcess(ABC):
    """At most one process; `start` makes it, and leaving the context ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it live but answer nothing, like a node that hangs."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
