"""`inferencecache kvevent-fake-engine`: an engine without a model, for tests and demonstrations (spec 08 §12)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Annotated, Final

import typer

from inferencecache.cli.flags import bind_address, duration
from inferencecache.cli.logs import Encoder, Keys, TimeEncoding, set_up

_BATCH = "Repeated batch"
_FAULTS = "Faults"
_REQUESTS = "Requests"

_INTERVAL: Final = timedelta(milliseconds=500)


def kvevent_fake_engine(
    bind: Annotated[str, typer.Option(help="ZMQ address to publish KV events on.")] = "tcp://0.0.0.0:5557",
    topic: Annotated[str, typer.Option(help="First frame of every message.")] = "kv-events",
    replay: Annotated[str, typer.Option(help="ZMQ address where batches can be asked for again; empty: nowhere.")] = "",
    ranks: Annotated[int, typer.Option(help="Data-parallel ranks; rank r is on each address's port + r.")] = 1,
    encoding: Annotated[str, typer.Option(help="How events are written: array (older engines) or map.")] = "array",
    medium: Annotated[str, typer.Option(help="Medium that events name, as GPU or CPU; empty: none.")] = "",
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 128,
    num_blocks: Annotated[int, typer.Option(help="Blocks of the batch.", rich_help_panel=_BATCH)] = 1,
    events: Annotated[
        int, typer.Option(help="BlockStored events that the blocks are spread over.", rich_help_panel=_BATCH)
    ] = 1,
    start_token: Annotated[int, typer.Option(help="Its first token; the others follow.", rich_help_panel=_BATCH)] = 0,
    interval: Annotated[
        timedelta,
        typer.Option(
            parser=duration, help="Time between two publications.", show_default="500ms", rich_help_panel=_BATCH
        ),
    ] = _INTERVAL,
    omit_token_ids: Annotated[
        bool,
        typer.Option("--omit-token-ids/--no-omit-token-ids", help="Send no token ids.", rich_help_panel=_BATCH),
    ] = False,
    repeat: Annotated[
        bool,
        typer.Option("--repeat/--no-repeat", help="Publish the batch at all.", rich_help_panel=_BATCH),
    ] = True,
    drop: Annotated[
        int,
        typer.Option(help="Every so many batches, one is not sent; it can be replayed.", rich_help_panel=_FAULTS),
    ] = 0,
    lose: Annotated[
        int,
        typer.Option(
            help="Every so many batches, one only uses up its number, as if it failed to encode.",
            rich_help_panel=_FAULTS,
        ),
    ] = 0,
    restart_after: Annotated[
        int, typer.Option(help="Be a new process after so many batches.", rich_help_panel=_FAULTS)
    ] = 0,
    http_bind_address: Annotated[
        str,
        typer.Option(
            help="Where /v1/completions, /v1/models, /tokenize and /metrics are served; empty: nowhere.",
            rich_help_panel=_REQUESTS,
        ),
    ] = "",
    metrics: Annotated[
        str, typer.Option(help="Whose names the metrics have: vllm or sglang.", rich_help_panel=_REQUESTS)
    ] = "vllm",
    model: Annotated[str, typer.Option(help="Name of the model.", rich_help_panel=_REQUESTS)] = "fake-model",
    cache_blocks: Annotated[
        int, typer.Option(help="Blocks that fit into a rank's cache.", rich_help_panel=_REQUESTS)
    ] = 10_000,
    latency: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            help="Time a prompt takes of which nothing is cached.",
            show_default="0s",
            rich_help_panel=_REQUESTS,
        ),
    ] = timedelta(0),
) -> None:
    """Publish KV-cache events like an engine, and say what an index should make of them."""
    from inferencecache.fakeengine.encoding import Encoding
    from inferencecache.fakeengine.http import MetricNames
    from inferencecache.fakeengine.publisher import Faults
    from inferencecache.fakeengine.repeated import RepeatedBatch
    from inferencecache.fakeengine.run import FakeEngineSettings, run

    set_up(Encoder.JSON, level=logging.INFO, time_encoding=TimeEncoding.RFC3339NANO, keys=Keys.SLOG)
    try:
        settings = FakeEngineSettings(
            bind=bind,
            topic=topic,
            replay=replay,
            ranks=ranks,
            encoding=Encoding(encoding),
            batch=RepeatedBatch(
                block_size=block_size,
                num_blocks=num_blocks,
                events=events,
                start_token=start_token,
                omit_token_ids=omit_token_ids,
                medium=medium or None,
            ),
            interval=interval.total_seconds(),
            repeat=repeat,
            faults=Faults(drop=drop, lose=lose),
            restart_after=restart_after,
            http=bind_address("--http-bind-address", http_bind_address),
            metrics=MetricNames(metrics),
            model=model,
            cache_blocks=cache_blocks,
            latency=latency.total_seconds(),
        )
    except ValueError as error:
        typer.echo(f"inferencecache kvevent-fake-engine: {error}", err=True)
        raise typer.Exit(2) from None

    with asyncio.Runner() as runner:
        raise typer.Exit(runner.run(run(settings, _say)))


def _say(line: str) -> None:
    print(line, flush=True)
