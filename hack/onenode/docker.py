"""A Docker daemon for as long as something needs one: the one that answers, or one that is started and ended again.

What it built stays in Docker's own folder, as after any build, and makes the next one quick. Its bridge, its packet
filter rules and what else it changes about forwarding are undone, which it does not do itself.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hack.onenode import packetfilter
from hack.onenode.processes import ClusterError, end, start_time

_BRIDGE: Final = "docker0"
_NAMES: Final = re.compile(rf"DOCKER(-.*)?|{_BRIDGE}")
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")


def answers() -> bool:
    """Whether a daemon does, at $DOCKER_HOST or where it usually is."""
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


@contextmanager
def daemon(log: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Have a daemon that answers; `log` is for one that is started here. Raises `ClusterError` if that fails."""
    if answers():
        yield
        return
    say("starting a Docker daemon for this run")
    forwarding, policy = _FORWARDING.read_text(), _iptables("-S", "FORWARD").split()[2]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        # In a session of its own: what interrupts a terminal's commands must not end it before its containers.
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    started = start_time(process.pid)
    try:
        deadline = time.monotonic() + 120
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"dockerd did not start; its log ends with:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield
    finally:
        end(process.pid, started, grace=60)
        packetfilter.remove(_NAMES)
        _iptables("-P", "FORWARD", policy)
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)
        _FORWARDING.write_text(forwarding)
        say("the Docker daemon has ended")


def _iptables(*arguments: str) -> str:
    return subprocess.run(["iptables", "-w", *arguments], capture_output=True, text=True, check=False).stdout
