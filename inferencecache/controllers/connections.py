"""Pooled HTTP connections whose every answer comes whole, in time and no longer than expected, or not at all.

Redirects are not followed: a request, and the token in it, goes where its sender pointed it, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import aiohttp
from yarl import URL


class NoAnswer(Exception):
    """No answer came in time, or none that ends where it should; the text says why."""


class Connections:
    """Connections to any servers. Belongs to one event loop; `run` closes them when it is cancelled.

    Args:
        timeout: of a request, from resolving the name to the last byte of the answer.
        proxies: whether those of the environment are used.
    """

    def __init__(self, *, timeout: timedelta, proxies: bool) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout.total_seconds())
        self._proxies = proxies
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Keep connections for reuse until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._session is not None:
                await self._session.close()

    async def request(
        self,
        method: str,
        url: URL,
        *,
        largest: int,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        server_hostname: str | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of an answer of at most `largest` bytes.

        A body is sent as JSON. `server_hostname`: whom a certificate has to name, if not the host of the URL.
        Raises `NoAnswer`.
        """
        content_type = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._opened().request(
                method,
                url,
                data=body,
                headers={**content_type, **(headers or {})},
                allow_redirects=False,
                server_hostname=server_hostname,
            ) as answer:
                content = bytearray()
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > largest:
                        raise NoAnswer(f"the answer is longer than {largest} bytes")
                return answer.status, bytes(content)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise NoAnswer(self._why(error)) from error

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout.total:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):
            # The library's own text speaks of ssl where there is none.
            return f"cannot connect: {error.os_error.strerror or error.os_error}"
        return str(error) or type(error).__name__

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Without a limit, or requests that hang would keep others from being sent at all.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=self._proxies)
        return self._session
