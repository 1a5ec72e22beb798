"""What the sidecar's and the fake engine's command lines may say, and how they end otherwise (spec 08 §2, §12)."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inferencecache.adapters.registry import Settings
from inferencecache.adapters.subscriber import subscriber_container
from inferencecache.cli.main import app
from inferencecache.kube import pki
from inferencecache.subscriber.load import CacheTier
from inferencecache.subscriber.run import SubscriberSettings
from inferencecache.subscriber.servers import Target
from tests.unit.adapters.objects import backend

REQUIRED = ["--replica-id=r", "--model-id=m"]
INJECTED = [
    "--engine-endpoint=tcp://127.0.0.1:5557",
    "--server=inference-cache-server.inference-cache-system.svc.cluster.local:9090",
    "--replica-id=r",
    "--tenant-id=t",
    "--model-id=m",
    "--hash-scheme=sglang",
    "--ignore-block-removed=true",
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[SubscriberSettings]:
    """The settings with which a sidecar would have run."""
    seen: list[SubscriberSettings] = []

    async def run(settings: SubscriberSettings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("inferencecache.subscriber.run.run", run)
    return seen


def ended(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["kvevent-subscriber", *args])
    return result.exit_code, result.output


def test_the_injected_arguments_are_enough(told: list[SubscriberSettings]) -> None:
    assert ended(*INJECTED) == (0, "")
    (settings,) = told
    assert settings.servers == [Target("inference-cache-server.inference-cache-system.svc.cluster.local", 9090)]
    assert settings.identity.hash_scheme == "sglang"
    assert settings.offloads
    assert not settings.server_tls
    assert settings.metrics_urls == ["http://127.0.0.1:8000/metrics", "http://127.0.0.1:30000/metrics"]


def test_the_injected_arguments_carry_trust_and_a_token(told: list[SubscriberSettings]) -> None:
    ca = pki.self_signed(["server"], now=datetime.now(UTC)).certificate.decode()
    settings = Settings("image:1", policy_server_ca=ca, policy_server_audience="reports")
    sidecar = subscriber_container(backend(observation={"modelID": "m"}), settings, hash_scheme="vllm")
    assert sidecar is not None
    (mount,) = sidecar["volumeMounts"]
    assert ended(*sidecar["args"]) == (0, "")
    (seen,) = told
    assert (seen.server_tls, seen.server_ca_data, seen.server_ca_file) == (True, ca, None)
    assert seen.server_token_file == Path(mount["mountPath"], "token")


def test_the_injected_sidecar_asks_for_a_replay_where_the_controller_was_told_so(
    told: list[SubscriberSettings],
) -> None:
    wired = backend(observation={"modelID": "m"})
    for endpoint in ("", "tcp://127.0.0.1:5558"):
        settings = Settings("image:1", kvevent_replay_endpoint=endpoint)
        sidecar = subscriber_container(wired, settings, hash_scheme="vllm")
        assert sidecar is not None
        assert ended(*sidecar["args"]) == (0, "")
        assert told[-1].replay_endpoint == endpoint


def test_the_defaults(told: list[SubscriberSettings]) -> None:
    assert ended(*REQUIRED)[0] == 0
    (settings,) = told
    assert (settings.engine_endpoint, settings.topic, settings.replay_endpoint) == (
        "tcp://127.0.0.1:5557",
        "kv-events",
        "",
    )
    assert settings.servers == [Target("127.0.0.1", 9090)]
    assert (settings.identity.tenant_id, settings.identity.hash_scheme) == ("", "vllm")
    assert (settings.window, settings.stats_interval, settings.offloads) == (0.1, 10.0, False)
    assert (settings.load.cache_size_bytes, settings.load.concurrency, settings.load.tier) == (0, 256, CacheTier.AUTO)
    assert settings.metrics_urls == ["http://127.0.0.1:8000/metrics"]
    assert settings.health == ("", 9095)


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--window=0"], "window", 0.1),
        (["--window=-1s"], "window", 0.1),
        (["-window", "250ms"], "window", 0.25),
        (["--stats-interval=0s"], "stats_interval", 10.0),
        (["--ignore-block-removed"], "offloads", True),
        (["--ignore-block-removed=false"], "offloads", False),
        (["--lora-adapter-names=1=sql, 2=chat,"], "adapter_names", {1: "sql", 2: "chat"}),
        (["--server-ca-file=/ca"], "server_tls", True),
        (["--server-token-file=/token"], "server_token_file", Path("/token")),
        (["--health-bind-address="], "health", None),
        (["--health-bind-address=[::1]:1"], "health", ("::1", 1)),
        (["--topic="], "topic", ""),
        (["--data-parallel-size=4"], "data_parallel_size", 4),
    ],
)
def test_flags_mean_what_they_say(args: list[str], field: str, value: Any, told: list[SubscriberSettings]) -> None:
    assert ended(*REQUIRED, *args)[0] == 0
    assert getattr(told[0], field) == value


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ([], 2, "--replica-id"),
        (["--replica-id=r"], 2, "--model-id"),
        (["--replica-id=", "--model-id=m"], 2, "--replica-id"),
        ([*REQUIRED, "--hash-scheme="], 2, "--hash-scheme"),
        ([*REQUIRED, "--lora-adapter-names=1"], 2, "--lora-adapter-names"),
        (["--lora-adapter-names=1", "--replica-id=", "--model-id=m"], 2, "--lora-adapter-names"),
        ([*REQUIRED, "--server-ca-data=%"], 2, "--server-ca-data"),
        ([*REQUIRED, f"--server-ca-data={base64.b64encode(b'no certificate').decode()}"], 2, "--server-ca-data"),
        ([*REQUIRED, "--cache-tier="], 2, "--cache-tier"),
        ([*REQUIRED, "--cache-tier=GPU"], 2, "--cache-tier"),
        ([*REQUIRED, "--window=fast"], 2, "window"),
        ([*REQUIRED, "--nonsense"], 2, "nonsense"),
        ([*REQUIRED, "--engine-endpoint=127.0.0.1:5557"], 2, "--engine-endpoint"),
        ([*REQUIRED, "--engine-endpoint=tcp://*"], 2, "--engine-endpoint"),
        ([*REQUIRED, "--engine-endpoint=tcp://127.0.0.1:²"], 2, "--engine-endpoint"),
        ([*REQUIRED, "--engine-endpoint=tcp://*:5557"], 2, "--engine-endpoint"),
        ([*REQUIRED, "--engine-endpoint=ipc:///" + "x" * 200], 2, "--engine-endpoint"),
        ([*REQUIRED, "--replay-endpoint=tcp://*:5558"], 2, "--replay-endpoint"),
        ([*REQUIRED, "--engine-endpoint=ipc:///x", "--data-parallel-size=2"], 2, "--engine-endpoint"),
        ([*REQUIRED, "--replay-endpoint=tcp://127.0.0.1:65535", "--data-parallel-size=2"], 2, "--replay-endpoint"),
        ([*REQUIRED, "--data-parallel-size=0"], 2, "--data-parallel-size"),
        ([*REQUIRED, "--health-bind-address=9095"], 2, "--health-bind-address"),
        ([*REQUIRED, "--health-bind-address=:²"], 2, "--health-bind-address"),
        ([*REQUIRED, "--server=nowhere"], 1, "--server"),
        ([*REQUIRED, "--server=nowhere:²"], 1, "--server"),
        ([*REQUIRED, f"--server=nowhere:{'9' * 5000}"], 1, "--server"),
    ],
)
def test_what_nobody_can_mean_ends_the_process_with_a_sentence(
    args: list[str], status: int, said: str, told: list[SubscriberSettings]
) -> None:
    code, output = ended(*args)
    assert not told
    assert code == status
    assert said in output


def test_ports_on_which_one_rank_publishes_and_another_replays_are_found(told: list[SubscriberSettings]) -> None:
    both = ["--replay-endpoint=tcp://127.0.0.1:5558"]
    assert ended(*REQUIRED, *both, "--data-parallel-size=2")[0] == 0
    assert ended(*REQUIRED, *both)[0] == 0
    assert [settings.colliding_ports() for settings in told] == [[5558], []]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--block-size=0"], "--block-size"),
        (["--events=2"], "--events"),
        (["--interval=0"], "--interval"),
        (["--ranks=0"], "--ranks"),
        (["--drop=-1"], "--drop"),
        (["--encoding=xml"], "xml"),
        (["--http-bind-address=8000"], "--http-bind-address"),
    ],
)
def test_a_fake_engine_refuses_what_it_cannot_publish(args: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["kvevent-fake-engine", *args])
    assert result.exit_code == 2
    assert said in result.output
