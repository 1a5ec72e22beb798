"""The fake engine as a process: its settings, its sockets, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from inferencecache.fakeengine.cache import BlockCache
from inferencecache.fakeengine.encoding import Encoding
from inferencecache.fakeengine.engine import Engine, Rank
from inferencecache.fakeengine.http import MetricNames, engine_app
from inferencecache.fakeengine.publisher import Faults, Publisher
from inferencecache.fakeengine.repeated import RepeatedBatch
from inferencecache.wire.ranks import of_rank

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class FakeEngineSettings:
    """What a fake engine was told; endpoints and `http` are those of rank 0."""

    bind: str = "tcp://0.0.0.0:5557"
    topic: str = "kv-events"
    replay: str = ""
    """Where parts of the stream can be asked for again; empty: nowhere."""
    replay_topic: bool = True
    """Whether replies name the topic, as those of newer engines do."""
    ranks: int = 1
    encoding: Encoding = Encoding.ARRAY
    batch: RepeatedBatch = field(default_factory=RepeatedBatch)
    interval: float = 0.5
    repeat: bool = True
    """Whether the batch is published at all."""
    faults: Faults = Faults()  # noqa: RUF009 - a tuple cannot be changed
    restart_after: int = 0
    http: tuple[str, int] | None = None
    metrics: MetricNames = MetricNames.VLLM
    model: str = "fake-model"
    cache_blocks: int = 10_000
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.interval <= 0:
            raise ValueError("--interval: needs a positive duration")
        if self.ranks <= 0:
            raise ValueError(f"--ranks={self.ranks}: needs a positive number")
        if self.cache_blocks <= 0:
            raise ValueError(f"--cache-blocks={self.cache_blocks}: needs a positive number")
        for flag, number in (
            ("--drop", self.faults.drop),
            ("--lose", self.faults.lose),
            ("--restart-after", self.restart_after),
        ):
            if number < 0:
                raise ValueError(f"{flag}={number}: needs 0 or a positive number")


@asynccontextmanager
async def running(settings: FakeEngineSettings) -> AsyncIterator[Engine]:
    """The engine, with its sockets bound and its HTTP face served, if it has one.

    Raises:
        OSError: an address cannot be had.
        ValueError: an endpoint has no port for the other ranks.
    """
    ranks = [
        Rank(
            number,
            Publisher(
                of_rank(settings.bind, number),
                settings.topic,
                replay_endpoint=of_rank(settings.replay, number),
                replay_topic=settings.replay_topic,
                faults=settings.faults,
            ),
            BlockCache(settings.batch.block_size, settings.cache_blocks, settings.batch.medium),
            encoding=settings.encoding,
            restart_after=settings.restart_after,
        )
        for number in range(settings.ranks)
    ]
    try:
        for rank in ranks:
            await rank.publisher.open()
        engine = Engine(settings.model, ranks)
        async with _http(settings, engine):
            yield engine
    finally:
        for rank in ranks:
            rank.publisher.terminate()


async def run(settings: FakeEngineSettings, say: Callable[[str], None]) -> int:
    """Publish until SIGINT or SIGTERM; the exit status. `say` is given the lines that say what to expect."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with running(settings) as engine:
            await _serve(settings, engine, stop, say)
    except (OSError, ValueError) as error:
        _log.error("cannot start", error=str(error))
        return 1
    return 0


async def _serve(settings: FakeEngineSettings, engine: Engine, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    async with asyncio.TaskGroup() as group:
        _log.info("publishing KV events", endpoints=[rank.publisher.endpoint for rank in engine.ranks])
        if settings.repeat:
            for line in settings.batch.expectations():
                say(line)
            repeating = group.create_task(_repeat(settings, engine), name="repeat")
        await stop.wait()
        if settings.repeat:
            repeating.cancel()


async def _repeat(settings: FakeEngineSettings, engine: Engine) -> None:
    events = settings.batch.stored()
    while True:
        for rank in engine.ranks:
            await rank.publish(events, ts=0.0, rank_on_wire=settings.ranks > 1)
        await asyncio.sleep(settings.interval)


@asynccontextmanager
async def _http(settings: FakeEngineSettings, engine: Engine) -> AsyncIterator[None]:
    if settings.http is None:
        yield
        return
    runner = web.AppRunner(engine_app(engine, settings.metrics, settings.latency), access_log=None)
    await runner.setup()
    try:
        host, port = settings.http
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()
