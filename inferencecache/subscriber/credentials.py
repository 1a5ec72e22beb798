"""How the server knows us, and we it: a bearer token and a CA, from files that others rotate (decision D9)."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

_FRESH_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


class TokenFile:
    """Calling it gives the token in a file, read anew every few seconds; the one before while that fails."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at: float | None = None

    def __call__(self) -> str:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= _FRESH_SECONDS:
            self._read_at = now
            try:
                self._token = self._path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                _log.warning("the token file cannot be read", file=str(self._path), error=str(error))
        return self._token


def client_context(ca_file: Path | None, ca_data: str = "") -> ssl.SSLContext:
    """How to check the server's certificate: against the certificates of a file, of PEM text, or the system's CAs.

    Raises:
        OSError: the file cannot be read, or the certificates cannot.
    """
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None, cadata=ca_data or None)
    if ca_file or ca_data:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a certificate that is trusted itself need be no CA
    context.set_alpn_protocols(["h2"])
    return context
