"""Certificates are renewed in time, and no handshake ever fails over it."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from inferencecache.kube import certificates, pki
from inferencecache.kube.certificates import (
    Authority,
    ServingCertificate,
    ca_bundle_patch,
    due,
    read_files,
    watch_files,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ["webhook.system.svc", "127.0.0.1"]


def test_over_three_years_what_is_served_was_always_trusted_an_hour_earlier() -> None:
    authority = due(None, HOSTS, now=NOW)
    served, trusted, now = {authority.serving}, {authority.ca.certificate}, NOW
    while now < NOW + timedelta(days=3 * 365):
        before, now = authority, now + timedelta(hours=12)
        authority = due(before, HOSTS, now=now)
        leaf = authority.serving.x509
        assert leaf.not_valid_after_utc > now + timedelta(days=20)
        if authority.serving != before.serving:  # served anew: its issuer must have been in the bundle before
            assert any(pki.is_issued_by(leaf, ca) for ca in pki.split(before.bundle))
        assert any(pki.is_issued_by(leaf, ca) for ca in pki.split(authority.bundle))
        assert all(ca.not_valid_after_utc > now for ca in pki.split(authority.bundle))
        assert due(authority, HOSTS, now=now) == authority  # nothing is ever due twice
        served.add(authority.serving)
        trusted.add(authority.ca.certificate)
    assert 18 <= len(served) <= 24
    assert len(trusted) == 5


def test_new_host_names_and_unusable_contents_are_repaired() -> None:
    authority = due(None, HOSTS, now=NOW)
    more = due(authority, [*HOSTS, "other.system.svc"], now=NOW)
    assert pki.hosts_of(more.serving.x509) == {*HOSTS, "other.system.svc"}
    assert more.ca == authority.ca
    data = authority.data
    assert Authority.read({"data": data}) == authority
    other = due(None, HOSTS, now=NOW).data
    for name in Authority.names:
        assert Authority.read({"data": {**data, name: "bm90IHBlbQ=="}}) is None
        assert Authority.read({"data": {k: v for k, v in data.items() if k != name}}) is None
    assert Authority.read({"data": {**data, "tls.key": other["tls.key"]}}) is None
    assert Authority.read({}) is None


def test_only_differing_bundles_are_patched_and_only_where_they_were_seen() -> None:
    configuration = {
        "webhooks": [
            {"name": "a", "clientConfig": {"caBundle": "UEVN"}},
            {"name": "b", "clientConfig": {"service": {}}},
        ]
    }
    assert ca_bundle_patch(configuration, b"PEM") == [
        {"op": "test", "path": "/webhooks/1/name", "value": "b"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "UEVN"},
    ]
    assert ca_bundle_patch({}, b"PEM") == []


async def test_rotation_under_load_fails_no_handshake() -> None:
    now = datetime.now(UTC)
    authority = due(None, HOSTS, now=now)
    certificate = ServingCertificate()
    certificate.load(authority.serving)
    trust = ssl.create_default_context(cadata=authority.bundle.decode())
    serials: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        await writer.drain()
        writer.close()

    async def call(port: int, stop: asyncio.Event) -> int:
        count = 0
        while not stop.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            serials.add(writer.get_extra_info("peercert")["serialNumber"])
            writer.write(b"ping")
            assert await reader.readexactly(4) == b"ping"
            writer.close()
            count += 1
        return count

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificate.context)
    stop = asyncio.Event()
    async with server, asyncio.TaskGroup() as group:
        calls = [group.create_task(call(server.sockets[0].getsockname()[1], stop)) for _ in range(4)]
        async with asyncio.timeout(60):
            for rotations in range(10):
                while len(serials) <= rotations:  # noqa: ASYNC110 - all callers shall meet each certificate
                    await asyncio.sleep(0)
                certificate.load(pki.issue(authority.ca, HOSTS, now=now, lifetime=timedelta(days=1)))
        stop.set()
    assert sum(task.result() for task in calls) >= 10


async def test_files_are_followed_and_half_written_pairs_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(folder: Path) -> pki.Pair | None:
        nonlocal looks
        looks += 1
        return read_files(folder)

    async def looked_at() -> None:
        """Wait until the watcher is through with a look that began after now."""
        wanted = looks + 2
        async with asyncio.timeout(60):
            while looks < wanted:  # noqa: ASYNC110 - the file watcher gives no event
                await asyncio.sleep(0.001)

    monkeypatch.setattr(certificates, "read_files", counted)
    certificate = ServingCertificate()
    assert "no certificate yet" in (certificate.complaint() or "")
    ca = pki.make_ca("ca", now=datetime.now(UTC), lifetime=timedelta(days=1))
    first, second = (pki.issue(ca, HOSTS, now=datetime.now(UTC), lifetime=timedelta(days=1)) for _ in range(2))

    async def is_served(pair: pki.Pair) -> None:
        async with asyncio.timeout(60):
            while certificate._pair != pair:  # noqa: ASYNC110 - the file watcher gives no event
                await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch_files(tmp_path, certificate, period=timedelta(milliseconds=5)))
    (tmp_path / "tls.crt").write_bytes(first.certificate)
    await looked_at()
    assert not certificate.loaded
    (tmp_path / "tls.key").write_bytes(first.key)
    await asyncio.wait_for(certificate.wait_loaded(), 60)
    assert certificate.complaint() is None
    (tmp_path / "tls.crt").write_bytes(second.certificate)  # without its key yet
    await looked_at()
    assert certificate._pair == first
    (tmp_path / "tls.key").write_bytes(second.key)
    await is_served(second)
    (tmp_path / "tls.key").unlink()
    await looked_at()
    assert certificate._pair == second
    watching.cancel()
    await asyncio.wait([watching])


def pair_of(key: Any, serial: int) -> pki.Pair:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), serial).not_valid_before(now - timedelta(days=1))
    certificate = builder.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    kind = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return pki.Pair(certificate.public_bytes(pem), key.private_bytes(pem, *kind))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_last_pair_is_presented_whatever_the_type_of_its_key(version: ssl.TLSVersion) -> None:
    certificate = ServingCertificate()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.minimum_version = client.maximum_version = version
    client.set_alpn_protocols(["h2", "http/1.1"])

    async def presented(port: int) -> int:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        connection = writer.get_extra_info("ssl_object")
        writer.close()
        assert connection.selected_alpn_protocol() == "http/1.1"
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True)).serial_number

    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=certificate.context) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError):
            await presented(port)  # nothing is loaded yet
        rsa_key, ec_key = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
        for serial, key in enumerate([rsa_key, ec_key, rsa_key, ec_key, ec_key], 1):
            assert certificate.load(pair_of(key, serial))
            assert await presented(port) == serial


def test_an_unusable_pair_leaves_what_is_presented_as_it_was() -> None:
    ca = pki.make_ca("ca", now=NOW, lifetime=timedelta(days=1))
    one, other = (pki.issue(ca, HOSTS, now=NOW, lifetime=timedelta(days=1)) for _ in range(2))
    certificate = ServingCertificate()
    certificate.load(one)
    for pair in (pki.Pair(one.certificate, other.key), pki.Pair(b"x", one.key), pki.Pair(one.certificate, b"x")):
        with pytest.raises(ValueError):
            certificate.load(pair)
    assert not certificate.load(one), "it is still the one that is presented"
    with pytest.raises(ValueError, match="at least one"):
        pki.issue(ca, [], now=NOW, lifetime=timedelta(days=1))
