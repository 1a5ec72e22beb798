"""`inferencecache kvevent-subscriber`: the sidecar's command line, and what it may say (spec 08 §2).

Exit 2 is a command line that nobody can mean, exit 1 a server address that no client can be made for.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from inferencecache.cli.flags import bind_address, duration
from inferencecache.cli.logs import Encoder, Keys, TimeEncoding, set_up

_ENGINE = "Engine"
_SERVER = "Server"
_INDEX = "Identity in the index"
_LOAD = "Load"

_WINDOW: Final = timedelta(milliseconds=100)
_STATS_INTERVAL: Final = timedelta(seconds=10)
_TIERS: Final = ("auto", "kv", "gpu", "cpu")


def kvevent_subscriber(
    replica_id: Annotated[str, typer.Option(help="The replica, as routers name it.", rich_help_panel=_INDEX)],
    model_id: Annotated[str, typer.Option(help="The model.", rich_help_panel=_INDEX)],
    tenant_id: Annotated[str, typer.Option(help="The tenant: the Pod's namespace.", rich_help_panel=_INDEX)] = "",
    hash_scheme: Annotated[
        str, typer.Option(help="The index's hash domain: vllm or sglang.", rich_help_panel=_INDEX)
    ] = "vllm",
    engine_endpoint: Annotated[
        str, typer.Option(help="ZMQ address that the engine publishes KV events on.", rich_help_panel=_ENGINE)
    ] = "tcp://127.0.0.1:5557",
    topic: Annotated[
        str,
        typer.Option(help="What the events' topic begins with; the empty topic is heard too.", rich_help_panel=_ENGINE),
    ] = "kv-events",
    replay_endpoint: Annotated[
        str, typer.Option(help="ZMQ address of the engine's replay socket; empty: none.", rich_help_panel=_ENGINE)
    ] = "",
    data_parallel_size: Annotated[
        int,
        typer.Option(help="Ranks of the engine; rank r is on each endpoint's port + r.", rich_help_panel=_ENGINE),
    ] = 1,
    ignore_block_removed: Annotated[
        bool,
        typer.Option(
            "--ignore-block-removed/--no-ignore-block-removed",
            help="There is an offload tier: what leaves the GPU is reported as T2.",
            rich_help_panel=_ENGINE,
        ),
    ] = False,
    lora_adapter_names: Annotated[
        str,
        typer.Option(
            help="Names of adapters that the engine only numbers, as id=name,id=name.", rich_help_panel=_ENGINE
        ),
    ] = "",
    server: Annotated[
        str,
        typer.Option(
            help="gRPC address of the server, or several with commas; each address behind a name is told everything.",
            rich_help_panel=_SERVER,
        ),
    ] = "127.0.0.1:9090",
    window: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            help="How long changes are gathered; 0 or less: 100ms.",
            show_default="100ms",
            rich_help_panel=_SERVER,
        ),
    ] = _WINDOW,
    server_tls: Annotated[
        bool, typer.Option("--server-tls/--no-server-tls", help="Speak TLS to the server.", rich_help_panel=_SERVER)
    ] = False,
    server_ca_file: Annotated[
        str,
        typer.Option(
            help="CAs that the server's certificate is checked against; empty: the system's. Implies --server-tls.",
            rich_help_panel=_SERVER,
        ),
    ] = "",
    server_ca_data: Annotated[
        str,
        typer.Option(
            help="The same CAs in place of a file: PEM in base64. Implies --server-tls.", rich_help_panel=_SERVER
        ),
    ] = "",
    server_token_file: Annotated[
        str,
        typer.Option(
            help="ServiceAccount token to show the server; read anew when it is rotated.", rich_help_panel=_SERVER
        ),
    ] = "",
    engine_metrics_url: Annotated[
        str,
        typer.Option(
            help="The engine's metrics. With --hash-scheme=sglang, the default means port 30000, too.",
            rich_help_panel=_LOAD,
        ),
    ] = "http://127.0.0.1:8000/metrics",
    stats_interval: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            help="How often the load is read; 0 or less: 10s.",
            show_default="10s",
            rich_help_panel=_LOAD,
        ),
    ] = _STATS_INTERVAL,
    engine_cache_size_bytes: Annotated[
        int, typer.Option(help="Size of the engine's KV cache; 0: its use is not told.", rich_help_panel=_LOAD)
    ] = 0,
    max_concurrency_ceiling: Annotated[
        int,
        typer.Option(help="Requests of one engine that make pressure 1; 0 or less: always 0.", rich_help_panel=_LOAD),
    ] = 256,
    cache_tier: Annotated[
        str, typer.Option(help="Which of vLLM's usage gauges: auto, kv, gpu or cpu.", rich_help_panel=_LOAD)
    ] = "auto",
    engine_model_name: Annotated[
        str, typer.Option(help="Only series of this model_name count; empty: all.", rich_help_panel=_LOAD)
    ] = "",
    health_bind_address: Annotated[
        str,
        typer.Option(help="Where /healthz and /metrics are served; empty: nowhere. A port that is taken is given up."),
    ] = ":9095",
) -> None:
    """Run the sidecar of an engine: its KV-cache events and its load go to the server, until SIGTERM."""
    # Here and not above: every other command would pay for what only the sidecar imports.
    from inferencecache.subscriber.adapters import parse_adapter_names
    from inferencecache.subscriber.load import CacheTier, LoadSettings
    from inferencecache.subscriber.messages import Identity
    from inferencecache.subscriber.run import SubscriberSettings, run
    from inferencecache.subscriber.servers import parse_targets
    from inferencecache.subscriber.sockets import check_endpoint

    set_up(Encoder.JSON, level=logging.INFO, time_encoding=TimeEncoding.RFC3339NANO, keys=Keys.SLOG)
    try:
        adapter_names = parse_adapter_names(lora_adapter_names)
    except ValueError as error:
        _fail(f"--lora-adapter-names: {error}")
    for flag, value in (("--replica-id", replica_id), ("--model-id", model_id), ("--hash-scheme", hash_scheme)):
        if not value:
            _fail(f"{flag} is empty")
    if cache_tier not in _TIERS:
        _fail(f"--cache-tier={cache_tier}: needs one of {', '.join(_TIERS)}")
    if data_parallel_size < 1:
        _fail(f"--data-parallel-size={data_parallel_size}: needs 1 or more")
    try:
        check_endpoint("--engine-endpoint", engine_endpoint, data_parallel_size)
        if replay_endpoint:
            check_endpoint("--replay-endpoint", replay_endpoint, data_parallel_size)
        health = bind_address("--health-bind-address", health_bind_address)
    except ValueError as error:
        _fail(str(error))
    try:
        ca_data = _pem(server_ca_data)
    except ValueError as error:
        _fail(f"--server-ca-data: {error}")
    try:
        servers = parse_targets(server)
    except ValueError as error:
        _fail(str(error), status=1)
    settings = SubscriberSettings(
        identity=Identity(replica_id, model_id, tenant_id, hash_scheme),
        servers=servers,
        engine_endpoint=engine_endpoint,
        replay_endpoint=replay_endpoint,
        data_parallel_size=data_parallel_size,
        topic=topic,
        window=(window if window > timedelta(0) else _WINDOW).total_seconds(),
        adapter_names=adapter_names,
        offloads=ignore_block_removed,
        metrics_url=engine_metrics_url,
        stats_interval=(stats_interval if stats_interval > timedelta(0) else _STATS_INTERVAL).total_seconds(),
        load=LoadSettings(
            cache_size_bytes=max(engine_cache_size_bytes, 0),
            concurrency=max_concurrency_ceiling,
            tier=CacheTier(cache_tier),
            model_name=engine_model_name,
        ),
        server_tls=server_tls or bool(server_ca_file or server_ca_data),
        server_ca_file=Path(server_ca_file) if server_ca_file else None,
        server_ca_data=ca_data,
        server_token_file=Path(server_token_file) if server_token_file else None,
        health=health,
    )

    from inferencecache.cli.loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        raise typer.Exit(runner.run(run(settings)))


def _pem(encoded: str) -> str:
    """Certificates from base64. Raises `ValueError`."""
    text = base64.b64decode(encoded, validate=True).decode("ascii")
    if text:
        try:
            ssl.create_default_context(cadata=text)
        except ssl.SSLError as error:
            raise ValueError(f"no certificates in PEM: {error}") from error
    return text


def _fail(message: str, status: int = 2) -> NoReturn:
    typer.echo(f"inferencecache kvevent-subscriber: {message}", err=True)
    raise typer.Exit(status)
