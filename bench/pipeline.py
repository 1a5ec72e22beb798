"""From an engine's socket to the server's index: what a block costs the sidecar, and how much memory it keeps.

    python -m bench.pipeline [--blocks 200000] [--alive 100000] [--churn 500000] [--outage 20] [--only CASE]

A publisher in this process sends batches of 32 events with a block of 16 tokens each; the sidecar and the server are
the real commands, as processes of their own, with the arguments of an injected sidecar. CPU seconds are the sidecar's,
user and system, from before the first batch until the server has acknowledged everything. Cases:

* stores: new blocks only, `--blocks` of them, as SGLang tells them, one an event, and as vLLM does, a run of them;
* stores and removals: each batch stores as many blocks as it removes, which costs a call per removed block;
* with an offload tier: the same, but removals are reported as moves to T2 (`--ignore-block-removed`).

Beside them is msgspec's untyped decode of the same bytes. Then there is the memory of the sidecar while `--churn`
blocks are stored and removed with `--alive` of them held; the figure to stay below is 80 MiB for `--churn 10000000`.
Last, the server is killed for `--outage` seconds while the engine goes on at a thousand blocks a second: its socket has
to take every message at once, none may be missing in the end, and the index has to have what is held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq
from msgspec import msgpack

COMMAND: Final = [sys.executable, "-c", "from inferencecache.cli.main import main; main()"]
BLOCK_SIZE: Final = 16
EVENTS: Final = 32
PROMPT: Final = 64
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AHEAD: Final = 16_000
"""Blocks that may be on their way, half of what the sidecar keeps for a server: more of them would be told twice, and
no engine stores blocks faster than a server takes them for long.
"""
_CASES: Final = ("stores", "runs", "removals", "offload", "memory", "outage")


class Engine:
    """Batches of a cache that is full when it holds `alive` blocks; removals then go with stores, oldest first."""

    def __init__(self, alive: int | None, run: int = 1) -> None:
        """`run` is how many blocks one event stores."""
        self._alive = alive
        self._run = run
        self._stored = 0
        self._removed = 0

    def batches(self, blocks: int) -> Iterator[bytes]:
        """Messages that store so many blocks."""
        for _ in range(0, blocks, EVENTS * self._run):
            events = [self._store() for _ in range(EVENTS)]
            if self._alive is not None and self._stored - self._removed > self._alive:
                gone = range(self._removed, self._stored - self._alive)
                self._removed = gone.stop
                events.append({"type": "BlockRemoved", "block_hashes": [name(each) for each in gone], "medium": "GPU"})
            yield msgpack.encode([time.time(), events, 0])

    def _store(self) -> dict[str, Any]:
        first, self._stored = self._stored, self._stored + self._run
        return {
            "type": "BlockStored",
            "block_hashes": [name(number) for number in range(first, self._stored)],
            "parent_block_hash": name(first - 1) if first % PROMPT else None,
            "token_ids": [(first * 7919 + index * 104_729) % 150_000 for index in range(self._run * BLOCK_SIZE)],
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
        }


def name(number: int) -> int:
    """An engine's name of a block: 64 bits that look like nothing."""
    return (number + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int) -> float:
    """What a process keeps in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Sidecar:
    """The sidecar's process and the socket it listens to."""

    pid: int
    health: str
    publisher: zmq.Socket[bytes]
    server: Server
    sequence: int = 0

    def state(self) -> dict[str, Any]:
        """What it says of itself."""
        with urllib.request.urlopen(self.health, timeout=60) as answer:
            state: dict[str, Any] = json.load(answer)
            return state

    def count(self, what: str) -> int:
        """A count of its own metrics, of all labels together."""
        with urllib.request.urlopen(self.health.replace("healthz", "metrics"), timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        prefix = f"inferencecache_subscriber_{what}_total{{"
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(prefix))

    def publish(self, batch: bytes) -> None:
        """One message, which the socket takes at once or not at all."""
        self.publisher.send_multipart([b"kv-events", struct.pack(">Q", self.sequence), batch], zmq.NOBLOCK)
        self.sequence += 1

    async def follow(self, batches: Iterable[bytes], blocks_per_batch: int) -> None:
        """Publish, and wait until the server knows everything."""
        ahead = self.ahead(blocks_per_batch)
        for batch in batches:
            self.publish(batch)
            ahead += blocks_per_batch
            while ahead > _AHEAD:  # as seldom as can be: a look costs the sidecar a millisecond, as a hundred blocks do
                await asyncio.sleep(_AHEAD / 50_000)
                ahead = self.ahead(blocks_per_batch)
        await self.told()

    async def told(self) -> None:
        """Wait until the server knows everything."""
        await until(lambda: self.heard() == self.sequence and self.in_step())

    def ahead(self, blocks_per_batch: int) -> int:
        """Blocks published that the server does not know."""
        state = self.state()
        return (self.sequence - int(state["engine"][0]["messages"])) * blocks_per_batch + sum(
            int(server["pending"]) for server in state["servers"]
        )

    def in_step(self) -> bool:
        """Whether the server has acknowledged everything."""
        return all(server["in_step"] for server in self.state()["servers"])

    def heard(self) -> int:
        """Batches that it has taken."""
        return int(self.state()["engine"][0]["messages"])


@dataclass
class Server:
    """A server at an address that it keeps in each of its lives."""

    grpc: int
    admin: int
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin a life."""
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "server",
            "--insecure-disable-auth",
            f"--grpc-bind-address=127.0.0.1:{self.grpc}",
            "--http-bind-address=127.0.0.1:0",
            f"--snapshot-bind-address=127.0.0.1:{self.admin}",
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def die(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            await self.process.wait()

    def holds(self) -> int:
        """What its index says of the replica."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/snapshot", timeout=60) as answer:
            return sum(replica["prefixCount"] for replica in json.load(answer)["replicas"] or ())


@asynccontextmanager
async def process(*args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A subcommand."""
    started = await asyncio.create_subprocess_exec(*COMMAND, *args, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.terminate()
        await started.wait()


@asynccontextmanager
async def sidecar(*args: str) -> AsyncIterator[Sidecar]:
    """A server, and a sidecar that has told it that it holds nothing."""
    server, health = Server(free_port(), free_port()), free_port()
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0
        publisher.sndhwm = 100_000  # the engines' own default
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        told = (
            f"--engine-endpoint=tcp://127.0.0.1:{port}",
            f"--server=127.0.0.1:{server.grpc}",
            "--replica-id=r",
            "--tenant-id=t",
            "--model-id=m",
            "--hash-scheme=vllm",
            f"--health-bind-address=127.0.0.1:{health}",
        )
        try:
            await server.start()
            async with process("kvevent-subscriber", *told, *args) as started:
                it = Sidecar(started.pid, f"http://127.0.0.1:{health}/healthz", publisher, server)
                await until(lambda: _ready(it))
                yield it
        finally:
            await server.die()


async def until(done: Callable[[], bool]) -> None:
    """Look again and again, but seldom."""
    while not done():  # noqa: ASYNC110 - what is waited for is another process
        await asyncio.sleep(1.0)


def _ready(it: Sidecar) -> bool:
    try:
        return bool(it.state()["engine"][0]["connected"]) and it.in_step() and it.publisher.poll(0) != 0
    except OSError:
        return False


async def measured(title: str, *args: str, alive: int | None, warm: int, blocks: int, run: int = 1) -> None:
    """Print what a block costs, after `warm` others."""
    engine = Engine(alive, run)
    async with sidecar(*args) as it:
        await it.follow(engine.batches(warm), EVENTS * run)
        prepared = list(engine.batches(blocks))  # to make them takes longer than to follow them
        before, begun = cpu_seconds(it.pid), time.monotonic()
        await it.follow(prepared, EVENTS * run)
        spent, elapsed = cpu_seconds(it.pid) - before, time.monotonic() - begun
        print(
            f"{title:34} {blocks / spent:10,.0f} blocks per CPU second   {spent / blocks * 1e6:6.2f} µs each"
            f"   {blocks / elapsed:10,.0f} per second   {resident_mib(it.pid):5.1f} MiB"
            f"   {it.count('overflows')} overflows",
            flush=True,
        )


async def kept(alive: int, churn: int, *args: str, run: int = 1) -> None:
    """Print the memory in the course of a long life."""
    engine = Engine(alive, run)
    async with sidecar(*args) as it:
        print(f"memory of the sidecar, {alive:,} blocks alive {' '.join(args)}", flush=True)
        print(f"{0:14,} blocks {resident_mib(it.pid):10.1f} MiB", flush=True)
        for done in range(1, 11):
            await it.follow(engine.batches(churn // 10), EVENTS * run)
            print(f"{churn // 10 * done:14,} blocks {resident_mib(it.pid):10.1f} MiB", flush=True)


async def outage(alive: int, seconds: float, blocks_per_second: int = 1_000) -> None:
    """Print what becomes of the sidecar, the engine's socket and the index when the server is away."""
    engine = Engine(alive)
    async with sidecar() as it:
        await it.follow(engine.batches(alive), EVENTS)
        before = resident_mib(it.pid)
        await it.server.die()
        longest, most, begun, sent = 0.0, 0.0, time.monotonic(), 0
        while (elapsed := time.monotonic() - begun) < seconds:
            for batch in engine.batches(max(int(elapsed * blocks_per_second) - sent, 0)):
                at = time.perf_counter()
                it.publish(batch)  # raises if the socket cannot take it
                longest, sent = max(longest, time.perf_counter() - at), sent + EVENTS
            most = max(most, resident_mib(it.pid))
            await asyncio.sleep(0.05)
        await it.server.start()
        back = time.monotonic()
        await it.told()
        missing = it.count("gaps")
        print(
            f"server away for {seconds:.0f} s, {sent:,} blocks stored and removed meanwhile: the longest send took "
            f"{longest * 1e3:.1f} ms, {missing} gaps; {time.monotonic() - back:.1f} s after its start the server "
            f"knew {it.server.holds():,} of {alive:,} blocks; memory {before:.1f} MiB before, {most:.1f} MiB at most",
            flush=True,
        )


def raw_decode(batches: list[bytes]) -> float:
    """Events per CPU second of msgspec alone, the best of several rounds."""
    decode = msgpack.Decoder().decode
    rates = []
    for _ in range(5):
        begun = time.process_time()
        for batch in batches:
            decode(batch)
        rates.append(len(batches) * EVENTS / (time.process_time() - begun))
    return max(rates)


async def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--alive", type=int, default=100_000)
    parser.add_argument("--churn", type=int, default=500_000)
    parser.add_argument("--outage", type=float, default=20.0)
    parser.add_argument("--only", choices=_CASES)
    options = parser.parse_args()
    alive, blocks = options.alive, options.blocks
    with_tier = "--ignore-block-removed=true"
    cases: dict[str, Callable[[], Awaitable[None]]] = {
        "stores": lambda: measured("stores", alive=None, warm=EVENTS, blocks=blocks),
        "runs": lambda: measured("stores, 32 blocks an event", alive=None, warm=EVENTS, blocks=blocks, run=32),
        "removals": lambda: measured("stores and removals", alive=alive, warm=alive, blocks=blocks),
        "offload": lambda: measured("with an offload tier", with_tier, alive=alive, warm=alive, blocks=blocks),
        "memory": lambda: kept(alive, options.churn),
        "outage": lambda: outage(alive, options.outage),
    }
    for case in [options.only] if options.only else _CASES:
        rate = raw_decode(list(Engine(None).batches(32_000)))
        print(f"{'msgspec, untyped, decode only':34} {rate:10,.0f} events per CPU second", flush=True)
        await cases[case]()


if __name__ == "__main__":
    asyncio.run(main())
