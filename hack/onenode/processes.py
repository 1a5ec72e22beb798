"""Long-running processes that outlive the command which started them, known by process id *and* start time.

A process id alone may belong to a stranger by the time somebody wants to end it, so both are written down when a
process starts and compared before it is signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says why and what to do."""


@dataclass(frozen=True)
class Process:
    """A process that was started: what to call it, how to recognise it, and how to start it again."""

    name: str
    pid: int
    started: str
    command: tuple[str, ...]

    def lives(self) -> bool:
        """Whether this very process still runs."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None for one that has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, so fields are counted from behind it: state is the first.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


class Processes:
    """The processes of a cluster, in the order in which they were started, kept in a file."""

    def __init__(self, register: Path, logs: Path) -> None:
        self._register = register
        self._logs = logs

    def __iter__(self) -> Iterator[Process]:
        if self._register.exists():
            for entry in json.loads(self._register.read_text()):
                yield Process(**{**entry, "command": tuple(entry["command"])})

    def find(self, name: str) -> Process:
        """The process of that name, alive or not. Raises `ClusterError` for a name nobody has."""
        for process in self:
            if process.name == name:
                return process
        raise ClusterError(f"there is no {name} in this cluster")

    def start(self, name: str, command: Sequence[str | Path]) -> Process:
        """Start a process that survives this one, its output going to a log file of its name."""
        words = tuple(str(word) for word in command)
        with (self._logs / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        process = Process(name, started.pid, start_time(started.pid) or "", words)
        known = list(self)
        if any(other.name == name for other in known):
            self._write([process if other.name == name else other for other in known])
        else:
            self._write([*known, process])
        return process

    def end(self, name: str, *, grace: float = 20) -> None:
        """End a process, by force after `grace` seconds. Its place in the order stays, for when it is started again."""
        process = self.find(name)
        end(process.pid, process.started, grace=grace)

    def await_ready(self, name: str, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait until `ready` says so. Raises `ClusterError`, with the log's last lines, if the process ends first."""
        process = self.find(name)
        deadline = time.monotonic() + seconds
        while not ready():
            if not process.lives() or time.monotonic() > deadline:
                state = "was not ready in time" if process.lives() else "ended"
                raise ClusterError(f"{name} {state}; its log ends with:\n{self.log_tail(name)}")
            time.sleep(0.1)

    def log_tail(self, name: str, size: int = 3000) -> str:
        """The end of a process's log."""
        return (self._logs / f"{name}.log").read_text(errors="replace")[-size:]

    def _write(self, processes: Sequence[Process]) -> None:
        whole = self._register.with_suffix(".new")
        whole.write_text(json.dumps([asdict(process) for process in processes], indent=2))
        whole.replace(self._register)


def end(pid: int, started: str | None, *, grace: float) -> None:
    """Ask a process to end and kill it when it does not; nothing happens to another process of the same id."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        if started is None or start_time(pid) != started:
            return
        os.kill(pid, number)
        deadline = time.monotonic() + patience
        while start_time(pid) == started and time.monotonic() < deadline:
            _reap(pid)
            time.sleep(0.05)


def _reap(pid: int) -> None:
    # A child of ours stays a zombie until somebody asks for it; a process of an earlier command is init's to reap.
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
