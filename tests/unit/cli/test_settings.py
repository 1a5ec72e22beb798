"""A controller starts with values it can work with, or says which flag is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inferencecache.cli.settings import ControllerSettings, SettingsError, read_certificates
from inferencecache.kube import pki


def test_the_policy_url_is_required_and_urls_are_checked() -> None:
    with pytest.raises(SettingsError, match="--server-policy-url"):
        ControllerSettings(server_policy_url="")
    with pytest.raises(SettingsError, match="--server-probe-url"):
        ControllerSettings(server_probe_url="server:8081/probe")
    assert ControllerSettings(server_probe_url="", server_snapshot_url="").server_probe_url == ""


def test_intervals_below_zero_mean_the_default() -> None:
    settings = ControllerSettings(cacheindex_refresh_interval=timedelta(0), cachepolicy_push_interval=timedelta(-1))
    assert settings.cacheindex_refresh_interval == settings.cachepolicy_push_interval == timedelta(seconds=30)


def test_namespace_comes_from_mount_then_environment_then_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ControllerSettings(leader_election_namespace="flag")
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    mount = tmp_path / "namespace"
    assert settings.namespace(mount) == "flag"
    monkeypatch.setenv("POD_NAMESPACE", "environment")
    assert settings.namespace(mount) == "environment"
    mount.write_text("mount\n")
    assert settings.namespace(mount) == "mount"


def test_certificates_are_read_at_the_start_or_the_flag_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "ca.crt", tmp_path / "bad.crt"
    made = pki.self_signed(["server"], now=datetime.now(UTC)).certificate
    good.write_bytes(made)
    bad.write_text("no certificate")
    assert read_certificates("--x", "") == ""
    assert read_certificates("--x", str(good)) == made.decode()
    for path in (bad, tmp_path / "missing.crt"):
        with pytest.raises(SettingsError, match=f"--x={path}"):
            read_certificates("--x", str(path))
