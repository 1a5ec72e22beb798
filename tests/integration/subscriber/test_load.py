"""An engine's load on the server's snapshot, and what the sidecar says of itself."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from inferencecache.fakeengine.engine import Engine
from inferencecache.fakeengine.http import MetricNames
from inferencecache.fakeengine.run import running as engine_running
from inferencecache.subscriber.health import Listening
from inferencecache.subscriber.load import LoadSettings
from tests.integration.server.running import Running, get, request, running
from tests.integration.subscriber.world import engine_settings, eventually, sidecar, world


async def replica(server: Running) -> dict[str, Any]:
    """The row of the only replica."""
    status, body = await get(server.url("/snapshot"))
    assert status == 200
    rows = json.loads(body)["replicas"] or []
    assert len(rows) <= 1
    return rows[0] if rows else {}


@asynccontextmanager
async def serving_requests(port: int, metrics: MetricNames) -> AsyncIterator[tuple[Engine, str]]:
    """An engine with an HTTP face."""
    settings = engine_settings(http=("127.0.0.1", port), metrics=metrics, cache_blocks=8, latency=0.0)
    async with engine_running(settings) as engine:
        yield engine, f"http://127.0.0.1:{port}"


async def complete(url: str, prompt: str) -> dict[str, Any]:
    status, body = await request("POST", f"{url}/v1/completions", json={"model": "fake-model", "prompt": prompt})
    assert status == 200, body
    usage: dict[str, Any] = json.loads(body)["usage"]
    return usage


@pytest.mark.parametrize("metrics", list(MetricNames))
async def test_the_load_of_either_engine_reaches_the_snapshot(metrics: MetricNames, free_port: int) -> None:
    async with running() as server, serving_requests(free_port, metrics) as (engine, url):
        fields = {"metrics_url": f"{url}/metrics", "load": LoadSettings(cache_size_bytes=1000)}
        async with sidecar(engine, server.target(), **fields) as it:
            await eventually(lambda: it.subscriber.servers.deliveries)
            await it.subscriber.stats.tick()
            assert (await replica(server))["hitRate"] == 0
            prompt = "the same words twice"
            assert (await complete(url, prompt))["prompt_tokens_details"] == {"cached_tokens": 0}
            assert (await complete(url, prompt))["prompt_tokens_details"] == {"cached_tokens": 20}
            await it.subscriber.stats.tick()
            row = await replica(server)
            assert row["hitRate"] == 0.5
            assert row["cacheMemoryBytes"] == 625  # five of eight blocks
            assert it.subscriber.stats.freshness.delivered == 2


@pytest.mark.parametrize("prompt", ["\ud800", None, 5, [1, -1], [2**32], ["a"], [True]])
async def test_the_fake_engine_names_a_prompt_that_it_cannot_read(prompt: Any, free_port: int) -> None:
    async with serving_requests(free_port, MetricNames.VLLM) as (_, url):
        status, said = await request("POST", f"{url}/v1/completions", json={"model": "m", "prompt": prompt})
        assert status == 400
        assert said.startswith("prompt: ")


async def test_without_an_engine_nothing_is_told_and_the_signal_is_stale(free_port: int) -> None:
    async with running() as server, world(server, metrics_url=f"http://127.0.0.1:{free_port}/metrics") as it:
        with capture_logs() as lines:
            for _ in range(4):
                await it.sidecar.subscriber.stats.tick()
        assert [line.get("event_") for line in lines if line["log_level"] == "error"] == ["load_signal_stale"]
        assert await replica(server) == {}
        assert await it.agreed() == set()
        await it.engine.complete([1] * 8)
        assert await it.agreed()  # events do not care


async def test_the_first_tick_comes_after_an_interval(free_port: int) -> None:
    async with running() as server, serving_requests(free_port, MetricNames.VLLM) as (engine, url):
        fields = {"metrics_url": f"{url}/metrics", "stats_interval": 0.2}
        begun = asyncio.get_running_loop().time()
        async with sidecar(engine, server.target(), **fields) as it:
            await eventually(lambda: it.subscriber.stats.freshness.delivered)
            assert asyncio.get_running_loop().time() - begun >= 0.2


async def test_health_and_metrics_say_what_the_sidecar_is_at(free_port: int) -> None:
    async with running() as server, world(server, health=("127.0.0.1", free_port)) as it:
        await it.engine.complete([1] * 8)
        await it.agreed()
        (delivery,) = it.sidecar.subscriber.servers.deliveries.values()
        await eventually(lambda: delivery.in_step)
        status, body = await get(f"http://127.0.0.1:{free_port}/healthz")
        said = json.loads(body)
        assert (status, said["status"], said["problems"]) == (200, "ok", [])
        assert said["held_blocks"] == 2
        assert said["engine"][0]["connected"]
        assert said["servers"] == [{"address": server.target(), "in_step": True, "pending": 0}]
        status, body = await get(f"http://127.0.0.1:{free_port}/metrics")
        values = {
            sample.name: sample.value for family in text_string_to_metric_families(body) for sample in family.samples
        }
        assert values["inferencecache_subscriber_messages_total"] == 1
        assert values["inferencecache_subscriber_held_blocks"] == 2
        assert values["inferencecache_subscriber_in_step"] == 1
        assert values["process_resident_memory_bytes"] > 0
        assert (await get(f"http://127.0.0.1:{free_port}/other"))[0] == 404
        it.engine.ranks[0].publisher.close()
        await eventually(lambda: not it.sidecar.subscriber.sources[0].connected)
        said = json.loads((await get(f"http://127.0.0.1:{free_port}/healthz"))[1])
        assert said["status"] == "degraded"
        assert said["problems"] == [
            f"{it.sidecar.subscriber.sources[0].endpoint}: the connection to the engine is lost"
        ]


async def test_a_port_that_is_taken_is_given_up(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)), capture_logs() as lines:
        async with running() as server, world(server, health=("127.0.0.1", free_port)) as it:
            await it.engine.complete([1] * 8)
            assert await it.agreed()
    assert any("port cannot be had" in line["event"] and line["log_level"] == "warning" for line in lines)


async def test_silence_is_told_with_what_is_known_of_its_cause() -> None:
    async with running() as server, world(server, engine_settings(topic="other")) as it:
        await it.engine.complete([1] * 8)
        source = it.sidecar.subscriber.sources[0]
        await eventually(lambda: source.foreign_topic)
        listening = Listening([source], seconds=0.0)
        with capture_logs() as lines:
            watching = asyncio.create_task(listening.run())
            await eventually(lambda: listening.silent)
            watching.cancel()
        (line,) = (line for line in lines if "KV events" in line["event"])  # beside what others say meanwhile
        assert (line["event"], line["log_level"]) == ("no KV events were heard", "warning")
        assert "'other'" in line["cause"]
