"""The quickstart does what it says, with the operator's own ServiceAccount, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = shutil.which("inferencecache", path=str(Path(sys.executable).parent)) or "inferencecache"


def start(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "200"}
    return subprocess.Popen(
        [SCRIPT, "quickstart", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def left_over(tmp_path: Path) -> list[str]:
    """Processes whose command line still names our temporary folder, and folders in it."""
    found = [path.name for path in tmp_path.iterdir()]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{tmp_path}/envtest-" in line:
            found.append(line)
    return found


def test_the_tour_wires_a_pod_routes_a_request_and_ends(tmp_path: Path) -> None:
    process = start(tmp_path, "--exit")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "+    - --kv-transfer-config" in output
    assert "lm://qwen-cache.quickstart.svc.cluster.local:65432" in output
    assert "quickstart/qwen-cache" in output
    assert '"reasonCode": "PREFIX_MATCH"' in output
    assert '"replicaId": "qwen-engine"' in output
    assert left_over(tmp_path) == []


def test_a_signal_at_any_moment_ends_everything(tmp_path: Path) -> None:
    for step in ("", "Starting etcd", "Installing CRDs", "Applying a CacheBackend"):
        process = start(tmp_path)
        assert process.stdout is not None
        said = ""
        while step not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        time.sleep(0.5)  # into the step
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=200)
        assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), output
        assert left_over(tmp_path) == [], output
