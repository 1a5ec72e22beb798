"""What the sidecar says of itself: `/healthz`, `/metrics`, and a log line when it hears nothing (decision D4).

Silence is the commonest fault, and has no error of its own: an engine that publishes no events, or under another topic,
or on another port, looks the same as an idle one. So once nothing was heard for a minute from the beginning on, that is
said, with what is known of the cause.

The port is a convenience: the sidecar is injected into Pods that others wrote, so a port that is taken is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from httptools import HttpParserError, HttpRequestParser
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferencecache.subscriber.delivery import Delivery
from inferencecache.subscriber.pipeline import Pipeline
from inferencecache.subscriber.source import Source
from inferencecache.subscriber.stats import Freshness

SILENCE_SECONDS: Final = 60.0

_PREFIX: Final = "inferencecache_subscriber"
_REQUEST_SECONDS: Final = 5.0
_MAX_CONNECTIONS: Final = 16

_log = structlog.get_logger(__name__)


class Parts(NamedTuple):
    """The parts of the sidecar that are looked at."""

    sources: Sequence[Source]
    pipeline: Pipeline
    deliveries: Callable[[], Sequence[Delivery]]
    load: Freshness


def silence_of(source: Source) -> str:
    """Why nothing may have been heard of a rank."""
    if source.foreign_topic is not None:
        return f"the engine publishes under the topic {source.foreign_topic!r}; give it as --topic"
    if not source.connected:
        return "nothing answers there: does the engine publish KV events, on this port?"
    return "there is a connection, but no event came: the engine is idle, or publishes none"


class Listening:
    """Says once that a source is not heard, and once that it is."""

    def __init__(self, sources: Sequence[Source], seconds: float = SILENCE_SECONDS) -> None:
        self._seconds = seconds
        self._silent: dict[Source, bool] = dict.fromkeys(sources, False)

    @property
    def silent(self) -> list[Source]:
        """The sources of which nothing was heard for too long."""
        return [source for source, silent in self._silent.items() if silent and source.last_message is None]

    async def run(self) -> None:
        """Watch until cancelled."""
        await asyncio.sleep(self._seconds)
        for source in self._silent:
            if source.last_message is None:
                self._silent[source] = True
                _log.warning("no KV events were heard", endpoint=source.endpoint, cause=silence_of(source))
        while any(self._silent.values()):
            await asyncio.sleep(1.0)
            for source, silent in self._silent.items():
                if silent and source.last_message is not None:
                    self._silent[source] = False
                    _log.info("KV events are heard", endpoint=source.endpoint)


def report(parts: Parts, listening: Listening, now: float) -> dict[str, Any]:
    """The body of `/healthz`: `status` is `ok` or `degraded`, with the `problems` in words."""
    silent = listening.silent
    problems = [f"{source.endpoint}: {silence_of(source)}" for source in silent]
    problems += [
        f"{source.endpoint}: the connection to the engine is lost"
        for source in parts.sources
        if source.counts.losses and not source.connected and source not in silent
    ]
    problems += [
        f"{delivery.channel.address}: not told in {delivery.failing} attempts"
        for delivery in parts.deliveries()
        if delivery.failing
    ]
    if not parts.deliveries():
        problems.append("no server is known")
    if parts.load.stale:
        problems.append("the engine's load is not delivered")
    return {
        "status": "degraded" if problems else "ok",
        "problems": problems,
        "engine": [
            {
                "endpoint": source.endpoint,
                "connected": source.connected,
                "messages": source.counts.messages,
                "seconds_since_message": None if source.last_message is None else round(now - source.last_message, 1),
            }
            for source in parts.sources
        ],
        "held_blocks": parts.pipeline.chain.alive,
        "servers": [
            {
                "address": str(delivery.channel.address),
                "in_step": delivery.in_step,
                "pending": len(delivery.outbox),
            }
            for delivery in parts.deliveries()
        ],
    }


class _SidecarCollector(Collector):
    """Reads the parts' own counts when asked."""

    def __init__(self, parts: Parts, listening: Listening) -> None:
        self._parts = parts
        self._listening = listening

    def collect(self) -> Iterator[Metric]:
        yield from self._of_engine()
        yield from self._of_servers()

    def _of_engine(self) -> Iterator[Metric]:
        sources, pipeline, load = self._parts.sources, self._parts.pipeline, self._parts.load
        for field, text in (
            ("messages", "Messages of the engine."),
            ("foreign", "Messages under another topic."),
            ("gaps", "Times that messages were missing."),
            ("replayed", "Batches that came by replay."),
            ("holes", "Times that messages were lost for good."),
            ("restarts", "Times that the engine began its numbers anew."),
            ("losses", "Connections to the engine that were lost."),
        ):
            family = CounterMetricFamily(f"{_PREFIX}_{field}", text, labels=["endpoint"])
            for source in sources:
                family.add_metric([source.endpoint], getattr(source.counts, field))
            yield family
        connected = GaugeMetricFamily(f"{_PREFIX}_connected", "Whether the engine is heard.", labels=["endpoint"])
        silent = GaugeMetricFamily(f"{_PREFIX}_silent", "Whether nothing was ever heard.", labels=["endpoint"])
        for source in sources:
            connected.add_metric([source.endpoint], source.connected)
            silent.add_metric([source.endpoint], source in self._listening.silent)
        yield from (connected, silent)
        yield CounterMetricFamily(f"{_PREFIX}_events", "Events understood.", value=pipeline.counts.events)
        dropped = CounterMetricFamily(f"{_PREFIX}_dropped_events", "Events left out, by reason.", labels=["reason"])
        for reason, count in pipeline.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped
        yield GaugeMetricFamily(f"{_PREFIX}_held_blocks", "Blocks that the engine holds.", value=pipeline.chain.alive)
        yield GaugeMetricFamily(f"{_PREFIX}_load_stale", "Whether the load is not delivered.", value=load.stale)

    def _of_servers(self) -> Iterator[Metric]:
        deliveries = self._parts.deliveries()
        for field, text in (
            ("additions", "Additions that were acknowledged."),
            ("evictions", "Evictions that were acknowledged."),
            ("failures", "Attempts that failed."),
            ("resyncs", "Times that the server was told all that is held."),
            ("overflows", "Times that too much was pending."),
        ):
            family = CounterMetricFamily(f"{_PREFIX}_{field}", text, labels=["server"])
            for delivery in deliveries:
                family.add_metric([str(delivery.channel.address)], getattr(delivery.counts, field))
            yield family
        pending = GaugeMetricFamily(f"{_PREFIX}_pending", "Entries not acknowledged yet.", labels=["server"])
        in_step = GaugeMetricFamily(f"{_PREFIX}_in_step", "Whether the server knows all.", labels=["server"])
        for delivery in deliveries:
            pending.add_metric([str(delivery.channel.address)], len(delivery.outbox))
            in_step.add_metric([str(delivery.channel.address)], delivery.in_step)
        yield from (pending, in_step)


@asynccontextmanager
async def serving(parts: Parts, listening: Listening, host: str, port: int) -> AsyncIterator[int]:
    """Serve `/healthz` and `/metrics`; the port that was taken, or 0 if it cannot be had."""
    registry = CollectorRegistry()
    registry.register(_SidecarCollector(parts, listening))
    ProcessCollector(registry=registry)
    clock = asyncio.get_running_loop().time

    def page(path: str) -> tuple[str, str, bytes]:
        if path == "/healthz":
            return "200 OK", "application/json", msgspec.json.encode(report(parts, listening, clock()))
        if path == "/metrics":
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry)
        return "404 Not Found", "text/plain", b"not found\n"

    connections = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with connections, asyncio.timeout(_REQUEST_SECONDS):
                status, kind, body = page(await _path(reader))
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, HttpParserError, ValueError):
            pass  # whoever asked is gone, or does not speak HTTP
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host or None, port)
    except OSError as error:
        _log.warning("no /healthz and /metrics: the port cannot be had", port=port, error=str(error))
        yield 0
        return
    async with server:
        yield int(server.sockets[0].getsockname()[1])


class _Request:
    """What the parser tells."""

    def __init__(self) -> None:
        self.url = b""
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_message_complete(self) -> None:
        self.complete = True


async def _path(reader: asyncio.StreamReader) -> str:
    """The path that a request asks for."""
    request = _Request()
    parser = HttpRequestParser(request)
    size = 0
    while not request.complete:
        data = await reader.read(4096)
        size += len(data)
        if not data or size > 16_384:
            raise ValueError("no request")
        parser.feed_data(data)
    return request.url.decode(errors="replace").partition("?")[0]
