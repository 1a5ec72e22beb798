"""The parts of the one-node cluster that need no cluster: whom it ends, and the images it makes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.onenode.images import single_binary_image
from hack.onenode.processes import ClusterError, Processes, end, start_time

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_a_process_that_does_not_listen_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    end(sleeper.pid, start_time(sleeper.pid), grace=0.1)
    assert start_time(sleeper.pid) is None


def test_a_stranger_who_got_the_process_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    end(sleeper.pid, "1", grace=0.1)
    assert sleeper.poll() is None


def test_a_process_keeps_its_place_when_it_is_started_again(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "register.json", tmp_path)
    for name in ("first", "second"):
        processes.start(name, ["sleep", "60"])
    try:
        before = processes.find("first")
        processes.end("first")
        assert not before.lives()
        processes.start("first", before.command)
        known = list(Processes(tmp_path / "register.json", tmp_path))  # as another command would see them
        assert [process.name for process in known] == ["first", "second"]
        assert all(process.lives() for process in known)
    finally:
        for process in processes:
            processes.end(process.name)
    assert not any(process.lives() for process in processes)


def test_a_process_that_ends_early_is_told_with_what_it_said_last(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "register.json", tmp_path)
    processes.start("broken", [sys.executable, "-c", "raise SystemExit('no such thing')"])
    with pytest.raises(ClusterError, match=r"broken ended(?s:.*)no such thing"):
        processes.await_ready("broken", lambda: False, seconds=20)


def test_an_image_of_one_binary_runs_it_without_rights(tmp_path: Path) -> None:
    binary = tmp_path / "tool"
    binary.write_bytes(b"\x7fELF...")
    with tarfile.open(fileobj=io.BytesIO(single_binary_image("example/tool:1", binary))) as archive:
        (manifest,) = json.loads(_content(archive, "manifest.json"))
        config = json.loads(_content(archive, manifest["Config"]))
        with tarfile.open(fileobj=io.BytesIO(_content(archive, manifest["Layers"][0]))) as layer:
            assert [(member.name, member.mode) for member in layer] == [("tool", 0o755)]
            assert _content(layer, "tool") == binary.read_bytes()
    assert manifest["RepoTags"] == ["example/tool:1"]
    assert config["config"] == {"Entrypoint": ["/tool"], "User": "65532:65532"}


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
