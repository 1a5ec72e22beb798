"""The gRPC port as grpcio's clients meet it, over real sockets (spec 06 §2, §3, §11)."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from inferencecache.server.run import GRPC_GRACE_SECONDS
from inferencecache.server.streams import MAX_SUBSCRIPTIONS
from inferencecache.wire.fingerprint import chain
from inferencecache.wire.http2 import frames
from inferencecache.wire.service import SERVICE_NAME
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.server.running import Running, Stub, calling, get, lookup, running, update

A, B = b"\xea\x06\xfc\x71\xa5\xee\x6e\x88", b"\xad\x01\x83\x5a\x37\xdd\x29\x4c"
LIMIT = 4 << 20


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with running() as server:
        yield server


@pytest.fixture
async def stub(server: Running) -> AsyncIterator[Stub]:
    async with calling(server) as stub:
        yield stub


async def report(stub: Stub, *updates: pb.CacheStateUpdate) -> pb.Ack:
    ack: pb.Ack = await stub.method("ReportCacheState")(iter(updates), timeout=60)
    return ack


async def test_what_a_stream_reports_is_found_by_a_lookup(stub: Stub) -> None:
    ack = await report(stub, update("pod-a", [A, B]), update("pod-b", [A]))
    assert ack == pb.Ack(accepted=True)
    reply = await stub.lookup([A, B])
    assert reply.reason_code == "PREFIX_MATCH"
    assert (reply.replica_scores[0].replica_id, reply.replica_scores[0].matched_tokens) == ("pod-a", 128)


async def test_long_prompts_are_found_up_to_where_they_part(stub: Stub) -> None:
    ours, theirs = chain(range(16 * 600), 16)[0], chain([*range(16 * 400), *range(16 * 200)], 16)[0]
    await report(stub, update("pod-a", ours), update("pod-b", theirs), update("pod-c", ours[:1]))
    reply = await stub.lookup([*ours[:500], b"of another length", *ours[501:]])
    assert {score.replica_id: score.matched_tokens for score in reply.replica_scores} == {
        "pod-a": 500 * 64, "pod-b": 400 * 64, "pod-c": 64,
    }  # fmt: skip
    reply = await stub.lookup(theirs)
    assert {score.replica_id: score.matched_tokens for score in reply.replica_scores} == {
        "pod-b": 600 * 64, "pod-a": 400 * 64, "pod-c": 64,
    }  # fmt: skip


async def test_each_update_of_a_stream_is_in_force_before_the_next_is_sent(stub: Stub) -> None:
    call = stub.method("ReportCacheState")()
    await call.write(update("pod-a", [A]))
    await found(stub, [A])
    await call.write(update("pod-a", [A, B]))
    await found(stub, [A, B])
    await call.done_writing()
    assert (await call).accepted


async def found(stub: Stub, hashes: list[bytes]) -> None:
    async with asyncio.timeout(60):
        while True:
            reply = await stub.lookup(hashes)
            if reply.replica_scores and reply.replica_scores[0].matched_tokens == 64 * len(hashes):
                return
            await asyncio.sleep(0.005)


async def test_a_cancelled_report_keeps_what_it_said_and_gets_no_ack(stub: Stub) -> None:
    call = stub.method("ReportCacheState")()
    await call.write(update("pod-a", [A]))
    await found(stub, [A])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED
    assert (await stub.lookup([A])).reason_code == "PREFIX_MATCH"


async def test_an_event_is_acknowledged_and_takes_effect(stub: Stub) -> None:
    await report(stub, update("pod-a", [A]))
    event = pb.CacheEvent(
        type=pb.CacheEvent.PREFIX_EVICTED, replica_id="pod-a", model_id="m", tenant_id="team-a", prefix_hash=A
    )
    assert await stub.method("PublishEvent")(event, timeout=60) == pb.Ack(accepted=True)
    assert not (await stub.lookup([A])).replica_scores


async def test_the_state_of_a_model_is_told(stub: Stub) -> None:
    await report(stub, update("pod-a", [A, B], stats=pb.ReplicaStats(cache_memory_bytes=7, hit_rate=0.5)))
    request = pb.GetCacheStateRequest(model_id="m", tenant_id="team-a")
    state = await stub.method("GetCacheState")(request, timeout=60)
    assert state.summary.total_prefixes == 2
    assert [(each.replica_id, each.cache_memory_bytes) for each in state.replicas] == [("pod-a", 7)]


async def test_an_absent_summary_is_told_from_an_empty_one(stub: Stub) -> None:
    state = await stub.method("GetCacheState")(pb.GetCacheStateRequest(tenant_id="inferencecache.io/probe"), timeout=60)
    assert state.HasField("summary")


async def test_many_calls_at_a_time_are_all_answered(stub: Stub) -> None:
    await report(stub, update("pod-a", [A]))
    replies = await asyncio.gather(*(stub.lookup([A] if number % 2 else [B]) for number in range(600)))
    assert [reply.reason_code for reply in replies] == ["AFFINITY_HINT", "PREFIX_MATCH"] * 300


# -- health and reflection -------------------------------------------------------------------------------------------


async def test_health_is_serving_for_the_server_and_not_found_for_any_other_name(server: Running) -> None:
    async with grpc.aio.insecure_channel(server.target()) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        reply = await check(health_pb2.HealthCheckRequest(), timeout=60)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(health_pb2.HealthCheckRequest(service=SERVICE_NAME), timeout=60)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_health_watch_tells_the_state_and_stays(server: Running) -> None:
    async with grpc.aio.insecure_channel(server.target()) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        call = watch(health_pb2.HealthCheckRequest(service="x"))
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        call.cancel()


async def test_reflection_describes_the_service_to_grpcios_own_client(server: Running) -> None:
    def ask() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(server.target()) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            names = list(database.get_services())
            file = database.FindFileContainingSymbol(SERVICE_NAME)
            return names, [method.name for method in file.service[0].method]

    services, methods = await asyncio.to_thread(ask)
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= set(services)
    assert "LookupRoute" in methods


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_versions_of_reflection_answer(server: Running, version: str) -> None:
    async with grpc.aio.insecure_channel(server.target()) as channel:
        info = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = info()
        own = f"grpc.reflection.{version}.ServerReflection"
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=own))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"))
        assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        await call.write(reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="google.protobuf.Any"))
        assert (await call.read()).HasField("error_response")
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_a_message_of_exactly_4_mib_is_taken_and_a_larger_one_refused(stub: Stub) -> None:
    empty = lookup([], prompt_text="").ByteSize()
    largest = lookup([], prompt_text="x" * (LIMIT - empty - 5))
    assert largest.ByteSize() == LIMIT
    assert (await stub.method("LookupRoute")(largest, timeout=60)).reason_code == "NO_HINT"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.method("LookupRoute")(lookup([], prompt_text="x" * LIMIT), timeout=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.lookup([])).reason_code == "NO_HINT"


async def test_lookups_are_answered_while_a_large_report_is_taken(stub: Stub) -> None:
    hashes = [number.to_bytes(8, "big") for number in range(200_000)]
    reporting = asyncio.create_task(report(stub, update("pod-a", hashes)))
    answered = 0
    while not reporting.done():
        await stub.lookup([A])
        answered += 1
    assert (await reporting).accepted
    assert (await stub.lookup(hashes)).replica_scores[0].matched_tokens == 64 * len(hashes)
    assert answered >= 10, "the report held everybody up"


async def test_a_report_beyond_the_limit_ends_its_stream(stub: Stub) -> None:
    huge = update("pod-a", [bytes([number % 256]) * 1000 for number in range(4300)])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await report(stub, update("pod-a", [A]), huge)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.lookup([A])).reason_code == "PREFIX_MATCH"


@pytest.mark.parametrize(
    ("method", "request_"),
    [("StreamMetrics", pb.StreamMetricsRequest()), ("StreamCacheEvents", pb.StreamEventsRequest())],
)
async def test_observers_are_so_many_at_most_and_leave_their_place_to_others(
    stub: Stub, method: str, request_: Message
) -> None:
    async def one_more() -> bool:
        """Whether one more hears something, rather than being refused."""
        call = stub.method(method)(request_)
        heard = asyncio.ensure_future(call.read())
        while not heard.done():
            await report(stub, update("pod-a", [next(news).to_bytes(8, "big")]))
        refused = isinstance(heard.exception(), grpc.aio.AioRpcError)
        assert not refused or await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call.cancel()
        return not refused

    news = itertools.count(100)
    observers = [stub.method(method)(request_) for _ in range(MAX_SUBSCRIPTIONS)]
    await report(stub, update("pod-a", [A]))  # by now they have begun
    assert not await one_more()
    for call in observers:
        call.cancel()
    async with asyncio.timeout(60):
        while not await one_more():
            pass


async def test_an_unknown_method_is_unimplemented(server: Running) -> None:
    async with grpc.aio.insecure_channel(server.target()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(f"/{SERVICE_NAME}/Nothing")(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_that_is_not_protobuf_is_internal(server: Running) -> None:
    async with grpc.aio.insecure_channel(server.target()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(f"/{SERVICE_NAME}/LookupRoute")(b"\xff\xff", timeout=60)
    assert refused.value.code() is grpc.StatusCode.INTERNAL


async def test_a_compressed_request_is_read(server: Running) -> None:
    async with grpc.aio.insecure_channel(server.target(), compression=grpc.Compression.Gzip) as channel:
        assert (await Stub(channel).lookup([A] * 500)).reason_code == "NO_HINT"


# -- peers that misbehave ----------------------------------------------------------------------------------------------


async def test_a_client_that_speaks_http_1_is_turned_away_and_others_are_served(server: Running, stub: Stub) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.grpc)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(60):
        said = await reader.read()
    assert b"gRPC" in said
    writer.close()
    assert (await stub.lookup([A])).reason_code == "NO_HINT"


async def test_connections_torn_in_the_middle_of_anything_are_forgotten(server: Running, stub: Stub) -> None:
    whole = frames.PREFACE + frames.settings({}) + frames.frame(frames.HEADERS, 4, 1, b"\x83\x86\x84")
    for size in range(1, len(whole)):
        peer = socket.create_connection(("127.0.0.1", server.ports.grpc))
        peer.sendall(whole[:size])
        peer.close()
    assert (await stub.lookup([A])).reason_code == "NO_HINT"


async def test_a_thousand_streams_left_open_by_dead_clients_do_not_hold_up_others(server: Running, stub: Stub) -> None:
    channels = [grpc.aio.insecure_channel(server.target(), options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(20)]  # fmt: skip
    calls = [Stub(channel).method("ReportCacheState")() for channel in channels for _ in range(50)]
    await asyncio.gather(*(call.write(update("pod-a", [A])) for call in calls))
    await found(stub, [A])  # what is written is not yet applied
    for channel in channels:
        await channel.close()
    assert (await stub.lookup([A])).reason_code == "PREFIX_MATCH"


async def test_a_tls_client_meets_a_plaintext_port_with_an_error(server: Running) -> None:
    async with grpc.aio.secure_channel(server.target(), grpc.ssl_channel_credentials()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Stub(channel).method("LookupRoute")(lookup([A]), timeout=2)
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_stays_open_ends_with_unavailable_after_the_grace(server: Running, stub: Stub) -> None:
    """And with it the server; the grace leaves the listeners two of the five seconds that a server has."""
    assert GRPC_GRACE_SECONDS == 3
    call = stub.method("ReportCacheState")()
    await call.write(update("pod-a", [A]))
    await found(stub, [A])
    server.stop.set()
    async with asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.ended


async def test_a_stream_that_ends_while_the_server_drains_is_acknowledged(
    server: Running, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencecache.server.run.GRPC_GRACE_SECONDS", 60)
    call = stub.method("ReportCacheState")()
    await call.write(update("pod-a", [A]))
    await found(stub, [A])
    server.stop.set()
    await call.write(update("pod-b", [A]))
    await call.done_writing()
    assert (await call).accepted
    await server.ended


async def test_without_open_calls_the_server_is_gone_at_once(
    server: Running, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferencecache.server.run.GRPC_GRACE_SECONDS", 3600)
    await stub.lookup([A])
    server.stop.set()
    async with asyncio.timeout(60):
        await server.ended


async def test_the_lookup_is_counted(server: Running, stub: Stub) -> None:
    await stub.lookup([A])
    _, metrics = await get(server.url("/metrics"))
    series = 'inferencecache_lookup_route_calls_total{hint_used="false",model="m",reason_code="NO_HINT"} 1.0'
    assert series in metrics
