"""The listener: TLS, rotation without a restart, keep-alive, a stop that answers what is in flight."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.webhooks.app import create_app
from inferencecache.webhooks.server import WebhookServer
from tests.unit.webhooks.reviews import POD_PATH, review_of
from tests.unit.webhooks.stand_ins import Cluster, handlers

_POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "vllm"}]}}


def _certificate(folder: Path, serial: int) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{serial}.crt", folder / f"{serial}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@asynccontextmanager
async def _serving(
    cluster: Cluster, tls: ssl.SSLContext | None = None, *, shutdown_delay: datetime.timedelta = datetime.timedelta(0)
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    app = create_app(handlers(cluster))
    server = WebhookServer(app, host="127.0.0.1", port=0, tls=tls, shutdown_delay=shutdown_delay)
    task = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(60):
            await server.started.wait()
        yield server.bound_port, task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=60)


def _request() -> bytes:
    body = json.dumps(review_of(_POD, "ns")).encode()
    head = (
        f"POST {POD_PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(int(length.partition(b":")[2]))


async def test_a_rotated_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*_certificate(tmp_path, 1))
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with _serving(Cluster(), served) as (port, _):
        old_reader, old_writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        serials = []
        for serial in (1, 2):
            served.load_cert_chain(*_certificate(tmp_path, serial))
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            serials.append(x509.load_der_x509_certificate(der).serial_number)
            writer.close()
        assert serials == [1, 2]
        for _ in range(2):  # the connection from before the rotation goes on
            old_writer.write(_request())
            assert json.loads(await _answer(old_reader))["response"]["allowed"]
        old_writer.close()


class _Slow(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()

    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        self.entered.set()
        await asyncio.sleep(0.3)  # the stop is to fall into it, and a late one proves as much
        return []


async def test_a_stop_answers_what_is_in_flight() -> None:
    cluster = _Slow()
    async with _serving(cluster) as (port, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request())
        await cluster.entered.wait()
        task.cancel()
        assert json.loads(await _answer(reader))["response"]["allowed"]
        writer.close()
        async with asyncio.timeout(60):
            await asyncio.wait([task])
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_for_the_shutdown_delay_all_who_call_are_answered_and_asked_to_close() -> None:
    async with _serving(Cluster(), shutdown_delay=datetime.timedelta(hours=1)) as (port, task):
        old = await asyncio.open_connection("127.0.0.1", port)
        old[1].write(_request())
        assert b"connection: close" not in (await old[0].readuntil(b"\r\n\r\n")).lower()
        task.cancel()
        new = await asyncio.open_connection("127.0.0.1", port)
        for reader, writer in (old, new):
            writer.write(_request())
            async with asyncio.timeout(60):
                said = await reader.read()  # to the end: the server closes
            assert b"connection: close" in said.lower()
            assert b'"allowed":true' in said
            writer.close()
        task.cancel()  # whoever ends it for good need not wait
        async with asyncio.timeout(60):
            await asyncio.wait([task])
        assert task.cancelled()


async def test_a_taken_port_is_an_error_at_once() -> None:
    async with _serving(Cluster()) as (port, _):
        with pytest.raises(OSError):
            await WebhookServer(create_app(handlers(Cluster())), host="127.0.0.1", port=port).run()
