"""How the operator's process starts, fails and ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inferencecache.kube.envtest import ControlPlane

SCRIPT = shutil.which("inferencecache", path=str(Path(sys.executable).parent)) or "inferencecache"


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["--nonsense"], 2, "nonsense"),
        (["-server-policy-url="], 1, "--server-policy-url"),
        (["--server-probe-url=server:1"], 1, "--server-probe-url"),
        (["--zap-log-level=loud"], 1, "--zap-log-level"),
        (["-kubeconfig=/nowhere/config"], 1, "/nowhere/config"),
        (["--metrics-bind-address=nonsense"], 1, "nonsense"),
        (["-leader-elect"], 1, "--leader-election-namespace"),
        ([], 1, "--webhook-cert-dir"),
    ],
)
def test_what_it_cannot_start_with(
    control_plane: ControlPlane, tmp_path: Path, args: list[str], status: int, said: str
) -> None:
    base = [f"--kubeconfig={control_plane.admin}", f"--webhook-cert-dir={tmp_path}"]
    done = subprocess.run(
        [SCRIPT, "controller", *base, *args], capture_output=True, text=True, timeout=200, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
