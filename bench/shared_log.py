"""What a shared log costs a server, beside the same server without one, over a real Redis on this machine.

    python -m bench.shared_log [--records 5000]

A record is a report of 64 blocks. Printed are CPU time of the server per record (the store's own not counted), how long
one acknowledgement takes beside one bare round trip to the store, and how fast a server that starts reads the log.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop

from inferencecache.server.index import PrefixIndex
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore
from inferencecache.server.services import Services
from inferencecache.server.store import SharedLog, State, parse
from inferencecache.server.store.stream import connect
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheStateUpdate, PrefixEntry
from tests.integration.server.redis_server import RedisServer

BLOCKS: Final = 64
WINDOW: Final = 64
"""Reports of one stream that may be unacknowledged."""
ROUND_TRIPS: Final = 500


def server(url: str = "") -> tuple[Services, SharedLog | None]:
    """A server's parts below its faces; with a log if `url` is given."""
    policies, metrics = PolicyStore(), ServerMetrics()
    services = Services(index=PrefixIndex(policies, on_eviction=metrics.evicted), policies=policies, metrics=metrics)
    if not url:
        return services, None
    log = SharedLog(
        parse(url),
        apply=services.intake.apply,
        dump=services.intake.dump,
        retention_seconds=lambda: 1800.0,
        registry=metrics.registry,
    )
    services.intake.share(log)
    return services, log


def updates(count: int) -> list[CacheStateUpdate]:
    """Reports of new blocks."""
    return [
        CacheStateUpdate(
            replica_id=f"r{number % 8}", model_id="m", tenant_id="t", hash_scheme="vllm",
            prefixes=[
                PrefixEntry(prefix_hash=(number * BLOCKS + block).to_bytes(8, "big"), token_count=16 * (block + 1))
                for block in range(BLOCKS)
            ],
        )
        for number in range(count)
    ]  # fmt: skip


async def feed(services: Services, reports: Sequence[CacheStateUpdate]) -> float:
    """CPU seconds of taking all reports as one stream brings them."""
    began = time.process_time()
    pending = None
    for number, report in enumerate(reports):
        pending = services.report(report)
        if pending is not None and number % WINDOW == 0:
            await pending
    if pending is not None:
        await pending
    return time.process_time() - began


async def live(log: SharedLog) -> None:
    """The log has been read to its end."""
    deadline = time.monotonic() + 120
    while log.state is not State.LIVE:
        assert time.monotonic() < deadline, log.state
        await asyncio.sleep(0.001)


async def measure(records: int, redis: RedisServer) -> None:
    """Everything, printed."""
    alone, _ = server()
    bare = await feed(alone, updates(records)) / records
    services, log = server(redis.url)
    assert log is not None
    task = asyncio.create_task(log.run())
    await live(log)
    shared = await feed(services, updates(records)) / records
    print(f"CPU per report of {BLOCKS} blocks: {bare * 1e6:.0f} µs alone, {shared * 1e6:.0f} µs with the log", end="")
    print(f" (ratio {shared / bare:.2f})")

    store = await connect(parse(redis.url))
    trips, acknowledgements = [], []
    for report in updates(ROUND_TRIPS):
        began = time.perf_counter()
        await store.call(("PING",), within=5)
        trips.append(time.perf_counter() - began)
        began = time.perf_counter()
        pending = services.report(report)
        assert pending is not None
        await pending
        acknowledgements.append(time.perf_counter() - began)
    store.close()
    one, trip = statistics.median(acknowledgements), statistics.median(trips)
    print(f"one acknowledgement: {one * 1e6:.0f} µs, one round trip: {trip * 1e6:.0f} µs (ratio {one / trip:.1f})")
    task.cancel()

    _, late = server(redis.url)
    assert late is not None
    began = time.perf_counter()
    task = asyncio.create_task(late.run())
    await live(late)
    seconds = time.perf_counter() - began
    total = records + ROUND_TRIPS
    print(f"reading a log of {total} reports: {seconds:.2f} s, {total * BLOCKS / seconds / 1000:.0f} k blocks/s")
    task.cancel()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5000)
    records = parser.parse_args().records
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as redis:
        uvloop.run(measure(records, redis))


if __name__ == "__main__":
    main()
