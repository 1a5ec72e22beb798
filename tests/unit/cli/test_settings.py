"""A controller starts with values it can work with, or says which flag is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inferencecache.cli.settings import ControllerSettings, SettingsError, read_certificates
from inferencecache.kube import pki
from inferencecache.subscriber.servers import parse_targets


def test_the_policy_url_is_required_and_urls_are_checked() -> None:
    with pytest.raises(SettingsError, match="--server-policy-url"):
        ControllerSettings(server_policy_url="")
    with pytest.raises(SettingsError, match="--server-probe-url"):
        ControllerSettings(server_probe_url="server:8081/probe")
    assert ControllerSettings(server_probe_url="", server_snapshot_url="").server_probe_url == ""


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        ("server_snapshot_url", "http://user:secret@server:8081/snapshot"),
        ("server_policy_url", "https://user@server/policy"),
        ("server_probe_url", "http://@server/probe"),
        ("policy_server_grpc_address", "user@server:9090"),
    ],
)
def test_an_address_with_a_user_is_refused_without_telling_a_password(setting: str, address: str) -> None:
    with pytest.raises(SettingsError, match=f"--{setting.replace('_', '-')}.*before the @") as refused:
        ControllerSettings(**{setting: address})
    assert "secret" not in str(refused.value)


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


def test_a_controller_without_either_half_does_not_start() -> None:
    with pytest.raises(SettingsError, match="--no-enable-cache-backends"):
        ControllerSettings(enable_cache_backends=False, enable_kv_cache_pools=False)


@pytest.mark.parametrize("address", ["", "server:9090", "dns:///server:9090", "[::1]:9090", "a:1, b:2,"])
def test_sidecars_are_given_what_they_take_for_a_server(address: str) -> None:
    given = ControllerSettings(policy_server_grpc_address=address).policy_server_grpc_address
    assert given == address
    assert not address or parse_targets(address)


@pytest.mark.parametrize("address", ["server", "server:", ":9090", "server:0", "server:65536", "server:²", "a:1,b"])
def test_sidecars_are_given_no_address_that_would_end_them(address: str) -> None:
    with pytest.raises(SettingsError, match=r"--policy-server-grpc-address.*write host:port"):
        ControllerSettings(policy_server_grpc_address=address)
    with pytest.raises(ValueError, match="--server"):
        parse_targets(address)


@pytest.mark.parametrize("address", [",", "a..b:9090", f"{'a' * 64}:9090"])
def test_sidecars_are_given_no_name_that_cannot_be_looked_up(address: str) -> None:
    with pytest.raises(SettingsError, match="--policy-server-grpc-address"):
        ControllerSettings(policy_server_grpc_address=address)


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:5558", "tcp://localhost:1", "tcp://[::1]:65535"])
def test_where_sidecars_ask_for_a_replay(endpoint: str) -> None:
    assert ControllerSettings(kvevent_replay_endpoint=endpoint).kvevent_replay_endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:5558",
        "tcp://*:5558",
        "tcp://127.0.0.1",
        "tcp://:5558",
        "tcp://e:0",
        "tcp://e:65536",
        "tcp://e:x",
        "tcp://[::1:5",
        "tcp://e:1/x",
        "tcp://u@e:1",
        "ipc:///tmp/x",
        "tcp://e:1 ",
    ],
)
def test_sidecars_are_given_no_replay_endpoint_that_would_end_them(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="--kvevent-replay-endpoint"):
        ControllerSettings(kvevent_replay_endpoint=endpoint)


def test_stores_run_where_the_flag_says_else_beside_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    mount = tmp_path / "namespace"
    assert ControllerSettings().pool_namespace(mount) == "gpustack-system"
    mount.write_text("own")
    assert ControllerSettings().pool_namespace(mount) == "own"
    assert ControllerSettings(kv_cache_namespace="flag").pool_namespace(mount) == "flag"


def test_the_image_of_stores_comes_from_flag_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = "GPUSTACK_KV_CACHE_BACKEND_IMAGE"
    monkeypatch.delenv(seed, raising=False)
    assert ControllerSettings().backend_image == "gpustack/mirrored-mooncake:0.3.13.post1-cpu"
    monkeypatch.setenv(seed, "environment:1")
    assert ControllerSettings().backend_image == "environment:1"
    assert ControllerSettings(kv_cache_backend_image="flag:1").backend_image == "flag:1"


@pytest.mark.parametrize(
    ("flag", "environment", "owned"),
    [
        (None, None, True),
        (None, "", True),
        (None, "true", True),
        (None, "perhaps", True),
        (None, "false", False),
        (None, " 0 ", False),
        (True, "false", True),
        (False, "true", False),
    ],
)
def test_bindings_own_the_dtype_unless_somebody_says_no(
    flag: bool | None, environment: str | None, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = "GPUSTACK_MODEL_DEPLOYMENT_KV_CACHE_DTYPE_OWNED"
    monkeypatch.delenv(seed, raising=False)
    if environment is not None:
        monkeypatch.setenv(seed, environment)
    assert ControllerSettings(kv_cache_dtype_owned=flag).dtype_owned is owned


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
