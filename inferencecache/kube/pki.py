"""Keys and certificates as values: made, read, judged. No files, no Secrets, no clock of its own.

Everything is ECDSA on P-256, in PEM. Certificates begin an hour before they are made, because the machine that makes
one may be ahead of the one that checks it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (or a chain, leaf first) and its private key, both PEM."""

    certificate: bytes
    key: bytes

    @property
    def x509(self) -> x509.Certificate:
        """The leaf. Raises `ValueError` if it is no certificate."""
        return x509.load_pem_x509_certificate(self.certificate)

    def check(self) -> None:
        """Raise `ValueError` unless the key is that of the certificate."""
        try:
            key = load_pem_private_key(self.key, password=None)
        except TypeError as error:
            raise ValueError("the private key is encrypted; store it without a passphrase") from error
        if key.public_key() != self.x509.public_key():
            raise ValueError("the private key is not that of the certificate")


def make_ca(common_name: str, *, now: datetime, lifetime: timedelta) -> Pair:
    """A new certificate authority, its own issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), now, now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue(ca: Pair, hosts: Sequence[str], *, now: datetime, lifetime: timedelta) -> Pair:
    """A serving certificate for host names and IP addresses. It does not outlive its CA."""
    if not hosts:
        raise ValueError("a serving certificate needs at least one host name")
    key = ec.generate_private_key(ec.SECP256R1())
    signer = load_pem_private_key(ca.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the CA's key is not an elliptic-curve key")  # noqa: TRY004 - it is the content that is wrong
    issuer = ca.x509
    end = min(now + lifetime, issuer.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pair(certificate, key)


def self_signed(hosts: Sequence[str], *, now: datetime, lifetime: timedelta = timedelta(days=365)) -> Pair:
    """A certificate nobody has reason to trust, for listeners that only want encryption."""
    return issue(make_ca("self-signed", now=now, lifetime=lifetime), hosts, now=now, lifetime=lifetime)


def is_issued_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether the signature on a certificate is that CA's."""
    try:
        certificate.verify_directly_issued_by(ca)
    except Exception:  # a wrong name, algorithm or signature each has its own exception
        return False
    return True


def hosts_of(certificate: x509.Certificate) -> set[str]:
    """The host names and IP addresses a certificate is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    }


def made_at(certificate: x509.Certificate) -> datetime:
    """When a certificate of this module was made."""
    return certificate.not_valid_before_utc + BACKDATED


def renewal_of(certificate: x509.Certificate) -> datetime:
    """When two thirds of a certificate's life are over."""
    start, end = made_at(certificate), certificate.not_valid_after_utc
    return start + (end - start) * 2 / 3


def split(bundle: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM bundle; none if it is empty. Raises `ValueError` if it is unreadable."""
    return x509.load_pem_x509_certificates(bundle) if bundle.strip() else []


def joined(certificates: Sequence[x509.Certificate]) -> bytes:
    """A PEM bundle of certificates."""
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def server_context(pair: Pair | None = None) -> ssl.SSLContext:
    """A TLS context of a listener that presents this pair; HTTP/1.1 only. Raises `ValueError` if it is not usable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if pair is None:
        return context
    pair.check()
    try:
        with _as_files(pair) as (certificate, key):
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(f"the certificate cannot be served: {error}") from error
    return context


@contextlib.contextmanager
def _as_files(pair: Pair) -> Iterator[tuple[str, str]]:
    """Paths for OpenSSL, which reads nothing else. On Linux they are memory: a key never touches a disk."""
    with contextlib.ExitStack() as stack:
        paths = []
        for content in (pair.certificate, pair.key):
            if sys.platform == "linux":
                file = stack.enter_context(os.fdopen(os.memfd_create("pem", os.MFD_CLOEXEC), "wb"))
                path = f"/proc/self/fd/{file.fileno()}"
            else:
                file = stack.enter_context(tempfile.NamedTemporaryFile("wb"))
                path = file.name
            file.write(content)
            file.flush()
            paths.append(path)
        yield paths[0], paths[1]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
