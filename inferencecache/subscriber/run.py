"""The sidecar as a process: its parts put together, and their end (spec 08 §10).

No fault of the engine or a server ends it, only a signal does. Then nothing more is heard, the servers are told what is
pending, and the process ends within ten seconds. What the replica holds stays in the index: the engine may live on.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import zmq

from inferencecache.subscriber.chain import Chain
from inferencecache.subscriber.channel import Address, Channel
from inferencecache.subscriber.credentials import TokenFile, client_context
from inferencecache.subscriber.delivery import Backoff, Delivery
from inferencecache.subscriber.health import Listening, Parts, serving
from inferencecache.subscriber.load import LoadReader, LoadSettings
from inferencecache.subscriber.messages import Identity
from inferencecache.subscriber.outbox import CAPACITY
from inferencecache.subscriber.pipeline import Pipeline
from inferencecache.subscriber.servers import Servers, Target
from inferencecache.subscriber.source import Source
from inferencecache.subscriber.stats import SGLANG_METRICS, VLLM_METRICS, Pages, StatsReporter
from inferencecache.wire.ranks import of_rank

LAST_WORDS_SECONDS: Final = 5.0
"""For the servers to be told what is pending, at the end."""
_AGAIN_SECONDS: Final = 1.0
_COLLECT_AFTER: Final = 50_000
"""Objects; the default is 700."""
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 131_072

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SubscriberSettings:
    """What a sidecar was told; endpoints are those of rank 0, times are seconds."""

    identity: Identity
    servers: list[Target]
    engine_endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str = ""
    data_parallel_size: int = 1
    topic: str = "kv-events"
    window: float = 0.1
    adapter_names: dict[int, str] = field(default_factory=dict)
    offloads: bool = False
    """Removals from the GPU leave a copy in an offload tier (`--ignore-block-removed`)."""
    metrics_url: str = VLLM_METRICS
    stats_interval: float = 10.0
    load: LoadSettings = LoadSettings()  # noqa: RUF009 - frozen
    server_tls: bool = False
    server_ca_file: Path | None = None
    server_ca_data: str = ""
    """PEM."""
    server_token_file: Path | None = None
    health: tuple[str, int] | None = ("", 9095)
    redial: float = 1.0
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen
    capacity: int = CAPACITY
    """Changes that may be pending for one server."""

    @property
    def metrics_urls(self) -> list[str]:
        """Where the engine's metrics may be: SGLang's are on another port, and an injected sidecar is told none."""
        if self.metrics_url == VLLM_METRICS and self.identity.hash_scheme == "sglang":
            return [VLLM_METRICS, SGLANG_METRICS]
        return [self.metrics_url]

    def colliding_ports(self) -> list[int]:
        """Ports that a rank publishes on and another one replays on (spec 08 §15 fact 3)."""
        if not self.replay_endpoint:
            return []
        ranks = range(self.data_parallel_size)
        published = {of_rank(self.engine_endpoint, rank) for rank in ranks}
        replayed = {of_rank(self.replay_endpoint, rank) for rank in ranks}
        return sorted(int(endpoint.rpartition(":")[2]) for endpoint in published & replayed)


class Subscriber:
    """One sidecar's parts."""

    def __init__(self, settings: SubscriberSettings) -> None:
        self._settings = settings
        self._token = TokenFile(settings.server_token_file) if settings.server_token_file else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        chain = Chain(adapter_names=settings.adapter_names, offloads=settings.offloads)
        self.servers = Servers(settings.servers, self._delivery)
        self.pipeline = Pipeline(chain, lambda: list(self.servers.deliveries.values()))
        self.sources = [self._source(rank) for rank in range(settings.data_parallel_size)]
        self.stats = StatsReporter(
            Pages(settings.metrics_urls),
            LoadReader(settings.load),
            settings.identity,
            lambda: [delivery.channel for delivery in self.servers.deliveries.values()],
            interval=settings.stats_interval,
        )
        self.listening = Listening(self.sources)
        self.parts = Parts(
            self.sources, self.pipeline, lambda: list(self.servers.deliveries.values()), self.stats.freshness
        )

    def _source(self, rank: int) -> Source:
        return Source(
            self._context,
            of_rank(self._settings.engine_endpoint, rank),
            on_batch=lambda payload: self.pipeline.batch(rank, payload),
            on_loss=lambda: self.pipeline.void(rank),
            topic=self._settings.topic,
            replay_endpoint=of_rank(self._settings.replay_endpoint, rank),
            redial=self._settings.redial,
        )

    def _delivery(self, address: Address, target: Target) -> Delivery:
        settings = self._settings
        channel = Channel(
            address,
            authority=target.authority,
            tls=self._tls if settings.server_tls else None,
            token=self._token if self._token else str,
            on_loss=lambda: delivery.look(),
        )
        delivery = Delivery(
            channel,
            settings.identity,
            self.pipeline.chain.holds,
            moved=self.pipeline.chain.moved,
            window=settings.window,
            backoff=settings.backoff,
            capacity=settings.capacity,
        )
        return delivery

    def _tls(self) -> ssl.SSLContext:
        return client_context(self._settings.server_ca_file, self._settings.server_ca_data)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, and say the last words."""
        jobs: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *((f"follow {source.endpoint}", source.run) for source in self.sources),
            ("tell the servers", self.servers.run),
            ("tell the load", self.stats.run),
            ("listen for silence", self.listening.run),
        ]
        try:
            async with _health(self._settings, self.parts, self.listening), asyncio.TaskGroup() as group:
                tasks = [group.create_task(_enduring(name, job), name=name) for name, job in jobs]
                await stop.wait()
                _log.info("stopping")
                for task in tasks:
                    task.cancel()
            try:
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self.servers.flush()
            except TimeoutError:
                _log.warning("the servers were not told everything in time")
        finally:
            self.servers.close()
            self._context.destroy(linger=0)


async def _enduring(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Do a job, and begin it anew if it fails: one part's bug is not the end of the others."""
    while True:
        try:
            await job()
        except Exception:
            _log.exception("a part failed, and begins anew", part=name)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return


@asynccontextmanager
async def _health(settings: SubscriberSettings, parts: Parts, listening: Listening) -> AsyncIterator[None]:
    if settings.health is None:
        yield
        return
    async with serving(parts, listening, *settings.health):
        yield


async def run(settings: SubscriberSettings) -> int:
    """Work until SIGINT or SIGTERM; the exit status of the process."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _spare_the_collector()
    _map_large_blocks()
    _log.info("starting", **_told(settings))
    if ports := settings.colliding_ports():
        _log.warning("a rank publishes where another one replays; engines cannot bind both", ports=ports)
    await Subscriber(settings).run(stop)
    return 0


def _spare_the_collector() -> None:
    """Keep the garbage collector from walking what stays for ever, again and again.

    Events are lists by the thousands, which set it off, and none of them is part of a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def _map_large_blocks() -> None:
    """Have large tables given back to the system when they are replaced by larger ones.

    The GNU C library begins so, but after the first of them was freed it keeps those, and up to twice as much of what
    was freed beside them; to say the default aloud turns that off. Others have no such call, and no such habit.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _told(settings: SubscriberSettings) -> dict[str, object]:
    """The settings in effect, for the log."""
    return {
        "replica_id": settings.identity.replica_id,
        "model_id": settings.identity.model_id,
        "tenant_id": settings.identity.tenant_id,
        "hash_scheme": settings.identity.hash_scheme,
        "engine_endpoint": settings.engine_endpoint,
        "replay_endpoint": settings.replay_endpoint,
        "data_parallel_size": settings.data_parallel_size,
        "topic": settings.topic,
        "server": ",".join(target.authority for target in settings.servers),
        "server_tls": settings.server_tls,
        "window_seconds": settings.window,
        "ignore_block_removed": settings.offloads,
        "lora_adapters": len(settings.adapter_names),
        "engine_metrics_urls": settings.metrics_urls,
        "stats_interval_seconds": settings.stats_interval,
        "engine_cache_size_bytes": settings.load.cache_size_bytes,
        "max_concurrency_ceiling": settings.load.concurrency,
        "cache_tier": settings.load.tier.value,
        "engine_model_name": settings.load.model_name,
    }
