from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferencecache.server.index import Holds, Report, Stats
from inferencecache.server.streams import EventHub, StreamEnded, Subscription, stream_metrics
from inferencecache.wire.v1alpha1.inferencecache_pb2 import (
    CacheEvent,
    Metric,
    StreamEventsRequest,
    StreamMetricsRequest,
)

ADDED, EVICTED = CacheEvent.PREFIX_ADDED, CacheEvent.PREFIX_EVICTED
UPDATED, CLEARED = CacheEvent.REPLICA_UPDATED, CacheEvent.ALL_CLEARED


def report(*holds: Holds, stats: Stats | None = None) -> Report:
    return Report("r", "t", "m", "vllm", 7, holds, stats)


def added(*hashes: bytes, model: str = "m") -> Report:
    return report(Holds("", 1, hashes, [16] * len(hashes)))._replace(model=model)


def published(event_type: CacheEvent.Type, model: str = "m", tenant: str = "t") -> CacheEvent:
    return CacheEvent(type=event_type, replica_id="r", model_id=model, tenant_id=tenant)


async def read(subscription: Subscription, count: int) -> list[CacheEvent]:
    async with asyncio.timeout(60):
        return [await anext(subscription) for _ in range(count)]


async def test_a_report_tells_every_hash_it_added_with_its_adapter_and_time() -> None:
    hub = EventHub()
    everything = hub.subscribe(StreamEventsRequest())
    holds = (Holds("a", 1, [b"1", b"2", b"2"], [16, 32, 32]), Holds("b", 1, [b"3"], [16]))
    hub.reported(report(*holds, stats=Stats(0, 0.5, 0.0)))
    events = await read(everything, 4)
    assert [(event.prefix_hash, event.adapter_id) for event in events] == [
        (b"1", "a"),
        (b"2", "a"),
        (b"2", "a"),
        (b"3", "b"),
    ]
    assert all(
        (event.type, event.replica_id, event.model_id, event.tenant_id, event.timestamp_us) == (ADDED, "r", "m", "t", 7)
        for event in events
    )


async def test_a_report_of_load_alone_says_that_the_replica_was_updated() -> None:
    hub = EventHub()
    everything = hub.subscribe(StreamEventsRequest())
    hub.reported(report(stats=Stats(0, 0.0, 0.0)))
    assert await read(everything, 1) == [
        CacheEvent(type=UPDATED, replica_id="r", model_id="m", tenant_id="t", timestamp_us=7)
    ]


async def test_a_published_event_is_passed_on_as_it_is() -> None:
    hub = EventHub()
    everything = hub.subscribe(StreamEventsRequest())
    event = CacheEvent(type=EVICTED, replica_id="r", model_id="m", tenant_id="t", prefix_hash=b"x", adapter_id="a")
    hub.published(event)
    assert await read(everything, 1) == [event]


@pytest.mark.parametrize(
    ("request_", "heard"),
    [
        (StreamEventsRequest(), ["m/t added", "m/t cleared", "m/u cleared", "n/t added"]),
        (StreamEventsRequest(model_id="n"), ["n/t added"]),
        (StreamEventsRequest(tenant_id="u"), ["m/u cleared"]),
        (StreamEventsRequest(types=[CLEARED]), ["m/t cleared", "m/u cleared"]),
        (StreamEventsRequest(types=[ADDED, EVICTED], tenant_id="t"), ["m/t added", "n/t added"]),
        (StreamEventsRequest(model_id="n", types=[CLEARED]), []),
    ],
)
async def test_an_observer_hears_what_it_asked_for(request_: StreamEventsRequest, heard: Sequence[str]) -> None:
    hub = EventHub()
    subscription = hub.subscribe(request_)
    end = hub.subscribe(StreamEventsRequest())
    hub.reported(added(b"1"))
    hub.published(published(CLEARED))
    hub.published(published(CLEARED, tenant="u"))
    hub.reported(added(b"1", model="n"))
    await read(end, 4)
    events = await read(subscription, len(heard))
    names = {ADDED: "added", CLEARED: "cleared"}
    assert [f"{event.model_id}/{event.tenant_id} {names[event.type]}" for event in events] == heard
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(subscription)


async def test_a_slow_reader_gets_all_up_to_the_gap_and_is_then_told_of_it() -> None:
    hub = EventHub(max_buffered=3)
    slow, other = hub.subscribe(StreamEventsRequest()), hub.subscribe(StreamEventsRequest(model_id="other"))
    hub.reported(added(b"1", b"2"))
    hub.reported(added(b"3", b"4"))
    hub.reported(added(b"5"))
    assert [event.prefix_hash for event in await read(slow, 3)] == [b"1", b"2", b"3"]
    with pytest.raises(StreamEnded, match="subscribe again"):
        await anext(slow)
    hub.reported(added(b"6", model="other"))
    assert [event.prefix_hash for event in await read(other, 1)] == [b"6"]


async def test_a_reader_that_waits_hears_at_once() -> None:
    hub = EventHub()
    subscription = hub.subscribe(StreamEventsRequest())
    waiting = asyncio.create_task(read(subscription, 1))
    await asyncio.sleep(0)
    hub.published(published(CLEARED))
    assert [event.type for event in await waiting] == [CLEARED]


async def test_observers_are_bounded_and_leaving_makes_room() -> None:
    hub = EventHub(max_subscriptions=1)
    first = hub.subscribe(StreamEventsRequest())
    with pytest.raises(StreamEnded, match="1 observers"):
        hub.subscribe(StreamEventsRequest())
    first.close()
    first.close()
    hub.subscribe(StreamEventsRequest())


def test_without_observers_a_report_is_not_even_looked_at() -> None:
    class Untouchable:
        model = "m"
        tenant = "t"

    EventHub().reported(Untouchable())  # type: ignore[arg-type]


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("entries", "", ("model",), registry=registry).labels("m").set(3)
    Counter("calls", "", registry=registry).inc(2)
    Histogram("seconds", "", buckets=(1.0,), registry=registry).observe(0.5)
    return registry


class _SecondRound(Exception):
    """The stream asks for the time again."""


async def one_round(registry: CollectorRegistry, *names: str) -> list[Metric]:
    """What comes before the stream begins anew."""
    rounds = 0

    def wall_us() -> int:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise _SecondRound
        return 9

    samples: list[Metric] = []
    with contextlib.suppress(_SecondRound):
        async for sample in stream_metrics(
            registry, StreamMetricsRequest(names=names), wall_us=wall_us, interval_seconds=0
        ):
            samples.append(sample)  # noqa: PERF401 - a comprehension would lose what came before the end
    return samples


async def test_every_series_is_told_with_its_type_labels_and_time(registry: CollectorRegistry) -> None:
    samples = {sample.name: sample for sample in await one_round(registry)}
    assert samples["entries"] == Metric(name="entries", type="gauge", labels={"model": "m"}, value=3, timestamp_us=9)
    assert samples["calls_total"] == Metric(name="calls_total", type="counter", value=2, timestamp_us=9)
    assert samples["seconds_count"].type == "histogram"


@pytest.mark.parametrize(
    ("names", "heard"),
    [
        (["entries"], ["entries"]),
        (["calls"], ["calls_total"]),
        (["calls_total"], ["calls_total"]),
        (["seconds_sum", "entries"], ["entries", "seconds_sum"]),
        (["nothing"], []),
    ],
)
async def test_names_choose_metrics_or_single_series(
    registry: CollectorRegistry, names: list[str], heard: list[str]
) -> None:
    assert [sample.name for sample in await one_round(registry, *names)] == heard


async def test_metrics_come_again_until_the_reader_leaves(registry: CollectorRegistry) -> None:
    stream = stream_metrics(registry, StreamMetricsRequest(names=["entries"]), wall_us=lambda: 9, interval_seconds=0)
    async with asyncio.timeout(60):
        assert [(await anext(stream)).name for _ in range(3)] == ["entries"] * 3
    await stream.aclose()  # type: ignore[attr-defined]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
