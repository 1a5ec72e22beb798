"""The gRPC port over TLS: real clients, a certificate that is renewed, and a client that does not speak it."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2

from inferencecache.kube import pki
from tests.integration.server.running import Stub, calling, get, lookup, running

HOST = "inference-cache-server.inference-cache-system.svc"
A = b"\x01" * 8


class Pair:
    """A pair of files that is written again and again."""

    def __init__(self, folder: Path) -> None:
        self.files = (folder / "tls.crt", folder / "tls.key")
        self._written = 0

    def write(self, *hosts: str) -> bytes:
        pair = pki.self_signed([HOST, *hosts], now=datetime.now(UTC))
        self.files[1].write_bytes(pair.key)
        self.files[0].write_bytes(pair.certificate)
        self._written += 1
        at = 1_700_000_000 + self._written
        os.utime(self.files[0], (at, at))
        return pair.certificate


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def channel(target: str, trusted: bytes) -> grpc.aio.Channel:
    options = [("grpc.ssl_target_name_override", HOST), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(trusted), options=options)


async def test_lookups_and_health_work_over_tls_and_the_gauge_says_so(pair: Pair) -> None:
    trusted = pair.write()
    async with running(tls=pair.files) as server, channel(server.target(), trusted) as secure:
        assert (await Stub(secure).lookup([A])).reason_code == "NO_HINT"
        check = secure.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert "inferencecache_server_grpc_tls_enabled 1.0" in (await get(server.url("/metrics")))[1]


async def test_a_renewed_certificate_is_served_to_new_connections_and_old_ones_stay(pair: Pair) -> None:
    first = pair.write()
    async with running(tls=pair.files) as server, channel(server.target(), first) as old:
        assert (await Stub(old).lookup([A])).reason_code == "NO_HINT"
        second = pair.write("renewed")
        async with channel(server.target(), second) as new:
            assert (await Stub(new).lookup([A])).reason_code == "NO_HINT"
        assert (await Stub(old).lookup([A])).reason_code == "NO_HINT"
        assert "renewed" in await shown(server.ports.grpc)


async def shown(port: int) -> set[str]:
    """The hosts in the certificate that a port shows to a client that names none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return pki.hosts_of(x509.load_der_x509_certificate(certificate))


async def test_a_plaintext_client_is_refused_and_others_are_served(pair: Pair) -> None:
    trusted = pair.write()
    async with running(tls=pair.files) as server:
        async with calling(server) as plain:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await plain.method("LookupRoute")(lookup([A]), timeout=3)
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        async with channel(server.target(), trusted) as secure:
            assert (await Stub(secure).lookup([A])).reason_code == "NO_HINT"


async def test_a_client_that_does_not_trust_the_certificate_gets_no_answer(pair: Pair) -> None:
    other = pair.write("other")
    pair.write()
    async with running(tls=pair.files) as server, channel(server.target(), other) as secure:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Stub(secure).method("LookupRoute")(lookup([A]), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_large_answer_and_a_large_request_pass_through_tls(pair: Pair) -> None:
    trusted = pair.write()
    async with running(tls=pair.files) as server, channel(server.target(), trusted) as secure:
        reply = await Stub(secure).lookup([bytes([number % 250]) * 64 for number in range(40_000)])
        assert reply.reason_code == "NO_HINT"


async def test_a_server_with_tls_ends_within_its_time_though_clients_stay(pair: Pair) -> None:
    trusted = pair.write()
    async with running(tls=pair.files) as server, channel(server.target(), trusted) as secure:
        assert (await Stub(secure).lookup([A])).reason_code == "NO_HINT"
        peer = await asyncio.open_connection("127.0.0.1", server.ports.grpc)  # never says hello
        server.stop.set()
        async with asyncio.timeout(60):
            await server.ended
        peer[1].close()
