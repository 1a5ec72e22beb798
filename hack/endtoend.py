"""The end-to-end tests as one command: whatever they need and is not there is started, and is ended after them.

    python -m hack.endtoend [argument of pytest ...]

A Docker daemon and a cluster that were there before are used, and stay. An interrupted run cleans up as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hack.onenode import docker, requirements
from hack.onenode.cluster import Cluster
from hack.onenode.processes import ClusterError

ROOT: Final = Path(__file__).parent.parent
GRACE_SECONDS: Final = 45


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    begun = time.monotonic()
    try:
        status = _run(arguments)
    except ClusterError as error:
        _say(str(error))
        status = 1
    _say(f"{'FAILED' if status else 'passed'} after {time.monotonic() - begun:.0f} s")
    return status


def _run(arguments: list[str]) -> int:
    cluster = Cluster(lambda line: _say(f"cluster: {line}"))
    kept = cluster.is_up()
    requirements.require(requirements.of_the_tests(), {} if docker.answers() else requirements.DOCKER_PROGRAMS, _say)
    if not kept:  # said before the images are built, which takes a while
        requirements.require(requirements.of_a_cluster(cluster.layout), requirements.CLUSTER_PROGRAMS, _say)
    with docker.daemon(cluster.layout.folder.with_name("dockerd.log"), _say):
        status, names = _call([str(ROOT / "hack" / "base-image.sh")], os.environ, stdout=subprocess.PIPE)
        if status:
            raise ClusterError("there is no image to take Python from")
        environment = {**os.environ, "BASE": names.split()[-1]}
        status, _ = _call([str(ROOT / "hack" / "build-image.sh")], environment)
        if status:
            raise ClusterError("the images could not be built")
        try:
            cluster.up()
            status, _ = _call([sys.executable, "-m", "pytest", "e2e", *arguments], environment)
            return status
        finally:
            _undisturbed()
            if not kept:
                cluster.down()


def _call(command: list[str], environment: Mapping[str, str], *, stdout: int | None = None) -> tuple[int, str]:
    """Its exit code and output. When this process is interrupted, so is the command, and it has a while to clean up."""
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stdout, text=True)
    try:
        output, _ = child.communicate()
    except SystemExit:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            child.send_signal(number)
            try:
                child.wait(GRACE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        raise
    return child.returncode, output or ""


def _interrupted(number: int, _frame: object) -> None:
    _undisturbed()
    _say("interrupted; ending what was started")
    sys.exit(128 + number)


def _undisturbed() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _say(line: str) -> None:
    print(f"e2e: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
