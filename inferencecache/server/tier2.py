"""The probe's way through a tier-2 store that speaks Redis (spec 06 §4.4, stage t2).

It writes a small value where no engine looks, reads it back and removes it, so it proves that the store answers, takes
data and returns it. It says nothing about an engine's own connection to it.
"""

from __future__ import annotations

from typing import Final

from inferencecache.server.store.settings import StoreSettings
from inferencecache.server.store.stream import connect

_SECONDS: Final = 2.0
_EXPIRY_SECONDS: Final = 60
"""For a value whose removal was prevented."""


class RedisTier2Prober:
    """Puts and gets in the one store that `--probe-t2-store` names, whichever backend is probed."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings

    async def put(self, backend: str, key: bytes, payload: bytes) -> None:
        """Store `payload`. Raises what the store or the way to it does."""
        connection = await connect(self._settings)
        try:
            await connection.call(("SET", _name(backend, key), payload, "EX", _EXPIRY_SECONDS), within=_SECONDS)
        finally:
            connection.close()

    async def get(self, backend: str, key: bytes) -> bytes | None:
        """What was stored, which is then removed. Raises what the store or the way to it does."""
        connection = await connect(self._settings)
        try:
            name = _name(backend, key)
            value, _ = await connection.call(("GET", name), ("DEL", name), within=_SECONDS)
        finally:
            connection.close()
        return value if isinstance(value, bytes) else None


def _name(backend: str, key: bytes) -> str:
    return f"{{inferencecache}}:probe:{backend}:{key.hex()}"
