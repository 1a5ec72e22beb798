"""The control plane as far as it can be tried without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferencecache.kube.envtest import ControlPlane


def test_stopping_what_never_started_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").touch()
    ControlPlane().stop()
    assert (tmp_path / "precious").exists()
