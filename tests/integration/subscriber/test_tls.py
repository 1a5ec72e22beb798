"""TLS and tokens to the server (decision D9)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from inferencecache.fakeengine.run import running as engine_running
from inferencecache.kube import pki
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.server.running import running
from tests.integration.subscriber.world import agreed, engine_settings, eventually, known_to, sidecar


def pair(folder: Path, *hosts: str) -> tuple[Path, Path]:
    """Files of a certificate that signs itself, and of its key."""
    made = pki.self_signed(list(hosts), now=datetime.now(UTC))
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    return certificate, key


async def test_a_server_with_tls_is_told_by_who_trusts_it_and_by_nobody_else(tmp_path: Path) -> None:
    files = pair(tmp_path, "localhost")
    (other := tmp_path / "other").mkdir()
    stranger, _ = pair(other, "localhost")
    async with running(tls=files) as server, engine_running(engine_settings()) as engine:
        target = f"localhost:{server.ports.grpc}"
        for refused in ({}, {"server_tls": True}, {"server_tls": True, "server_ca_file": stranger}):
            async with sidecar(engine, target, **refused) as it:
                await it.connected()
                await engine.complete([1] * 8)
                (delivery,) = await eventually(lambda it=it: list(it.subscriber.servers.deliveries.values()))
                await eventually(lambda delivery=delivery: delivery.failing)
                assert await known_to(server.url("/dump")) == set()
        async with sidecar(engine, target, server_tls=True, server_ca_file=files[0]) as it:
            await it.connected()
            await engine.ranks[0].clear()
            await engine.complete([2] * 8)
            assert await agreed(engine, server.url("/dump"))
        async with sidecar(engine, target, server_tls=True, server_ca_data=files[0].read_text()) as it:
            await it.connected()
            await engine.ranks[0].clear()
            await engine.complete([3] * 8)
            assert await agreed(engine, server.url("/dump"))


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    files = pair(tmp_path, "elsewhere.example")
    async with running(tls=files) as server, engine_running(engine_settings()) as engine:
        fields: dict[str, Any] = {"server_tls": True, "server_ca_file": files[0]}
        async with sidecar(engine, f"localhost:{server.ports.grpc}", **fields) as it:
            (delivery,) = await eventually(lambda: list(it.subscriber.servers.deliveries.values()))
            await eventually(lambda: delivery.failing)
            assert await known_to(server.url("/dump")) == set()


async def test_every_call_shows_the_token_of_the_moment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    seen: set[tuple[str, str]] = set()

    class Watch(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            seen.add((details.method, dict(details.invocation_metadata).get("authorization", "")))

            async def publish(_request: bytes, _context: Any) -> bytes:
                return pb.Ack(accepted=True).SerializeToString()

            return grpc.unary_unary_rpc_method_handler(publish)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Watch()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            engine_running(engine_settings()) as engine,
            sidecar(engine, f"127.0.0.1:{port}", server_token_file=tmp_path / "token"),
        ):
            await eventually(lambda: (METHODS["PublishEvent"].path, "Bearer secret") in seen)
        assert {token for _, token in seen} == {"Bearer secret"}
    finally:
        await server.stop(0)
