"""Whole servers over real sockets: several on one log, one that starts from another, and what else they serve."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from functools import partial
from typing import Any

import aiohttp
import grpc
import pytest

from inferencecache.server.peers import PeerSettings
from inferencecache.server.store import parse
from inferencecache.server.streams import EventHub
from inferencecache.server.tokenizer import load
from inferencecache.server.warm import INSTANCE_HEADER
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.kube.waiting import eventually
from tests.integration.server.redis_server import RedisServer
from tests.integration.server.running import (
    MODEL,
    TENANT,
    Running,
    Stub,
    calling,
    get,
    lookup,
    request,
    running,
    update,
)
from tests.integration.server.test_process import LOCAL, process
from tests.unit.server.test_tokenizer import CHAT, GENERATION, make_model

A, B = b"\x01" * 8, b"\x02" * 8


def sharing(redis: RedisServer) -> dict[str, Any]:
    return {"peers": PeerSettings(index_store=parse(redis.url))}


async def ready(server: Running, answer: str = "ok\n") -> None:
    """`/readyz` says exactly that."""
    await eventually(lambda: get(server.url("/readyz")), lambda said: said == (200, answer))


async def matched(stub: Stub, replica: str) -> None:
    await eventually(
        lambda: stub.lookup([A, B]), lambda reply: [score.replica_id for score in reply.replica_scores] == [replica]
    )


async def report(stub: Stub, *updates: pb.CacheStateUpdate) -> None:
    assert (await stub.method("ReportCacheState")(iter(updates), timeout=60)).accepted


async def test_what_one_server_acknowledged_is_known_there_at_once_and_on_the_others_soon(redis: RedisServer) -> None:
    async with running(**sharing(redis)) as one, running(**sharing(redis)) as two:
        await ready(one)
        await ready(two)
        async with calling(one) as first, calling(two) as second:
            await report(first, update("r1", [A, B]))
            assert [score.replica_id for score in (await first.lookup([A, B])).replica_scores] == ["r1"]
            await matched(second, "r1")
            evicted = pb.CacheEvent(type=pb.CacheEvent.ALL_CLEARED, replica_id="r1", model_id=MODEL, tenant_id=TENANT)
            assert (await second.method("PublishEvent")(evicted, timeout=60)).accepted
            assert not (await second.lookup([A, B])).replica_scores


async def test_a_long_report_stream_is_acknowledged_as_a_whole(redis: RedisServer) -> None:
    async with running(**sharing(redis)) as server:
        await ready(server)
        async with calling(server) as stub:
            hashes = [bytes([number // 256, number % 256]) * 4 for number in range(500)]
            await report(stub, *(update("r1", [each]) for each in hashes))
            state = await stub.method("GetCacheState")(
                pb.GetCacheStateRequest(model_id=MODEL, tenant_id=TENANT), timeout=60
            )
            assert state.summary.total_prefixes == 500


async def test_an_outage_of_the_store_is_told_and_hinders_nobody(redis: RedisServer) -> None:
    async with running(**sharing(redis)) as server:
        await ready(server)
        redis.kill()
        await ready(server, "ok\nindex store: degraded\n")
        async with calling(server) as stub:
            await report(stub, update("r1", [A, B]))
            assert [score.replica_id for score in (await stub.lookup([A, B])).replica_scores] == ["r1"]
        redis.start()
        await ready(server)
        async with running(**sharing(redis)) as late, calling(late) as stub:
            await ready(late)
            await matched(stub, "r1")


async def test_a_server_whose_store_is_away_at_the_start_is_warming_and_not_ready(redis: RedisServer) -> None:
    redis.kill()
    async with running(**sharing(redis)) as server:
        assert await get(server.url("/readyz")) == (503, "not ready: index store: warming")
        redis.start()
        await ready(server)


async def test_json_reports_wait_for_the_log_too(redis: RedisServer) -> None:
    async with running(**sharing(redis)) as server:
        await ready(server)
        body = {"replicaId": "r1", "modelId": "m", "tenantId": "team-a", "hashScheme": "vllm", "prefixes": [
            {"prefixHash": "AQEBAQEBAQE=", "tokenCount": 64}
        ]}  # fmt: skip
        accepted = (200, '{"accepted":true,"reasonCode":""}')
        assert await request("POST", server.url("/v1/cache-state"), json=[body, body]) == accepted
        async with calling(server) as stub:
            assert (await stub.lookup([A])).reason_code == "PREFIX_MATCH"
        event = {"type": "ALL_CLEARED", "replicaId": "r1", "modelId": "m", "tenantId": "team-a"}
        assert await request("POST", server.url("/v1/events"), json=event) == accepted


async def test_a_server_starts_with_what_its_peer_holds() -> None:
    async with running() as peer, calling(peer) as stub:
        await report(stub, update("r1", [A, B]))
        async with (
            running(peers=PeerSettings(warm_from=peer.url("/dump"))) as late,
            calling(late) as late_stub,
        ):
            await ready(late)
            assert [score.replica_id for score in (await late_stub.lookup([A, B])).replica_scores] == ["r1"]


async def test_a_dump_is_for_get_and_for_the_controllers_port() -> None:
    async with running() as server, calling(server) as stub:
        assert (await request("POST", server.url("/dump")))[0] == 405
        assert (await get(f"http://127.0.0.1:{server.ports.http}/dump"))[0] == 404
        async with aiohttp.ClientSession() as session, session.get(server.url("/dump")) as reply:
            call = stub.method("LookupRoute")(lookup([A]))
            assert dict(await call.initial_metadata())["inferencecache-instance"] == reply.headers[INSTANCE_HEADER]
            assert await reply.read() == b""


TEMPLATES = {
    "version": 1,
    "templates": [
        {"namespace": TENANT, "name": "chat", "body": "Q: {{ q }}", "slots": [{"name": "q", "type": "Mutable"}]}
    ],
}
TOPOLOGIES = {
    "version": 1,
    "topologies": [
        {
            "namespace": TENANT,
            "name": "pd",
            "transport": "NIXL",
            "prefillPools": [{"name": "p", "replicas": ["p1", "p2"]}],
            "decodePools": [{"name": "d", "replicas": ["d1"]}],
        }
    ],
}


async def test_pushed_templates_and_topologies_are_served(redis: RedisServer) -> None:
    async with running(**sharing(redis)) as one, running(**sharing(redis)) as two:
        await ready(one)
        await ready(two)
        for path, body in (("/templates", TEMPLATES), ("/topologies", TOPOLOGIES)):
            assert await request("PUT", one.url(path), json=body) == (204, "")
            assert (await request("PUT", one.url(path), data=b"{"))[0] == 400
            assert (await request("POST", one.url(path), json=body))[0] == 405
        render = pb.RenderTemplateRequest(template_ref=f"{TENANT}/chat", tenant_id=TENANT, variables={"q": "why?"})
        route = pb.LookupPDRouteRequest(model_id=MODEL, tenant_id=TENANT, prefix_hash=B, pd_topology_ref=f"{TENANT}/pd")
        async with calling(one) as stub:
            await report(stub, update("p2", [A, B]))
            assert (await stub.method("RenderTemplate")(render, timeout=60)).rendered_prompt == b"Q: why?"
            routed = await stub.method("LookupPDRoute")(route, timeout=60)
            assert routed == pb.LookupPDRouteResponse(
                prefill_replica_id="p2", decode_replica_id="d1", transport_hint="NIXL", reason_code="PREFIX_MATCH"
            )
        async with calling(two) as stub:
            await eventually(
                lambda: stub.method("LookupPDRoute")(route, timeout=60), lambda answered: answered == routed
            )
            assert (await stub.method("RenderTemplate")(render, timeout=60)).rendered_prompt == b"Q: why?"
        status, text = await request(
            "POST", one.url("/v1/render-template"), json={"templateRef": f"{TENANT}/other", "tenantId": TENANT}
        )
        assert (status, json.loads(text)["reasonCode"]) == (200, "TEMPLATE_NOT_FOUND")


async def test_observers_follow_changes_until_they_leave() -> None:
    async with running() as server, calling(server) as stub:
        events = stub.method("StreamCacheEvents")(pb.StreamEventsRequest(types=[pb.CacheEvent.PREFIX_ADDED]))
        reader = asyncio.create_task(events.read())
        await asyncio.sleep(0)
        for number in itertools.count():
            # The subscription begins when the server has seen the call.
            await report(stub, update("r1", [number.to_bytes(8, "big")]))
            if reader.done():
                break
        event = await reader
        assert (event.type, event.replica_id, event.tenant_id) == (pb.CacheEvent.PREFIX_ADDED, "r1", TENANT)
        events.cancel()


async def test_metrics_are_streamed_by_name() -> None:
    async with running() as server, calling(server) as stub:
        metrics = stub.method("StreamMetrics")(pb.StreamMetricsRequest(names=["inferencecache_server_up"]))
        metric = await asyncio.wait_for(metrics.read(), 60)
        assert (metric.name, metric.type, metric.value) == ("inferencecache_server_up", "gauge", 1)
        metrics.cancel()


async def test_an_observer_that_cannot_be_served_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencecache.server.services.EventHub", partial(EventHub, max_subscriptions=0))
    async with running() as server, calling(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.method("StreamCacheEvents")(pb.StreamEventsRequest()).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "observers" in (refused.value.details() or "")


async def test_a_prompt_is_looked_up_with_the_models_tokenizer(tmp_path: Any) -> None:
    make_model(tmp_path / "m", chat_template=CHAT + GENERATION)
    async with running(tokenizer_models_dir=str(tmp_path), engine_block_size=2) as server, calling(server) as stub:
        reply = await stub.method("LookupRoute")(
            pb.LookupRouteRequest(model_id="m", tenant_id=TENANT, hash_scheme="vllm", prompt_text="hello"), timeout=60
        )
        messages = [{"role": "user", "content": "hello"}]
        assert list(reply.token_ids) == load(tmp_path).encode_chat("m", messages, add_generation_prompt=True)


async def test_a_killed_server_takes_nothing_with_it_that_it_acknowledged(redis: RedisServer) -> None:
    async with (
        process("--insecure-disable-auth", *LOCAL, f"--index-store={redis.url}") as doomed,
        running(**sharing(redis)) as other,
        calling(other) as stub,
    ):
        address = (await doomed.line("startup"))["grpc_addr"]
        await doomed.line("index_store_live")
        async with grpc.aio.insecure_channel(address) as channel:
            await report(Stub(channel), update("r1", [A, B]))
        doomed.process.kill()
        await matched(stub, "r1")


async def test_a_server_ends_in_time_though_its_store_hangs(redis: RedisServer) -> None:
    async with process("--insecure-disable-auth", *LOCAL, f"--index-store={redis.url}") as server:
        address = (await server.line("startup"))["grpc_addr"]
        await server.line("index_store_live")
        redis.freeze()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                call = Stub(channel).method("ReportCacheState")(iter([update("r1", [A])]), timeout=60)
                await asyncio.sleep(0.1)  # it may arrive, and if not, the store hangs none the less
                server.process.send_signal(signal.SIGTERM)
                assert await server.end() == 0
                call.cancel()
        finally:
            redis.thaw()
