"""What is asked of containerd without a kubelet: bring images in, and end every container when the cluster ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from hack.onenode.layout import Layout
from hack.onenode.processes import ClusterError, end, start_time

_NAMESPACE = "k8s.io"


def answers(layout: Layout) -> bool:
    """Whether containerd does."""
    return _ctr(layout, "version").returncode == 0


def import_image(layout: Layout, archive: bytes | IO[bytes]) -> list[str]:
    """Bring an archive of images in, and tell their names. Raises `ClusterError`."""
    if isinstance(archive, bytes):
        done = _ctr(layout, "images", "import", "-", content=archive)
    else:
        done = _ctr(layout, "images", "import", "-", stdin=archive)
    if done.returncode:
        raise ClusterError(f"containerd did not take the image: {done.stderr.decode(errors='replace').strip()}")
    return [line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("unpacking ")]


def end_all(layout: Layout) -> None:
    """End and forget every container, while containerd still runs."""
    containers = _ctr(layout, "containers", "ls", "-q").stdout.decode().split()
    for container in containers:
        _ctr(layout, "tasks", "kill", "-s", "SIGKILL", container)
    for container in containers:
        _ctr(layout, "tasks", "delete", "-f", container)
        _ctr(layout, "containers", "delete", container)


def end_shims(layout: Layout) -> None:
    """End what containerd left behind: it starts a process per Pod that survives it by design."""
    for pid in _pids():
        words = _command(pid)
        if words and "containerd-shim" in words[0] and str(layout.containerd_socket) in words:
            end(pid, start_time(pid), grace=2)


def _pids() -> Iterable[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended meanwhile
        return []


def _ctr(
    layout: Layout, *arguments: str, content: bytes | None = None, stdin: IO[bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = ["ctr", "--address", str(layout.containerd_socket), "--namespace", _NAMESPACE, *arguments]
    if stdin is not None:
        return subprocess.run(command, stdin=stdin, capture_output=True, timeout=300, check=False)
    return subprocess.run(command, input=content or b"", capture_output=True, timeout=300, check=False)
