"""What observers can follow: the changes of the index as they happen, and the server's metrics again and again.

A change is told after it was applied. A report's holds are `PREFIX_ADDED`, one event per hash; a report that only
brings load is `REPLICA_UPDATED`; events that producers publish are passed on. What the server removes by itself (TTL,
quota, cap) is not told: it follows from time and policy, and is counted in the metrics. Where a shared log repeats a
change, observers see it repeated.

A reader that is slower than the changes must not make the server keep them all. Each has a buffer, and when that is
full the stream ends with an error, after everything before the gap was delivered: nothing is lost without a word. The
reader asks GetCacheState and subscribes again. While nobody listens, changes cost nothing here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from inferencecache.server.index import Report
from inferencecache.wire.v1alpha1.inferencecache_pb2 import (
    CacheEvent,
    Metric,
    StreamEventsRequest,
    StreamMetricsRequest,
)

MAX_BUFFERED_EVENTS: Final = 10_000
MAX_SUBSCRIPTIONS: Final = 64
METRICS_INTERVAL_SECONDS: Final = 10.0

_TYPES: Final = {"counter": "counter", "histogram": "histogram"}
"""The wire knows these and `gauge`, which is what everything else is told as."""


class StreamEnded(Exception):
    """An observer cannot be served (any longer); the message says why and what to do."""


class Subscription:
    """One observer's events, to be iterated by one reader and closed by it.

    Raises while iterated:
        StreamEnded: the buffer overflowed; everything before that was delivered.
    """

    def __init__(self, request: StreamEventsRequest, max_buffered: int, close: Callable[[Subscription], None]) -> None:
        self._model = request.model_id
        self._tenant = request.tenant_id
        self._types = frozenset(request.types)
        self._max_buffered = max_buffered
        self._close = close
        self._buffer: deque[CacheEvent] = deque()
        self._overflowed = False
        self._news = asyncio.Event()

    def wants(self, model: str, tenant: str) -> bool:
        """Whether changes of this model and tenant are for this observer."""
        return (not self._model or model == self._model) and (not self._tenant or tenant == self._tenant)

    def put(self, events: Iterable[CacheEvent]) -> None:
        """Keep those of `events` that the observer asked for, as long as there is room."""
        for event in events:
            if self._overflowed:
                return
            if self._types and event.type not in self._types:
                continue
            if len(self._buffer) >= self._max_buffered:
                self._overflowed = True
            else:
                self._buffer.append(event)
        self._news.set()

    def close(self) -> None:
        """Nobody reads any longer."""
        self._close(self)

    def __aiter__(self) -> AsyncIterator[CacheEvent]:
        return self

    async def __anext__(self) -> CacheEvent:
        while not self._buffer:
            if self._overflowed:
                raise StreamEnded(
                    f"the reader is over {self._max_buffered} events behind and missed some:"
                    " ask GetCacheState and subscribe again"
                )
            self._news.clear()
            await self._news.wait()
        return self._buffer.popleft()


class EventHub:
    """Tells observers what was applied to the index. All methods belong to one event loop."""

    def __init__(self, *, max_buffered: int = MAX_BUFFERED_EVENTS, max_subscriptions: int = MAX_SUBSCRIPTIONS) -> None:
        self._max_buffered = max_buffered
        self._max_subscriptions = max_subscriptions
        self._subscriptions: set[Subscription] = set()

    def subscribe(self, request: StreamEventsRequest) -> Subscription:
        """What happens from now on, for one observer. Empty fields of `request` filter nothing.

        Raises:
            StreamEnded: there are too many observers.
        """
        if len(self._subscriptions) >= self._max_subscriptions:
            raise StreamEnded(f"there are {self._max_subscriptions} observers already: try again later")
        subscription = Subscription(request, self._max_buffered, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    def reported(self, report: Report) -> None:
        """`report` was applied."""
        listeners = self._listeners(report.model, report.tenant)
        if listeners:
            # More than fits into a buffer need not be made to overflow it.
            events = list(islice(_events_of(report), self._max_buffered + 1))
            for listener in listeners:
                listener.put(events)

    def published(self, event: CacheEvent) -> None:
        """`event` was applied."""
        for listener in self._listeners(event.model_id, event.tenant_id):
            listener.put((event,))

    def _listeners(self, model: str, tenant: str) -> list[Subscription]:
        if not self._subscriptions:
            return []
        return [each for each in self._subscriptions if each.wants(model, tenant)]


async def stream_metrics(
    registry: CollectorRegistry,
    request: StreamMetricsRequest,
    *,
    wall_us: Callable[[], int],
    interval_seconds: float = METRICS_INTERVAL_SECONDS,
) -> AsyncIterator[Metric]:
    """Every sample of `registry` now, and again after each interval, until the reader leaves.

    Args:
        registry: the metrics of the server.
        request: `names` may hold names of metrics or of single series (`…_bucket`); none means all.
        wall_us: the clock of the timestamps, in microseconds since 1970.
        interval_seconds: the pause between two rounds.
    """
    names = frozenset(request.names)
    while True:
        now_us = wall_us()
        # Beside the loop: with many models there are tens of thousands of samples.
        for metric in _chosen(await asyncio.to_thread(lambda: list(registry.collect())), names):
            metric.timestamp_us = now_us
            yield metric
        await asyncio.sleep(interval_seconds)


def _chosen(families: Iterable[Family], names: frozenset[str]) -> Iterator[Metric]:
    for family in families:
        for sample in family.samples:
            if not names or family.name in names or sample.name in names:
                yield Metric(
                    name=sample.name, type=_TYPES.get(family.type, "gauge"), labels=sample.labels, value=sample.value
                )


def _events_of(report: Report) -> Iterator[CacheEvent]:
    def event(event_type: CacheEvent.Type, prefix_hash: bytes = b"", adapter_id: str = "") -> CacheEvent:
        return CacheEvent(
            type=event_type,
            replica_id=report.replica_id,
            model_id=report.model,
            tenant_id=report.tenant,
            prefix_hash=prefix_hash,
            timestamp_us=report.timestamp_us,
            adapter_id=adapter_id,
        )

    for holds in report.holds:
        for prefix_hash in holds.hashes:
            yield event(CacheEvent.PREFIX_ADDED, prefix_hash, holds.adapter_id)
    if not report.holds and report.stats is not None:
        yield event(CacheEvent.REPLICA_UPDATED)
