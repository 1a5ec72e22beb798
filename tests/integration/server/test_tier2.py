"""The probe's third stage through a real store."""

from __future__ import annotations

import json

from inferencecache.server.index import PrefixIndex
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore
from inferencecache.server.services import Services
from inferencecache.server.store import parse
from inferencecache.server.tier2 import RedisTier2Prober
from tests.integration.server.redis_server import RedisServer

REQUEST = json.dumps({"backend": "ns/cache", "model": "m", "hashScheme": "vllm", "backendType": "LMCache"}).encode()


def server(redis: RedisServer) -> Services:
    policies = PolicyStore()
    return Services(
        index=PrefixIndex(policies),
        policies=policies,
        metrics=ServerMetrics(),
        tier2=RedisTier2Prober(parse(redis.url)),
    )


async def test_a_store_that_takes_and_returns_passes_and_keeps_nothing(redis: RedisServer) -> None:
    result = await server(redis).probe(REQUEST)
    assert (result.ingest, result.routing, result.t2) == ("ok", "ok", "ok")
    assert redis.client().dbsize() == 0


async def test_a_store_that_is_away_fails_the_stage_and_says_how(redis: RedisServer) -> None:
    redis.kill()
    result = await server(redis).probe(REQUEST)
    assert (result.ingest, result.routing, result.t2) == ("ok", "ok", "failed")
    assert result.errors[0].message.startswith("T2 put/get cycle failed: put failed: ")


async def test_a_store_that_takes_nothing_fails_the_stage(redis: RedisServer) -> None:
    redis.client().config_set("maxmemory", "1")
    result = await server(redis).probe(REQUEST)
    assert result.t2 == "failed"
    assert "OOM" in result.errors[0].message
