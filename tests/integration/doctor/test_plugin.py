"""The packed plugin works where nothing but Python is: unpacked and linked as Krew does it, called through kubectl."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from hack import plugin
from inferencecache import __version__
from tests.integration.doctor.running_doctor import Ran, run
from tests.integration.kustomized import kubectl

URL = "https://example.com/plugin.tar.gz"
PYTHON = Path(sys.base_prefix) / "bin"


def bare(folder: Path, tmp_path: Path) -> dict[str, str]:
    """An environment with that folder and a Python without packages on the PATH, and nobody's configuration."""
    path = os.pathsep.join([str(folder), str(PYTHON), "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": "", "PYTHONPATH": "", "VIRTUAL_ENV": ""}


@pytest.mark.timeout(400)
async def test_it_runs_from_its_archive_and_the_manifest_says_what_that_is(tmp_path: Path) -> None:
    archive, manifest = plugin.pack(tmp_path, URL)
    said = yaml.safe_load(manifest.read_text())
    assert (said["kind"], said["metadata"]["name"]) == ("Plugin", "inferencecache")
    assert said["spec"]["version"] == f"v{__version__}"
    (platform,) = said["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"] == URL

    unpacked, linked = tmp_path / "store", tmp_path / "bin"
    with tarfile.open(archive) as tar:
        assert {member.mtime for member in tar.getmembers()} == {0}, "or no two archives would be alike"
        tar.extractall(unpacked, filter="data")
    linked.mkdir()
    (linked / "kubectl-inferencecache").symlink_to(unpacked / platform["bin"])

    async def called(*args: object) -> Ran:
        # The first time, every module is compiled.
        return await run(kubectl(), "inferencecache", *args, environment=bare(linked, tmp_path), seconds=170)

    ran = await called("doctor", "--kubeconfig", tmp_path / "nowhere")
    assert (ran.exit, ran.out) == (3, "")
    assert "error: kubeconfig" in ran.err
    ran = await called("doctor", "--help")
    assert ran.exit == 0, ran.err
    assert "--config-only" in ran.out


async def test_without_its_python_it_says_which_one_it_needs(tmp_path: Path) -> None:
    command = tmp_path / "kubectl-inferencecache"
    command.write_text(plugin.LAUNCHER.replace(plugin.PYTHON, "3.99"))
    command.chmod(0o755)
    ran = await run(command, "doctor", environment=bare(tmp_path, tmp_path))
    assert (ran.exit, ran.out) == (3, "")
    assert "needs python3.99" in ran.err
