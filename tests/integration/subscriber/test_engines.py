"""After whatever an engine does, the index says what the engine holds, hash by hash (decision D11)."""

from __future__ import annotations

import asyncio
import random

import pytest

from inferencecache.fakeengine.encoding import Encoding
from inferencecache.fakeengine.engine import Engine
from inferencecache.fakeengine.publisher import Faults
from inferencecache.fakeengine.run import running as engine_running
from tests.integration.server.running import Running, running
from tests.integration.subscriber.world import (
    agreed,
    engine_settings,
    eventually,
    known_to,
    sidecar,
    world,
)

ENCODINGS = list(Encoding)


async def churn(engine: Engine, prompts: int, seed: int = 0) -> None:
    """Prompts that share beginnings, in an order that is random and always the same."""
    chance = random.Random(seed)
    for number in range(prompts):
        shared = [chance.randrange(3)] * chance.randrange(0, 24)
        await engine.complete(shared + [chance.randrange(1000) for _ in range(chance.randrange(0, 40))])
        if number % 16 == 0:
            await asyncio.sleep(0)
    for rank in engine.ranks:
        while not rank.publisher.last_arrived:  # nobody can know of a gap that nothing follows
            await rank.compute([chance.randrange(1000) for _ in range(8)])


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_stores_and_evictions(encoding: Encoding) -> None:
    settings = engine_settings(encoding=encoding, cache_blocks=40)
    async with running() as server, world(server, settings) as it:
        await churn(it.engine, 200)
        assert len(await it.agreed()) == 40


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_cleared_cache(encoding: Encoding) -> None:
    async with running() as server, world(server, engine_settings(encoding=encoding)) as it:
        await churn(it.engine, 20)
        await it.agreed()
        await it.engine.ranks[0].clear()
        assert await it.agreed() == set()
        await churn(it.engine, 5)
        assert await it.agreed()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("replay", ["", "tcp://127.0.0.1:*"])
async def test_a_restarted_engine(encoding: Encoding, replay: str) -> None:
    async with running() as server, world(server, engine_settings(encoding=encoding, replay=replay)) as it:
        await churn(it.engine, 20)
        await it.agreed()
        await it.engine.ranks[0].restart()
        await eventually(lambda: it.sidecar.subscriber.sources[0].counts.losses)
        assert await it.agreed() == set()
        await it.sidecar.connected()
        await churn(it.engine, 20, seed=1)
        assert await it.agreed()


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_missing_messages_are_replayed(encoding: Encoding) -> None:
    settings = engine_settings(encoding=encoding, replay="tcp://127.0.0.1:*", cache_blocks=60, faults=Faults(drop=5))
    async with running() as server, world(server, settings) as it:
        await churn(it.engine, 201)
        assert await it.agreed()
        counts = it.sidecar.subscriber.sources[0].counts
        assert counts.replayed > 0
        assert counts.holes == 0


@pytest.mark.parametrize("replay_topic", [False, True])
async def test_replies_of_two_and_of_three_frames(replay_topic: bool) -> None:
    settings = engine_settings(replay="tcp://127.0.0.1:*", replay_topic=replay_topic)
    async with running() as server, engine_running(settings) as engine:
        await churn(engine, 50)
        async with sidecar(engine, server.target()):
            assert await agreed(engine, server.url("/dump"))


async def test_without_replay_a_gap_leaves_nothing_that_may_be_wrong() -> None:
    async with running() as server, world(server, engine_settings(faults=Faults(drop=5))) as it:
        for number in range(4):
            await it.engine.complete([number] * 8)
        assert len(await it.agreed()) == 8
        await it.engine.complete([4] * 8)
        await it.engine.complete([9] * 8)
        # Of the first four prompts any may have been evicted in the fifth batch, which was lost.
        assert await _eventually_known(server, _of([9] * 8))


async def test_a_number_that_is_used_up_is_repaired_once() -> None:
    settings = engine_settings(replay="tcp://127.0.0.1:*", faults=Faults(lose=5))
    async with running() as server, world(server, settings) as it:
        for number in range(6):
            await it.engine.complete([number] * 8)
        assert await _eventually_known(server, _of([5] * 8))
        assert it.sidecar.subscriber.sources[0].counts.holes == 1


async def test_a_late_joiner_asks_for_everything() -> None:
    settings = engine_settings(replay="tcp://127.0.0.1:*", cache_blocks=50)
    async with running() as server, engine_running(settings) as engine:
        await churn(engine, 300)
        async with sidecar(engine, server.target()):
            assert await agreed(engine, server.url("/dump"))


async def test_a_late_joiner_without_replay_says_nothing_of_what_continues_the_unknown() -> None:
    async with running() as server, engine_running(engine_settings()) as engine:
        await engine.complete([1] * 8)
        async with sidecar(engine, server.target()) as late:
            await late.connected()
            await engine.complete([1] * 16)
            await engine.complete([2] * 8)
            assert await _eventually_known(server, _of([2] * 8))
            assert late.subscriber.pipeline.dropped == {"unknown_parent": 1}


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_several_ranks(encoding: Encoding, port_pairs: tuple[int, int]) -> None:
    events, replays = port_pairs
    settings = engine_settings(
        encoding=encoding,
        bind=f"tcp://127.0.0.1:{events}",
        replay=f"tcp://127.0.0.1:{replays}",
        ranks=2,
        cache_blocks=30,
        faults=Faults(drop=7),
    )
    async with running() as server, world(server, settings, data_parallel_size=2) as it:
        await churn(it.engine, 200)
        assert await it.agreed()
        await it.engine.ranks[1].restart()
        await eventually(lambda: it.sidecar.subscriber.sources[1].counts.losses)
        assert await it.agreed()  # what rank 0 has is still known, and of rank 1 nothing
        await it.sidecar.connected()
        await churn(it.engine, 50, seed=2)
        assert await it.agreed()


async def test_an_engine_that_starts_after_the_sidecar(free_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    async with running() as server, engine_running(engine_settings(bind=endpoint)) as engine:
        publisher = engine.ranks[0].publisher
        publisher.close()
        async with sidecar(engine, server.target(), engine_endpoint=endpoint) as early:
            await eventually(lambda: early.subscriber.servers.deliveries)
            await publisher.open()
            await early.connected()
            await churn(engine, 20)
            assert await agreed(engine, server.url("/dump"))


async def test_the_empty_topic_is_heard_and_another_one_is_told() -> None:
    async with running() as server:
        async with world(server, engine_settings(topic="")) as it:
            await it.engine.complete([1] * 8)
            assert await it.agreed()
        async with world(server, engine_settings(topic="other")) as it:
            await it.engine.complete([1] * 8)
            source = it.sidecar.subscriber.sources[0]
            assert await eventually(lambda: source.foreign_topic) == "other"
            assert source.last_message is None


async def test_adapters_have_partitions_of_their_own() -> None:
    async with running() as server, world(server) as it:
        await it.engine.complete([1] * 8)
        await it.engine.complete([1] * 8, adapter="sql")
        known = await it.agreed()
        assert {hold.adapter for hold in known} == {"", "sql"}
        assert len({hold.prefix_hash for hold in known}) == 2


async def _settled(server: Running) -> set[object]:
    """What the index says, once it says the same for a while."""
    known: set[object] = set()
    same = 0
    while same < 20:
        now = await known_to(server.url("/dump"))
        same = same + 1 if now == known else 0
        known = set(now)
        await asyncio.sleep(0.01)
    return known


async def _eventually_known(server: Running, expected: set[object], within: float = 60.0) -> bool:
    deadline = asyncio.get_running_loop().time() + within
    while (known := await known_to(server.url("/dump"))) != expected:
        assert asyncio.get_running_loop().time() < deadline, f"{known} is not {expected}"
        await asyncio.sleep(0.02)
    return True


def _of(tokens: list[int]) -> set[object]:
    """The holds of one prompt."""
    from inferencecache.wire import fingerprint
    from tests.integration.subscriber.world import BLOCK_SIZE, Hold

    return {
        Hold(fingerprint.key(prefix_hash), "", (index + 1) * BLOCK_SIZE, 1)
        for index, prefix_hash in enumerate(fingerprint.prefix_hashes(tokens, BLOCK_SIZE))
    }
