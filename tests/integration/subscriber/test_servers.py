"""Whatever servers do, each of them has the engine's state in the end (decision D5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from inferencecache.fakeengine.run import running as engine_running
from inferencecache.server.sockets import BindAddress
from tests.integration.server.running import running
from tests.integration.subscriber.slow import Slow
from tests.integration.subscriber.test_engines import churn
from tests.integration.subscriber.world import (
    Hold,
    Sidecar,
    agreed,
    engine_settings,
    eventually,
    held_by,
    known_to,
    sidecar,
    world,
)

COMMAND = [sys.executable, "-c", "from inferencecache.cli.main import main; main()", "server"]
OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "1"))
"""How long servers are away; a minute is the figure to reach, and a second shows the same."""


class Process:
    """`inferencecache server` as a process that can die, at the same address in each life."""

    def __init__(self, grpc: int, admin: int, log: Path) -> None:
        self.target = f"127.0.0.1:{grpc}"
        self.dump_url = f"http://127.0.0.1:{admin}/dump"
        self._ports = (grpc, admin)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        grpc, admin = self._ports
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "--insecure-disable-auth",
                f"--grpc-bind-address=127.0.0.1:{grpc}",
                "--http-bind-address=127.0.0.1:0",
                f"--snapshot-bind-address=127.0.0.1:{admin}",
                stderr=log,
            )
        deadline = asyncio.get_running_loop().time() + 200
        while not await self._answers():
            assert self._process.returncode is None, self._log.read_text()
            assert asyncio.get_running_loop().time() < deadline, self._log.read_text()
            await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            await known_to(self.dump_url)
        except aiohttp.ClientConnectionError:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def die(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@asynccontextmanager
async def server_process(ports: tuple[int, int], tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(*ports, tmp_path / "server.log")
    try:
        await process.start()
        yield process
    finally:
        await process.die()


async def eventually_known(dump_url: str, expected: set[Hold]) -> None:
    """Wait until the index says exactly this of the replica."""
    deadline = asyncio.get_running_loop().time() + 60
    while (known := await known_to(dump_url)) != expected:
        lacks, more = len(expected - known), len(known - expected)
        assert asyncio.get_running_loop().time() < deadline, f"the index lacks {lacks} and has {more} too many"
        await asyncio.sleep(0.02)


async def in_step(it: Sidecar) -> None:
    """Wait until every server has acknowledged everything."""
    deliveries = it.subscriber.servers.deliveries
    await eventually(lambda: bool(deliveries) and all(delivery.in_step for delivery in deliveries.values()))


async def test_a_server_that_dies_and_comes_back_empty_is_told_everything(
    two_ports: tuple[int, int], tmp_path: Path
) -> None:
    async with (
        server_process(two_ports, tmp_path) as server,
        engine_running(engine_settings(cache_blocks=200)) as engine,
        sidecar(engine, server.target) as it,
    ):
        await it.connected()
        await churn(engine, 50)
        await agreed(engine, server.dump_url)
        await server.die()
        await churn(engine, 50, seed=1)
        await asyncio.sleep(OUTAGE_SECONDS)
        assert engine.ranks[0].publisher.writable
        await server.start()
        assert await agreed(engine, server.dump_url)
        # An engine that says nothing meanwhile is told of, too.
        await server.die()
        await server.start()
        assert await agreed(engine, server.dump_url)


async def test_a_server_that_stood_still_gets_what_it_missed(two_ports: tuple[int, int], tmp_path: Path) -> None:
    async with (
        server_process(two_ports, tmp_path) as server,
        engine_running(engine_settings(cache_blocks=200)) as engine,
        sidecar(engine, server.target) as it,
    ):
        await it.connected()
        await churn(engine, 50)
        await agreed(engine, server.dump_url)
        server.send(signal.SIGSTOP)
        try:
            await churn(engine, 100, seed=1)
            await asyncio.sleep(OUTAGE_SECONDS)
            await eventually(lambda: it.subscriber.sources[0].counts.messages == engine.ranks[0].publisher.sequence)
        finally:
            server.send(signal.SIGCONT)
        assert await agreed(engine, server.dump_url)


@pytest.mark.parametrize("prompts", [100])
async def test_a_slow_server_gets_everything_in_the_end(prompts: int) -> None:
    async with (
        running() as server,
        Slow(server.target(), seconds=0.1) as slow,
        engine_running(engine_settings(cache_blocks=100)) as engine,
        sidecar(engine, slow.target) as it,
    ):
        await it.connected()
        await churn(engine, prompts)
        await in_step(it)
        assert await agreed(engine, server.url("/dump"))


async def test_a_connection_that_breaks_again_and_again_loses_nothing() -> None:
    async with (
        running() as server,
        Slow(server.target(), seconds=0.0) as slow,
        engine_running(engine_settings(cache_blocks=100)) as engine,
        sidecar(engine, slow.target) as it,
    ):
        await it.connected()
        for seed in range(10):
            await churn(engine, 10, seed)
            slow.cut()
        await in_step(it)
        assert await agreed(engine, server.url("/dump"))
        (delivery,) = it.subscriber.servers.deliveries.values()
        assert delivery.counts.resyncs == 1, "the server lived on, so what it knew was kept"


async def test_more_than_there_is_room_for_is_repaired_by_a_resync(free_port: int) -> None:
    async with (
        engine_running(engine_settings()) as engine,
        sidecar(engine, f"127.0.0.1:{free_port}", capacity=50) as it,
    ):
        await it.connected()
        await churn(engine, 100)
        (delivery,) = await eventually(lambda: list(it.subscriber.servers.deliveries.values()))
        assert await eventually(lambda: delivery.counts.overflows) == 1
        async with running(grpc_bind_address=BindAddress("127.0.0.1", free_port)) as server:
            assert await agreed(engine, server.url("/dump"))


async def test_a_resync_restores_what_left_the_gpu_for_an_offload_tier(free_port: int) -> None:
    """The index against an engine that never evicts: what the smaller one lacks of its blocks is in T2."""
    address = BindAddress("127.0.0.1", free_port)
    async with (
        engine_running(engine_settings()) as boundless,
        engine_running(engine_settings(cache_blocks=30)) as engine,
        sidecar(engine, f"127.0.0.1:{free_port}", capacity=50, offloads=True) as it,
    ):
        await it.connected()
        await churn(boundless, 100)
        await churn(engine, 100)
        held = held_by(engine)
        moved = {hold._replace(tier=2) for hold in held_by(boundless) if hold not in held}
        assert len(moved) > 100
        (delivery,) = await eventually(lambda: list(it.subscriber.servers.deliveries.values()))
        assert await eventually(lambda: delivery.counts.overflows)
        async with running(grpc_bind_address=address) as server:
            await eventually_known(server.url("/dump"), held | moved)


async def test_each_of_several_servers_is_told_everything() -> None:
    async with (
        running() as one,
        running() as other,
        engine_running(engine_settings(cache_blocks=50)) as engine,
        sidecar(engine, one.target(), other.target()) as it,
    ):
        await it.connected()
        await churn(engine, 100)
        for server in (one, other):
            assert await agreed(engine, server.url("/dump"))


async def test_a_server_that_is_down_does_not_keep_the_other_one_waiting(free_port: int) -> None:
    async with (
        running() as server,
        engine_running(engine_settings()) as engine,
        sidecar(engine, f"127.0.0.1:{free_port}", server.target()) as it,
    ):
        await it.connected()
        await churn(engine, 20)
        assert await agreed(engine, server.url("/dump"))


async def test_what_is_pending_is_told_before_the_end() -> None:
    async with running() as server, world(server, window=3600.0) as it:
        await in_step(it.sidecar)
        await churn(it.engine, 20)
        await eventually(
            lambda: it.sidecar.subscriber.sources[0].counts.messages == it.engine.ranks[0].publisher.sequence
        )
        assert await known_to(server.url("/dump")) == set()
        await it.sidecar.end()
        assert await it.agreed()


async def test_the_end_comes_in_time_although_nobody_can_be_told(free_port: int) -> None:
    async with engine_running(engine_settings()) as engine, sidecar(engine, f"127.0.0.1:{free_port}") as it:
        await it.connected()
        await churn(engine, 20)
        async with asyncio.timeout(60):
            await it.end()


@pytest.mark.parametrize("replay", ["", "tcp://127.0.0.1:*"])
async def test_a_sidecar_that_was_killed_leaves_nothing_that_the_next_one_does_not_repair(replay: str) -> None:
    async with running() as server, engine_running(engine_settings(replay=replay, cache_blocks=30)) as engine:
        async with sidecar(engine, server.target()) as first:
            await first.connected()
            await churn(engine, 30)
            await agreed(engine, server.url("/dump"))
            await first.kill()
        await churn(engine, 30, seed=1)
        async with sidecar(engine, server.target()) as second:
            await second.connected()
            if replay:
                assert await agreed(engine, server.url("/dump"))
            else:
                await in_step(second)
                assert await known_to(server.url("/dump")) <= held_by(engine)
