"""The acceptance list of spec 08 §13, in both encodings: processes on real sockets, and lookups of a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferencecache.fakeengine.encoding import Encoding
from inferencecache.fakeengine.run import running as engine_running
from inferencecache.wire import fingerprint
from inferencecache.wire.events import BlockStored
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.kube import waiting as kube_waiting
from tests.integration.server.running import MODEL, TENANT, Running, Stub, calling, running
from tests.integration.subscriber.world import BLOCK_SIZE as SMALL_BLOCK
from tests.integration.subscriber.world import engine_settings, eventually, known_to, sidecar, world

COMMAND = [sys.executable, "-c", "from inferencecache.cli.main import main; main()"]
BLOCK_SIZE = 128
IDENTITY = {"model_id": MODEL, "tenant_id": TENANT}


@asynccontextmanager
async def process(name: str, log: Path, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A subcommand as a process of its own; its output and its log go to a file."""
    with log.open("ab") as out:
        started = await asyncio.create_subprocess_exec(*COMMAND, name, *args, stdout=out, stderr=out)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.terminate()
        async with asyncio.timeout(200):
            assert await started.wait() == 0, f"see {log}"


async def answered(stub: Stub, hashes: list[bytes], reason: str) -> pb.LookupRouteResponse:
    """The answer to the lookup of a chain, once its reason is this one."""
    deadline = asyncio.get_running_loop().time() + 200
    while True:
        reply = await stub.lookup(hashes, block_token_counts=[BLOCK_SIZE] * len(hashes))
        if reply.reason_code == reason:
            return reply
        assert asyncio.get_running_loop().time() < deadline, reply
        await asyncio.sleep(0.05)


@asynccontextmanager
async def published(
    server: Running, tmp_path: Path, port: int, engine_args: tuple[str, ...], *args: str
) -> AsyncIterator[Path]:
    """A fake engine and a sidecar with the injected arguments, as processes; the sidecar's log."""
    endpoint = f"tcp://127.0.0.1:{port}"
    log = tmp_path / "subscriber.log"
    sidecar_args = (
        f"--engine-endpoint={endpoint}",
        f"--server={server.target()}",
        "--replica-id=engine-0",
        f"--tenant-id={TENANT}",
        f"--model-id={MODEL}",
        "--hash-scheme=vllm",
        "--window=10ms",
        *args,
    )
    async with AsyncExitStack() as stack:
        engine_log = tmp_path / "engine.log"
        await stack.enter_async_context(
            process("kvevent-fake-engine", engine_log, f"--bind={endpoint}", "--interval=25ms", *engine_args)
        )
        await stack.enter_async_context(process("kvevent-subscriber", log, *sidecar_args))
        yield log


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_two_chained_blocks_are_found_by_content_and_by_nothing_else(
    encoding: Encoding, tmp_path: Path, free_port: int
) -> None:
    engine = ("--num-blocks=2", "--events=2", f"--encoding={encoding}")
    async with running() as server, calling(server) as stub, published(server, tmp_path, free_port, engine):
        hashes, _ = fingerprint.chain(range(2 * BLOCK_SIZE), BLOCK_SIZE)
        both = await answered(stub, hashes, "PREFIX_MATCH")
        assert [(score.replica_id, score.matched_tokens) for score in both.replica_scores] == [("engine-0", 256)]
        one = await answered(stub, hashes[:1], "PREFIX_MATCH")
        assert one.replica_scores[0].matched_tokens == 128

        novel, _ = fingerprint.chain(range(7, 7 + 2 * BLOCK_SIZE), BLOCK_SIZE)
        by_engine = [(0xE000 + index).to_bytes(8, "big") for index in range(2)]
        for chain in (novel, by_engine):
            hint = await answered(stub, chain, "AFFINITY_HINT")
            assert [score.matched_tokens for score in hint.replica_scores] == [0]
        expected = (tmp_path / "engine.log").read_text()
        assert f"EXPECT prefix_hash[1]={hashes[1].hex()} token_count=256" in expected


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_events_without_tokens_and_broken_ones_are_told_and_index_nothing(
    encoding: Encoding, tmp_path: Path, free_port: int
) -> None:
    engine = ("--omit-token-ids", f"--encoding={encoding}")
    async with running() as server, calling(server) as stub, published(server, tmp_path, free_port, engine) as log:
        await eventually(lambda: "without token_ids" in log.read_text(), within=200)
        state = await stub.method("GetCacheState")(pb.GetCacheStateRequest(**IDENTITY), timeout=60)
        assert state.summary.total_prefixes == 0
        hashes, _ = fingerprint.chain(range(BLOCK_SIZE), BLOCK_SIZE)
        nothing = await answered(stub, hashes, "NO_HINT")
        assert not nothing.replica_scores
        begun = json.loads(log.read_text().splitlines()[0])
        assert (begun["msg"], begun["cache_tier"], begun["max_concurrency_ceiling"]) == ("starting", "auto", 256)
        warned = [json.loads(line) for line in log.read_text().splitlines() if "token_ids" in line]
        assert warned[0]["level"] == "WARN"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", warned[0]["time"])


async def test_a_truncated_batch_is_told_and_the_next_good_one_is_indexed() -> None:
    async with running() as server, world(server, engine_settings()) as it:
        rank = it.engine.ranks[0]
        await rank.publish_bytes(b"\x92\xcb")
        await rank.publish_bytes(b"")
        await rank.publish([BlockStored([1], None, None, 4)], ts=0.0)
        await it.engine.complete([1] * 8)
        assert await it.agreed()
        dropped = it.sidecar.subscriber.pipeline.dropped
        assert dropped == {"undecodable_batch": 2, "unknown_block": 1}


async def test_an_offload_tier_keeps_what_leaves_the_gpu() -> None:
    """With --ignore-block-removed: T1, then T2 when it is removed, T1 when it is stored again; never an eviction."""
    async with running() as server, world(server, engine_settings(cache_blocks=2), offloads=True) as it:
        first, second = [1] * 8, [2] * 8
        await it.engine.complete(first)
        await has_tiers(server, first, [1, 1])
        await it.engine.complete(second)
        await has_tiers(server, first, [2, 2])
        await has_tiers(server, second, [1, 1])
        await it.engine.complete(first)
        await has_tiers(server, first, [1, 1])
        await has_tiers(server, second, [2, 2])


async def has_tiers(server: Running, tokens: list[int], expected: list[int]) -> None:
    """Wait until a prompt's blocks are in these tiers."""
    wanted, _ = fingerprint.chain(tokens, SMALL_BLOCK)

    async def look() -> list[int]:
        known = {hold.prefix_hash: hold.tier for hold in await known_to(server.url("/dump"))}
        return [known.get(each, 0) for each in wanted]

    await kube_waiting.eventually(look, lambda seen: seen == expected)


async def test_a_server_by_other_hands_is_told_what_the_contract_says() -> None:
    """It names no life of its own, and does not know the health service."""
    told: list[Any] = []

    async def report(requests: AsyncIterator[bytes], _context: Any) -> bytes:
        told.extend([pb.CacheStateUpdate.FromString(request) async for request in requests])
        return pb.Ack(accepted=True).SerializeToString()

    async def publish(request: bytes, _context: Any) -> bytes:
        told.append(pb.CacheEvent.FromString(request))
        return pb.Ack(accepted=True).SerializeToString()

    handlers = {
        METHODS["ReportCacheState"].path: grpc.stream_unary_rpc_method_handler(report),
        METHODS["PublishEvent"].path: grpc.unary_unary_rpc_method_handler(publish),
    }
    async with (
        foreign(handlers) as target,
        engine_running(engine_settings(cache_blocks=2)) as engine,
        sidecar(engine, target) as it,
    ):
        await it.connected()
        await eventually(lambda: told)
        before = time.time()
        await engine.complete([1] * 8)
        await eventually(lambda: len(told) == 2)
        await engine.complete([2] * 8, adapter="sql")
        await eventually(lambda: len(told) == 5)
    cleared, update, later, *evictions = told
    assert cleared == pb.CacheEvent(type="ALL_CLEARED", replica_id="engine-0", **IDENTITY)
    assert (update.replica_id, update.hash_scheme, update.adapter_id) == ("engine-0", "vllm", "")
    assert [(entry.token_count, entry.tier, entry.adapter_id) for entry in update.prefixes] == [(4, 1, ""), (8, 1, "")]
    assert not update.HasField("stats")
    assert before <= update.timestamp_us / 1e6 <= time.time()
    assert {entry.adapter_id for entry in later.prefixes} == {"sql"}
    assert [event.type for event in evictions] == [pb.CacheEvent.PREFIX_EVICTED] * 2
    assert {event.prefix_hash for event in evictions} == {entry.prefix_hash for entry in update.prefixes}
    assert all(event.timestamp_us >= update.timestamp_us for event in evictions)


@asynccontextmanager
async def foreign(handlers: dict[str, grpc.RpcMethodHandler]) -> AsyncIterator[str]:
    """A server of grpcio's; its address."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return handlers.get(details.method)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
