"""The serving certificate of the gRPC port, read anew when its file changes (spec 06 §4.6).

The check is part of each handshake, so a renewed certificate is served from the next connection on and nothing has to
run in between. A pair that cannot be loaded is told once and tried again at each handshake; the last good one serves.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import structlog

from inferencecache.server.rpc.listener import ALPN

_log = structlog.get_logger(__name__)


class TlsError(Exception):
    """A certificate and its key cannot be loaded; the message names the files."""


class ServingPair:
    """A certificate and its key in two files.

    `context` is what a listener is given; it stays the same while the pair changes.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair. Raises `TlsError`."""
        self._certificate = certificate
        self._key = key
        self._modified = self._modified_ns()
        self._complaint = ""
        self._current = self._load()
        self.context: Final = self._load()
        self.context.sni_callback = self._on_handshake

    def _on_handshake(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called once per handshake, also for clients that name no server."""
        self._refresh()
        connection.context = self._current

    def _refresh(self) -> None:
        try:
            modified = self._modified_ns()
            if modified == self._modified:  # any other is another file, an older one too: clocks are set back
                return
            self._current = self._load()
        except TlsError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("grpc_tls_reload", error=self._complaint)
            return
        self._modified, self._complaint = modified, ""
        _log.info("grpc_tls_reload", certificate=str(self._certificate))

    def _modified_ns(self) -> int:
        try:
            return self._certificate.stat().st_mtime_ns
        except OSError as error:
            raise TlsError(f"cannot read {self._certificate}: {error.strerror}") from error

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(ALPN)
        try:
            context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(f"cannot load {self._certificate} with {self._key}: {error}") from error
        return context
