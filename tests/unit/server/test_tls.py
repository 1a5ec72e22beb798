"""The gRPC port's certificate follows its files (spec 06 §4.6)."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from inferencecache.kube import pki
from inferencecache.server.tls import ServingPair, TlsError


class Files:
    """A certificate and its key on disk; each writing looks a second newer."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self._at = 1_700_000_000

    def write(self, host: str) -> None:
        pair = pki.self_signed([host], now=datetime.now(UTC))
        self.key.write_bytes(pair.key)
        self.write_certificate(pair.certificate)

    def write_certificate(self, certificate: bytes) -> None:
        self.certificate.write_bytes(certificate)
        self._at += 1
        os.utime(self.certificate, (self._at, self._at))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path)
    files.write("first")
    return files


def shake_hands(pair: ServingPair, *, server_name: str | None = None, newest: ssl.TLSVersion | None = None) -> set[str]:
    """The hosts in the certificate that a client is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if newest is not None:
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=server_name)
    server = pair.context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert client.selected_alpn_protocol() == "h2"
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return pki.hosts_of(x509.load_der_x509_certificate(shown))


@pytest.mark.parametrize("server_name", [None, "anything"])
def test_a_renewed_certificate_is_shown_at_the_next_handshake(files: Files, server_name: str | None) -> None:
    pair = ServingPair(files.certificate, files.key)
    assert shake_hands(pair, server_name=server_name) == {"first"}
    files.write("second")
    assert shake_hands(pair, server_name=server_name) == {"second"}
    assert shake_hands(pair, server_name=server_name) == {"second"}


def test_a_pair_that_does_not_fit_leaves_the_last_good_one_and_is_tried_again(files: Files) -> None:
    pair = ServingPair(files.certificate, files.key)
    key = files.key.read_bytes()
    files.write("second")
    good = files.key.read_bytes()
    files.key.write_bytes(key)
    assert shake_hands(pair) == {"first"}
    files.key.write_bytes(good)  # as a writer of two files leaves them for a moment
    assert shake_hands(pair) == {"second"}


def test_a_certificate_that_is_gone_or_broken_leaves_the_last_good_one(files: Files) -> None:
    pair = ServingPair(files.certificate, files.key)
    files.certificate.unlink()
    assert shake_hands(pair) == {"first"}
    files.write_certificate(b"not a certificate")
    assert shake_hands(pair) == {"first"}
    files.write("third")
    assert shake_hands(pair) == {"third"}


def test_a_renewed_certificate_is_shown_though_a_clock_was_set_back(files: Files) -> None:
    pair = ServingPair(files.certificate, files.key)
    files.write("second")
    os.utime(files.certificate, (1_600_000_000, 1_600_000_000))
    assert shake_hands(pair) == {"second"}


def test_a_broken_certificate_is_told_once_however_many_connect(files: Files) -> None:
    pair = ServingPair(files.certificate, files.key)
    with capture_logs() as logs:
        for _ in range(2):
            files.write_certificate(b"not a certificate")
            for _ in range(3):
                shake_hands(pair)
            files.write("good")
            shake_hands(pair)
    assert [each["log_level"] for each in logs] == ["error", "info"] * 2


def test_a_pair_that_cannot_be_loaded_at_the_start_is_an_error_that_names_the_files(files: Files) -> None:
    files.key.write_bytes(b"no key")
    with pytest.raises(TlsError, match=r"tls\.crt.*tls\.key"):
        ServingPair(files.certificate, files.key)
    with pytest.raises(TlsError, match="nowhere"):
        ServingPair(files.certificate.with_name("nowhere"), files.key)


def test_nothing_older_than_tls_1_2_is_spoken(files: Files) -> None:
    pair = ServingPair(files.certificate, files.key)
    assert pair.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert shake_hands(pair, newest=ssl.TLSVersion.TLSv1_2) == {"first"}
