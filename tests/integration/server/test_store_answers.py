"""Servers with real indexes on one log in a real Redis: whoever is asked, the answer is the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inferencecache.server.index import PrefixIndex
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore
from inferencecache.server.services import Services
from inferencecache.server.store import SharedLog, State, parse
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.server.redis_server import RedisServer
from tests.integration.server.test_store import until
from tests.unit.server.callers import Caller, Clocks

REPLICAS = [f"r{number}" for number in range(4)]
TENANTS = ["t", "u"]
BLOCKS = [bytes([number]) * 8 for number in range(12)]


class Server:
    """A server on a clock that stands still, as scores are of the moment, until the next message comes."""

    clocks = Clocks()

    def __init__(self, url: str) -> None:
        policies, self.metrics = PolicyStore(), ServerMetrics()
        index = PrefixIndex(policies, on_eviction=self.metrics.evicted)
        self.services = Services(index=index, policies=policies, metrics=self.metrics, clock=self.clocks.clock)
        intake = self.services.intake
        self.log = SharedLog(
            parse(url),
            apply=intake.apply,
            dump=intake.dump,
            retention_seconds=lambda: policies.longest_ttl_us() / 1e6,
            registry=self.metrics.registry,
        )
        intake.share(self.log)

    def pending(self) -> float | None:
        return self.metrics.registry.get_sample_value("inferencecache_index_store_pending_records")

    def answers(self) -> list[Any]:
        """Everything about everything."""
        asked: list[Any] = []
        for tenant in TENANTS:
            asked.append(self.services.get_cache_state(pb.GetCacheStateRequest(tenant_id=tenant, model_id="m")))
            for length in range(1, len(BLOCKS) + 1):
                request = pb.LookupRouteRequest(
                    tenant_id=tenant,
                    model_id="m",
                    hash_scheme="vllm",
                    block_hashes=BLOCKS[:length],
                    block_token_counts=[16] * length,
                )
                reply = self.services.lookup_route(request, Caller())
                assert isinstance(reply, pb.LookupRouteResponse)
                scores = {score.replica_id: (score.matched_tokens, score.score) for score in reply.replica_scores}
                asked.append((reply.reason_code, scores))
        return asked


@contextlib.asynccontextmanager
async def running(server: Server) -> AsyncIterator[Server]:
    task = asyncio.create_task(server.log.run())
    try:
        await until(lambda: server.log.state is State.LIVE)
        yield server
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def something(chance: random.Random) -> pb.CacheStateUpdate | pb.CacheEvent:
    replica, tenant = chance.choice(REPLICAS), chance.choice(TENANTS)
    if chance.random() < 0.2:
        event_type = chance.choice([pb.CacheEvent.PREFIX_EVICTED, pb.CacheEvent.ALL_CLEARED])
        return pb.CacheEvent(
            type=event_type, replica_id=replica, model_id="m", tenant_id=tenant, prefix_hash=chance.choice(BLOCKS)
        )
    first = chance.randrange(len(BLOCKS))
    return pb.CacheStateUpdate(
        replica_id=replica,
        model_id="m",
        tenant_id=tenant,
        hash_scheme="vllm",
        prefixes=[pb.PrefixEntry(prefix_hash=block, token_count=16) for block in BLOCKS[first : first + 6]],
        stats=pb.ReplicaStats(pressure=chance.choice([0.0, 0.5]), hit_rate=0.5) if chance.random() < 0.3 else None,
    )


def say(server: Server, message: pb.CacheStateUpdate | pb.CacheEvent) -> Any:
    intake = server.services.intake
    server.clocks.advance(0.001)
    return intake.report(message) if isinstance(message, pb.CacheStateUpdate) else intake.publish(message)


@pytest.mark.parametrize("seed", range(3))
async def test_servers_answer_alike_through_an_outage_and_a_lost_log(redis: RedisServer, seed: int) -> None:
    chance = random.Random(seed)
    policy = {"namespace": "t", "minimumMatchedTokens": 0, "routingFloorScore": 0.0}
    async with running(Server(redis.url)) as one, running(Server(redis.url)) as two:
        both = [one, two]
        pending = one.services.push("policy", json.dumps({"version": 7, "policies": [policy]}).encode())
        assert pending is not None
        await pending

        async def agreed() -> None:
            await until(lambda: all(server.log.state is State.LIVE and server.pending() == 0 for server in both))
            await until(lambda: one.answers() == two.answers())

        for _ in range(200):
            say(chance.choice(both), something(chance))
        await agreed()

        redis.kill()
        await until(lambda: all(server.log.state is State.DEGRADED for server in both))
        for _ in range(100):
            # A producer talks to one server, and each of these to its own.
            message = something(chance)
            say(both[REPLICAS.index(message.replica_id) % 2], message)
        assert one.answers() != two.answers()
        redis.start()
        await agreed()

        for _ in range(50):
            say(chance.choice(both), something(chance))
        await agreed()
        async with running(Server(redis.url)) as late:
            assert late.answers() == one.answers()


async def test_a_report_is_in_force_everywhere_soon_and_here_when_it_is_acknowledged(redis: RedisServer) -> None:
    async with running(Server(redis.url)) as one, running(Server(redis.url)) as two:
        update = pb.CacheStateUpdate(
            replica_id="r0", model_id="m", tenant_id="t", hash_scheme="vllm",
            prefixes=[pb.PrefixEntry(block_hashes=BLOCKS, block_token_counts=[16] * len(BLOCKS))],
        )  # fmt: skip
        pending = one.services.report(update)
        assert pending is not None
        await pending
        assert one.answers()[12][0] == "PREFIX_MATCH"
        await until(lambda: two.answers() == one.answers())


async def test_a_policy_that_one_server_was_told_counts_on_all(redis: RedisServer) -> None:
    async with running(Server(redis.url)) as one, running(Server(redis.url)) as two:
        quota = {"version": 7, "tenants": [{"tenantID": "t", "maxIndexEntries": 2}]}
        pending = one.services.push("policy", json.dumps(quota).encode())
        assert pending is not None
        await pending
        update = pb.CacheStateUpdate(
            replica_id="r0", model_id="m", tenant_id="t", hash_scheme="vllm",
            prefixes=[pb.PrefixEntry(prefix_hash=block, token_count=16) for block in BLOCKS],
        )  # fmt: skip
        pending = two.services.report(update)
        assert pending is not None
        await pending
        state = pb.GetCacheStateRequest(tenant_id="t", model_id="m")
        assert two.services.get_cache_state(state).summary.total_prefixes == 2
        await until(lambda: one.services.get_cache_state(state).summary.total_prefixes == 2)
