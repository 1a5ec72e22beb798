"""LookupRoute over gRPC: what a call costs the server, beside an empty call to grpc.aio with the same message.

    python -m bench.rpc [--holds N...] [--rounds R] [--seconds S]

A client in Go calls server processes over loopback with 1 and with 16 calls in flight: a grpc.aio server whose handler
does nothing, and ours, which hold 100,000 and 500,000 prefixes of 8 replicas and look up chains of 1, 64, 512 and 2,048
blocks. The leading nine tenths of a chain are stored: the first tenth by all replicas, as a system prompt is, the rest
by the one that had the prompt before. Of the chains of one block, nine of ten are stored, by all. Replicas have
reported them as busy engines do: in pieces of 512 blocks, those of several prompts in one report. Printed are calls per
second, p50, p99 and the server's CPU per call, and the latter as a multiple of the empty call's with the same message.
At the end the same for an eviction and for a report of 64 blocks, at 10,000 and at 500,000 holds.

All servers of a comparison run at the same time and are called in turns, several times each; the figures are medians
over these rounds, those of ratios over the rounds' own ratios. What else the machine does then concerns all alike.

Needs Go, to build the client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from inferencecache.kube.ports import free_port
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

CHAINS: Final = (1, 64, 512, 2048)
CALLERS: Final = (1, 16)
REPLICAS: Final = tuple(f"replica-{number}" for number in range(8))
VARIANTS: Final = 20
"""Different messages of each kind, sent in turn."""
PIECE: Final = 512
"""Blocks of a prompt that an engine computes in one step, of 8,192 tokens."""
UPDATES: Final = 100
"""Reports of 64 blocks in one round: few, so that 10,000 holds stay about as many."""
GOALS: Final = {(1, 16): 0.4, (64, 16): 0.5, (512, 16): 0.8, (2048, 16): 2.0,
                (1, 1): 1.0, (64, 1): 1.1, (512, 1): 1.5, (2048, 1): 3.0}  # fmt: skip
_SCOPE: Final = {"tenant_id": "team-a", "model_id": "Qwen/Qwen3-8B", "hash_scheme": "vllm"}


class Figures(NamedTuple):
    """What a run of the client found, or the medians of several."""

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float


def medians(runs: Sequence[Figures]) -> Figures:
    """Each figure's median."""
    return Figures(*map(statistics.median, zip(*runs, strict=True)))


class Load:
    """The client, built once, and the folder its messages are written to."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._binary = folder / "rpcload"
        source = Path(__file__).parent / "rpcload"
        subprocess.run(["go", "build", "-o", str(self._binary), "."], cwd=source, check=True)

    def run(self, server: Server, method: str, messages: Sequence[bytes], callers: int) -> Figures:
        """Call a method of a server with messages in turn."""
        file = self._folder / "messages"
        file.write_bytes(b"".join(len(message).to_bytes(4, "big") + message for message in messages))
        arguments = {
            "target": server.target,
            "method": METHODS[method].path,
            "messages": file,
            "callers": callers,
            "warmup": f"{self._seconds / 4}s",
            "duration": f"{self._seconds}s",
            "pid": server.pid,
        }
        command = [str(self._binary), *(f"-{name}={value}" for name, value in arguments.items())]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        if found.pop("errors"):
            raise SystemExit(f"{method} failed under load")
        del found["calls"]
        return Figures(**found)


class Server(NamedTuple):
    """A server process."""

    target: str
    pid: int


@contextlib.contextmanager
def empty_server() -> Iterator[Server]:
    """grpc.aio on uvloop with a handler that does nothing."""
    port = free_port()
    with _process([sys.executable, "-m", "bench.rpc", "--serve-empty", str(port)]) as process:
        yield _ready(Server(f"127.0.0.1:{port}", process.pid))


@contextlib.contextmanager
def our_server(updates: Iterator[pb.CacheStateUpdate]) -> Iterator[Server]:
    """`inferencecache server`, without authentication, that was told `updates`."""
    port = free_port()
    command = [
        sys.executable, "-c", "from inferencecache.cli.main import main; main()", "server",
        "--insecure-disable-auth", "--log-level=error", f"--grpc-bind-address=127.0.0.1:{port}",
        "--http-bind-address=127.0.0.1:0", "--snapshot-bind-address=127.0.0.1:0",
    ]  # fmt: skip
    with _process(command) as process:
        server = _ready(Server(f"127.0.0.1:{port}", process.pid))
        fill(server, updates)
        yield server


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()


def _ready(server: Server) -> Server:
    host, _, port = server.target.partition(":")
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return server


async def _serve_empty(port: int) -> None:
    async def nothing(_request: bytes, _context: object) -> bytes:
        return b""

    server = grpc.aio.server()
    method = METHODS["LookupRoute"]
    service = method.path.split("/")[1]
    handlers = {method.name: grpc.unary_unary_rpc_method_handler(nothing)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


# -- what is stored and asked for --------------------------------------------------------------------------------------


class Corpus:
    """Chains to look up, and the reports that store most of them among as many others as are wanted."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self.chains = {length: [self._hashes(length) for _ in range(VARIANTS)] for length in CHAINS}

    def _hashes(self, number: int) -> list[bytes]:
        return [self._random.randbytes(8) for _ in range(number)]

    def lookups(self, length: int) -> list[bytes]:
        """Requests for all chains of a length."""
        return [
            pb.LookupRouteRequest(
                **_SCOPE, block_hashes=chain, block_token_counts=[16] * length, slo=pb.SLO(ttft_ms=500)
            ).SerializeToString()
            for chain in self.chains[length]
        ]

    def reports(self, holds: int) -> Iterator[pb.CacheStateUpdate]:
        """Updates that lead to this many holds, if the stored chains are not more."""
        stored = 0
        for place, replica in enumerate(REPLICAS):
            prompts = list(self._held_by(place))
            for start in range(0, max(CHAINS), PIECE):
                blocks = [block for prompt in prompts for block in prompt[start : start + PIECE]]
                stored += len(blocks)
                yield _update(replica, blocks)
        yield from self.filler(holds - stored)

    def filler(self, holds: int) -> Iterator[pb.CacheStateUpdate]:
        """Updates of this many holds that nobody looks up."""
        for start in range(0, holds, 1000):
            yield _update(self._random.choice(REPLICAS), self._hashes(min(1000, holds - start)))

    def _held_by(self, place: int) -> Iterator[list[bytes]]:
        """What the replica at a place has of each chain."""
        for length, chains in self.chains.items():
            for number, chain in enumerate(chains):
                if length == 1:
                    yield chain[: int(number % 10 != 0)]
                else:
                    yield chain[: length * 9 // 10 if place == number % len(REPLICAS) else length // 10]

    def small_updates(self) -> list[bytes]:
        """Reports of 64 blocks each, none of them stored."""
        return [_update(REPLICAS[0], self._hashes(64)).SerializeToString() for _ in range(VARIANTS)]

    def evictions(self) -> list[bytes]:
        """Events for blocks of which most are gone after the first round."""
        return [
            pb.CacheEvent(
                type=pb.CacheEvent.PREFIX_EVICTED,
                replica_id=REPLICAS[0],
                tenant_id=_SCOPE["tenant_id"],
                model_id=_SCOPE["model_id"],
                prefix_hash=block,
            ).SerializeToString()
            for block in self._hashes(VARIANTS)
        ]


def _update(replica: str, hashes: list[bytes]) -> pb.CacheStateUpdate:
    """One entry per block, as the sidecar reports them."""
    return pb.CacheStateUpdate(
        **_SCOPE,
        replica_id=replica,
        prefixes=[
            pb.PrefixEntry(prefix_hash=block, token_count=16 * (number + 1), tier=pb.CACHE_TIER_T1)
            for number, block in enumerate(hashes)
        ],
    )


def fill(server: Server, updates: Iterator[pb.CacheStateUpdate]) -> None:
    """Report over one stream."""
    method = METHODS["ReportCacheState"]
    with grpc.insecure_channel(server.target) as channel:
        report = channel.stream_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        if not report(updates, timeout=600).accepted:
            raise SystemExit("the reports were not accepted")


def memory_mib(server: Server) -> float:
    """Resident memory of the server."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--holds", type=int, nargs="+", default=[100_000, 500_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--serve-empty", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_empty:
        import uvloop

        uvloop.run(_serve_empty(options.serve_empty))
        return
    with tempfile.TemporaryDirectory() as folder:
        load = Load(Path(folder), options.seconds)
        _lookups(load, options.holds, options.rounds)
        _changes(load, max(options.holds), options.rounds)


def _lookups(load: Load, sizes: Sequence[int], rounds: int) -> None:
    corpus = Corpus()
    print(
        "| holds | chain | in flight | calls/s | p50 µs | p99 µs | CPU µs | empty: calls/s | p50 | CPU | ratio | goal |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    with empty_server() as empty, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(our_server(corpus.reports(holds))) for holds in sizes]
        for chain in CHAINS:
            for callers in CALLERS:
                messages = corpus.lookups(chain)
                turns = [
                    [load.run(server, "LookupRoute", messages, callers) for server in (empty, *servers)]
                    for _ in range(rounds)
                ]
                base = medians([turn[0] for turn in turns])
                for column, holds in enumerate(sizes, 1):
                    ours = medians([turn[column] for turn in turns])
                    ratio = statistics.median(turn[column].cpu_us / turn[0].cpu_us for turn in turns)
                    print(
                        f"| {holds:,} | {chain} | {callers} | {_columns(ours)} | {base.per_second:,.0f} | "
                        f"{base.p50_us:,.0f} | {base.cpu_us:.0f} | {ratio:.2f} | {GOALS[chain, callers]} |",
                        flush=True,
                    )
        for holds, server in zip(sizes, servers, strict=True):
            print(f"memory with {holds:,} holds: {memory_mib(server):.0f} MiB", file=sys.stderr)


def _changes(load: Load, most: int, rounds: int) -> None:
    sizes = (10_000, most)
    print("\n| CPU µs | " + " | ".join(f"{holds:,} holds" for holds in sizes) + " | ratio |\n|---|---:|---:|---:|")
    corpus = Corpus()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(our_server(Corpus().filler(holds))) for holds in sizes]
        evictions = [
            [load.run(server, "PublishEvent", corpus.evictions(), 16).cpu_us for server in servers]
            for _ in range(rounds)
        ]
        _ratio_row("an eviction, 16 in flight", evictions)
        updates = [[asyncio.run(_update_us(server, corpus)) for server in servers] for _ in range(4 * rounds)]
        _ratio_row("a report of 64 blocks, on one stream", updates)


async def _update_us(server: Server, corpus: Corpus) -> float:
    """CPU of a report of 64 blocks."""
    method = METHODS["ReportCacheState"]
    updates = [message for _ in range(UPDATES // VARIANTS) for message in corpus.small_updates()]
    async with grpc.aio.insecure_channel(server.target) as channel:
        call = channel.stream_unary(method.path, response_deserializer=method.response.FromString)
        before = _cpu(server.pid)
        await call(iter(updates))
        return (_cpu(server.pid) - before) / len(updates) * 1e6


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _columns(figures: Figures) -> str:
    return f"{figures.per_second:,.0f} | {figures.p50_us:,.0f} | {figures.p99_us:,.0f} | {figures.cpu_us:.0f}"


def _ratio_row(name: str, turns: Sequence[Sequence[float]]) -> None:
    few, many = (statistics.median(column) for column in zip(*turns, strict=True))
    print(
        f"| {name} | {few:.0f} | {many:.0f} | {statistics.median(turn[1] / turn[0] for turn in turns):.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
