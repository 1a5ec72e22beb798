"""LookupRoute over gRPC: what a call costs the server, beside an empty call to grpc.aio with the same message.

    python -m bench.rpc [--holds N...] [--seconds S]

A client in Go calls a server process over loopback with 1 and with 16 calls in flight. First a grpc.aio server whose
handler does nothing, then ours, which holds 100,000 and 500,000 prefixes of 8 replicas and looks up chains of 1, 64,
512 and 2,048 blocks. The leading nine tenths of a chain are stored: the first tenth by all replicas, as a system prompt
is, the rest by the one that had the prompt before. Of the chains of one block, nine of ten are stored, by all. Printed
are calls per second, p50, p99 and the server's CPU per call, and the latter as a multiple of the empty call's with the
same message. At the end the same for a report of 64 blocks and for an eviction, at 10,000 and at 500,000 holds.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

CHAINS: Final = (1, 64, 512, 2048)
CALLERS: Final = (1, 16)
REPLICAS: Final = tuple(f"replica-{number}" for number in range(8))
VARIANTS: Final = 20
"""Different messages of each kind, sent in turn."""
GOALS: Final = {(1, 16): 0.4, (64, 16): 0.5, (512, 16): 0.8, (2048, 16): 2.0,
                (1, 1): 1.0, (64, 1): 1.1, (512, 1): 1.5, (2048, 1): 3.0}  # fmt: skip
_SCOPE: Final = {"tenant_id": "team-a", "model_id": "Qwen/Qwen3-8B", "hash_scheme": "vllm"}


class Figures(NamedTuple):
    """What a run of the client found."""

    per_second: float
    p50_us: int
    p99_us: int
    cpu_us: float


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
    port = _free_port()
    with _process([sys.executable, "-m", "bench.rpc", "--serve-empty", str(port)]) as process:
        yield _ready(Server(f"127.0.0.1:{port}", process.pid))


@contextlib.contextmanager
def our_server() -> Iterator[Server]:
    """`inferencecache server`, without authentication."""
    port = _free_port()
    command = [
        sys.executable, "-c", "from inferencecache.cli.main import main; main()", "server",
        "--insecure-disable-auth", "--log-level=error", f"--grpc-bind-address=127.0.0.1:{port}",
        "--http-bind-address=127.0.0.1:0", "--snapshot-bind-address=127.0.0.1:0",
    ]  # fmt: skip
    with _process(command) as process:
        yield _ready(Server(f"127.0.0.1:{port}", process.pid))


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def _ready(server: Server) -> Server:
    host, _, port = server.target.partition(":")
    deadline = time.monotonic() + 30
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
        """Updates that lead to this many holds, stored chains included."""
        stored = 0
        for length, chains in self.chains.items():
            for number, chain in enumerate(chains):
                if length == 1:
                    known = shared = int(number % 10 != 0)
                else:
                    known, shared = length * 9 // 10, length // 10
                for place, replica in enumerate(REPLICAS):
                    size = known if place == number % len(REPLICAS) else shared
                    if size:
                        stored += size
                        yield _update(replica, chain[:size])
        if stored > holds:
            return
        while stored < holds:
            size = min(1000, holds - stored)
            stored += size
            yield _update(self._random.choice(REPLICAS), self._hashes(size))

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
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve-empty", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_empty:
        import uvloop

        uvloop.run(_serve_empty(options.serve_empty))
        return
    with tempfile.TemporaryDirectory() as folder:
        _run(Load(Path(folder), options.seconds), options.holds)


def _run(load: Load, sizes: Sequence[int]) -> None:
    corpus = Corpus()
    print("| server | holds | chain | in flight | calls/s | p50 µs | p99 µs | CPU µs/call | × empty | goal |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    base: dict[tuple[int, int], float] = {}
    with empty_server() as server:
        for chain in CHAINS:
            for callers in CALLERS:
                figures = load.run(server, "LookupRoute", corpus.lookups(chain), callers)
                base[chain, callers] = figures.cpu_us
                _row("grpc.aio, empty", "", str(chain), callers, figures)
    for holds in sizes:
        with our_server() as server:
            fill(server, corpus.reports(holds))
            for chain in CHAINS:
                for callers in CALLERS:
                    figures = load.run(server, "LookupRoute", corpus.lookups(chain), callers)
                    ratio = figures.cpu_us / base[chain, callers]
                    _row("ours", f"{holds:,}", str(chain), callers, figures, ratio, GOALS[chain, callers])
            print(f"memory with {holds:,} holds: {memory_mib(server):.0f} MiB", file=sys.stderr)
    print("\n| event | holds | in flight | calls/s | p50 µs | p99 µs | CPU µs/call |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for holds in (10_000, max(sizes)):
        with our_server() as server:
            fill(server, Corpus().reports(holds))
            figures = load.run(server, "PublishEvent", corpus.evictions(), 16)
            _small_row("eviction", holds, 16, figures)
            asyncio.run(_time_updates(server, corpus, holds))


async def _time_updates(server: Server, corpus: Corpus, holds: int) -> None:
    """Reports of 64 blocks on one stream, paced by their acknowledgement in a lookup."""
    method = METHODS["ReportCacheState"]
    number = 2000
    updates = [message for _ in range(number // VARIANTS) for message in corpus.small_updates()]
    async with grpc.aio.insecure_channel(server.target) as channel:
        call = channel.stream_unary(method.path, response_deserializer=method.response.FromString)
        before, began = _cpu(server.pid), time.perf_counter()
        await call(iter(updates))
        elapsed, used = time.perf_counter() - began, _cpu(server.pid) - before
    print(f"| report of 64 blocks | {holds:,} | stream | {number / elapsed:,.0f} | | | {used / number * 1e6:.0f} |")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _row(
    server: str, holds: str, chain: str, callers: int, figures: Figures, ratio: float = 1.0, goal: Any = ""
) -> None:
    print(
        f"| {server} | {holds} | {chain} | {callers} | {figures.per_second:,.0f} | {figures.p50_us:,} | "
        f"{figures.p99_us:,} | {figures.cpu_us:.0f} | {ratio:.2f} | {goal} |",
        flush=True,
    )


def _small_row(event: str, holds: int, callers: int, figures: Figures) -> None:
    print(
        f"| {event} | {holds:,} | {callers} | {figures.per_second:,.0f} | {figures.p50_us:,} | {figures.p99_us:,} | "
        f"{figures.cpu_us:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
