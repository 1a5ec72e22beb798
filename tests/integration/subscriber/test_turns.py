"""A long replay is no reason to do nothing else: deliveries would time out, and nobody could ask for the health."""

from __future__ import annotations

import asyncio

import zmq

from inferencecache.fakeengine.publisher import Publisher
from inferencecache.subscriber.source import Source

BATCHES = 900
"""Fewer than the thousand that the engine's socket keeps for a slow reader."""


async def test_a_long_replay_leaves_others_their_turn() -> None:
    engine = Publisher("tcp://127.0.0.1:*", "kv-events", replay_endpoint="tcp://127.0.0.1:*")
    await engine.open()
    for number in range(BATCHES):
        engine.publish(b"%d" % number)
    heard: list[bytes] = []
    most = 0
    with zmq.Context() as context:
        source = Source(
            context,
            engine.endpoint,
            on_batch=heard.append,
            on_loss=heard.clear,
            replay_endpoint=engine.replay_endpoint,
        )
        following = asyncio.create_task(source.run())
        async with asyncio.timeout(60):
            before = 0
            while len(heard) < BATCHES:
                await asyncio.sleep(0)
                most = max(most, len(heard) - before)
                before = len(heard)
        following.cancel()
        await asyncio.wait([following])
    engine.terminate()
    assert heard == [b"%d" % number for number in range(BATCHES)]
    assert most <= 64
