"""The kernel check, rendered, and its script run for real against packages of every sort (spec 04 §7)."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec._core
import pytest

from inferencecache.adapters.kernel_check import SCRIPT, TERMINATION_LOG, kernel_check_container

GPU = {"limits": {"nvidia.com/gpu": "1"}}


def _run(tmp_path: Path, *, strict: bool = False) -> tuple[str, int]:
    log = tmp_path / "termination-log"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace(TERMINATION_LOG, str(log))],
        env={"PYTHONPATH": str(tmp_path), "KERNEL_CHECK_STRICT": "1" if strict else "0"},
        cwd="/",
        timeout=200,
        check=False,
    )
    return log.read_text(), done.returncode


def _package(tmp_path: Path, library: bytes | None, torch: str = "") -> None:
    (tmp_path / "lmcache").mkdir()
    (tmp_path / "lmcache" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (tmp_path / "torch.py").write_text(torch)
    if library is not None:
        (tmp_path / "lmcache" / "c_ops.cpython.so").write_bytes(library)


def test_no_package(tmp_path: Path) -> None:
    assert _run(tmp_path) == ("FAIL: lmcache not importable", 0)


@pytest.mark.parametrize("strict", [False, True])
def test_no_extension(tmp_path: Path, strict: bool) -> None:
    _package(tmp_path, None)
    message, code = _run(tmp_path, strict=strict)
    assert message.startswith("FAIL: no native c_ops extension")
    assert code == int(strict)


def test_a_library_that_loads_is_healthy(tmp_path: Path) -> None:
    """Also one that Python could not import under this name: it is linked, not imported."""
    _package(tmp_path, Path(msgspec._core.__file__).read_bytes())
    assert _run(tmp_path, strict=True) == ("OK", 0)


@pytest.mark.parametrize(("torch", "kind"), [("", "OSError"), ("raise SystemExit(7)", "SystemExit")])
def test_what_cannot_be_loaded_is_reported_with_its_type(tmp_path: Path, torch: str, kind: str) -> None:
    _package(tmp_path, b"no library", torch)
    message, code = _run(tmp_path)
    assert message.startswith(f"FAIL: {kind}: {kind}(")
    assert code == 0
    assert _run(tmp_path, strict=True)[1] == 1


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    _package(tmp_path, b"", "raise ValueError('\\udc80' * 9000)")
    message, code = _run(tmp_path)
    assert (len(message), code) == (3500, 0)


@pytest.mark.parametrize(
    ("mode", "resources", "strict"),
    [
        ("auto", GPU, "0"),
        ("auto", {"requests": {"nvidia.com/gpu": 1}}, "0"),
        ("auto", {}, None),
        ("auto", {"limits": {"nvidia.com/gpu": "0"}}, None),
        ("report-only", {}, "0"),
        ("strict", {}, "1"),
        ("off", GPU, None),
    ],
)
def test_modes(mode: str, resources: dict[str, Any], strict: str | None) -> None:
    check = kernel_check_container(mode, {"name": "vllm", "image": "i", "resources": resources})
    assert (check["env"] if check else None) == ([{"name": "KERNEL_CHECK_STRICT", "value": strict}] if strict else None)


def test_it_runs_as_the_engine_would_and_shares_nothing_with_it() -> None:
    engine = {
        "name": "vllm",
        "image": "i",
        "imagePullPolicy": "Always",
        "workingDir": "/w",
        "securityContext": {"capabilities": {"add": ["X"]}},
        "env": [{"name": "KERNEL_CHECK_STRICT", "value": "1"}, {"name": "A", "value": "1"}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "args": ["--x"],
    }
    given = copy.deepcopy(engine)
    check = kernel_check_container("report-only", engine)
    assert check is not None
    for field in ("image", "imagePullPolicy", "workingDir", "securityContext", "envFrom", "volumeMounts"):
        assert check[field] == engine[field]
    assert check["env"] == [{"name": "A", "value": "1"}, {"name": "KERNEL_CHECK_STRICT", "value": "0"}]
    assert check["resources"] == {"requests": {"cpu": "50m", "memory": "256Mi"}}
    assert check["command"] == ["python3", "-c", SCRIPT]
    assert "args" not in check
    check["securityContext"]["capabilities"]["add"].append("Y")
    check["env"][0]["value"] = "2"
    assert engine == given


def test_an_engine_without_an_image_is_not_checked() -> None:
    assert kernel_check_container("strict", {"name": "vllm"}) is None
