"""The flags of `inferencecache server`: what they may say, and with which words a mistake is told (spec 06 §1.2)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inferencecache.cli import server as module
from inferencecache.cli.main import app
from inferencecache.cli.server import Unusable, check_callers
from inferencecache.server.run import ServerSettings

SA = "system:serviceaccount:inference-cache-system:inference-cache-controller-manager"
DEFAULTS: dict[str, Any] = {
    "allowed_controller_sa": "",
    "insecure_disable_auth": False,
    "controller_audience": "inferencecache.io/controller",
    "policy_audience": "inferencecache.io/policy",
    "ingestion_audience": "",
}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"allowed_controller_sa": SA, "insecure_disable_auth": True}, "mutually exclusive"),
        ({"allowed_controller_sa": f" {SA}", "insecure_disable_auth": True}, "mutually exclusive"),
        ({}, "missing --allowed-controller-sa"),
        ({"controller_audience": ""}, "missing --allowed-controller-sa"),
        ({"allowed_controller_sa": f"{SA} "}, "--allowed-controller-sa has leading/trailing whitespace"),
        ({"allowed_controller_sa": f" {SA}", "controller_audience": ""}, "--allowed-controller-sa has"),
        ({"allowed_controller_sa": SA, "controller_audience": ""}, "--controller-audience cannot be empty"),
        ({"allowed_controller_sa": SA, "controller_audience": "  "}, "--controller-audience cannot be empty"),
        ({"allowed_controller_sa": SA, "controller_audience": " a"}, "--controller-audience has leading/trailing"),
        ({"allowed_controller_sa": SA, "policy_audience": ""}, "--policy-audience cannot be empty"),
        ({"allowed_controller_sa": SA, "policy_audience": "a\n"}, "--policy-audience has leading/trailing whitespace"),
        ({"insecure_disable_auth": True, "ingestion_audience": " a"}, "--ingestion-audience has leading/trailing"),
    ],
)
def test_flags_about_callers_that_do_not_go_together_are_told(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(Unusable) as refused:
        check_callers(**DEFAULTS | flags)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        {"allowed_controller_sa": SA},
        {"insecure_disable_auth": True},
        {"insecure_disable_auth": True, "controller_audience": "", "policy_audience": " x"},
        {"insecure_disable_auth": True, "ingestion_audience": "a.io/i"},
    ],
)
def test_flags_about_callers_that_go_together_pass(flags: dict[str, Any]) -> None:
    check_callers(**DEFAULTS | flags)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "missing --allowed-controller-sa"),
        (["--insecure-disable-auth", "--tls-cert-file=a"], "must be given together"),
        (["--insecure-disable-auth", "--tls-key-file=a"], "must be given together"),
        (["--insecure-disable-auth", "--log-format=xml"], "--log-format=xml"),
        (["--insecure-disable-auth", "--log-level=loud"], "--log-level=loud"),
        (["--insecure-disable-auth", "--grpc-bind-address=9090"], "--grpc-bind-address"),
        (["--insecure-disable-auth", "--http-bind-address=:99999"], "--http-bind-address"),
        (["--insecure-disable-auth", "--snapshot-bind-address=::1:80"], "--snapshot-bind-address"),
        (["--insecure-disable-auth", "--no-such-flag"], "--no-such-flag"),
        (["--insecure-disable-auth", "--index-store=http://x"], "--index-store: "),
        (["--insecure-disable-auth", "--probe-t2-store=redis://"], "--probe-t2-store: "),
        (["--insecure-disable-auth", "--index-store=redis://x", "--warm-from=http://y/dump"], "mutually exclusive"),
        (["--insecure-disable-auth", "--index-store-password-file=p"], "needs --index-store"),
        (["--insecure-disable-auth", "--warm-token-file=p"], "needs --warm-from"),
        (["--insecure-disable-auth", "--warm-from=peer:8081"], "needs the URL"),
        (["--insecure-disable-auth", "--allowed-peer-sa= x"], "leading/trailing whitespace"),
        (["--insecure-disable-auth=perhaps"], "needs true or false"),
    ],
)
def test_a_bad_flag_ends_with_exit_2_and_a_sentence_that_names_it(args: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["server", *args])
    assert result.exit_code == 2
    assert says in result.stderr


def started(monkeypatch: pytest.MonkeyPatch, *args: str) -> tuple[ServerSettings, dict[str, Any]]:
    """The settings and the logging that a command line leads to."""
    seen: dict[str, Any] = {}

    async def run(settings: ServerSettings) -> int:
        seen["settings"] = settings
        return 0

    monkeypatch.setattr(module, "set_up", lambda encoder, *, level: seen.update(encoder=encoder, level=level))
    monkeypatch.setattr("inferencecache.server.run.run", run)
    result = CliRunner().invoke(app, ["server", *args])
    assert result.exit_code == 0, result.output
    return seen.pop("settings"), seen


def test_defaults_are_those_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, logs = started(monkeypatch, "--allowed-controller-sa", SA)
    assert str(settings.grpc_bind_address) == ":9090"
    assert str(settings.http_bind_address) == ":8080"
    assert str(settings.snapshot_bind_address) == ":8081"
    assert settings.controller_audience == "inferencecache.io/controller"
    assert settings.policy_audience == "inferencecache.io/policy"
    assert (settings.ingestion_audience, settings.tokenizer_models_dir, settings.tls) == ("", "", None)
    assert settings.engine_block_size == 16
    assert logs == {"encoder": "json", "level": logging.INFO}


@pytest.mark.parametrize(("size", "used"), [("64", 64), ("0", 16), ("-3", 16)])
def test_a_block_size_below_one_is_ignored(monkeypatch: pytest.MonkeyPatch, size: str, used: int) -> None:
    settings, _ = started(monkeypatch, "--insecure-disable-auth", f"--engine-block-size={size}")
    assert settings.engine_block_size == used


@pytest.mark.parametrize(
    ("args", "encoder", "level"),
    [
        (["--log-format= JSON ", "--log-level= Debug "], "json", logging.DEBUG),
        (["--log-format=Text", "--log-level=WARN"], "console", logging.WARNING),
        (["--log-format=", "--log-level="], "json", logging.INFO),
        (["-log-level", "warning"], "json", logging.WARNING),
        (["--log-level=error"], "json", logging.ERROR),
    ],
)
def test_log_flags_are_trimmed_and_read_in_any_case(
    monkeypatch: pytest.MonkeyPatch, args: list[str], encoder: str, level: int
) -> None:
    _, logs = started(monkeypatch, "--insecure-disable-auth", *args)
    assert logs == {"encoder": encoder, "level": level}


def test_flags_about_other_servers_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _ = started(
        monkeypatch,
        "--insecure-disable-auth",
        "--index-store=rediss://me@store:7000/2",
        "--index-store-password-file=/secret",
        "--probe-t2-store=redis://tier2",
    )
    store = settings.peers.index_store
    assert (store.host, store.port, store.database, store.tls) == ("store", 7000, 2, True)
    assert store.password_file == Path("/secret")
    assert settings.probe_tier2_store.host == "tier2"
    settings, _ = started(
        monkeypatch, "--insecure-disable-auth", "--warm-from=http://peer:8081/dump", "--warm-token-file=/token"
    )
    assert settings.peers.warm_from == "http://peer:8081/dump"
    assert settings.peers.warm_token_file == Path("/token")
    assert settings.peers.index_store is None
