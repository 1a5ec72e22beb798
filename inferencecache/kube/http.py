"""HTTP exchanges with one server, over aiohttp's connection pool but without its session.

A session readies each request for the open Web: cookies, redirects, traces, a task that writes the body. That costs
more than all else a reconciler does for a change, and an API server needs none of it. Here a request is one write, and
an answer is what the pool's parser makes of what comes back. Connecting, TLS, proxies, keep-alive, parsing and
decompression stay aiohttp's. Time limits are the caller's, who cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage
from yarl import URL

_UNLIMITED: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)


class Answer:
    """An answer whose head has come; `content` streams its body. Holds a connection until it is closed."""

    def __init__(self, connection: Connection, message: RawResponseMessage, content: aiohttp.StreamReader) -> None:
        self.status = message.code
        self.headers: Mapping[str, str] = message.headers
        self.content = content
        self._connection = connection

    async def read(self) -> bytes:
        """The whole body."""
        return await self.content.read()

    def close(self) -> None:
        """Give the connection back to the pool, or cut it if the body was not read to its end."""
        if self.content.at_eof():
            self._connection.release()
        else:
            self._connection.close()


class HttpPool:
    """Sends requests to the server at `url` over pooled connections, directly or through `proxy`."""

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        url: str,
        *,
        proxy: str | None = None,
        proxy_headers: Mapping[str, str] | None = None,
        server_hostname: str | None = None,
    ) -> None:
        self._connector = connector
        # What connections are made and found by. It is never sent itself; its headers begin those of each request.
        self._prototype = aiohttp.ClientRequest(
            "GET",
            URL(url),
            loop=asyncio.get_running_loop(),
            proxy=URL(proxy) if proxy else None,
            proxy_headers=proxy_headers,
            server_hostname=server_hostname,
        )
        # A proxy that does not tunnel has to be told where the request goes.
        whole = proxy is not None and not self._prototype.is_ssl()
        self._prefix = (url if whole else URL(url).raw_path).rstrip("/")

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        idle_limit: float | None = None,
        last_check: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a request for `target`, an encoded path with its query, and wait for the head of the answer.

        A body in which nothing comes for `idle_limit` seconds ends in an error. `last_check` is called once there is a
        connection, right before the request leaves; what it raises keeps it from leaving. Raises `aiohttp.ClientError`
        and `OSError`, and `ValueError` for a line break in what goes into the head.
        """
        connection = await self._connector.connect(self._prototype, [], _UNLIMITED)
        try:
            # Connecting may add a header of the proxy's to those of the prototype.
            request = self._head(method, target, headers, body) + (body or b"")
            if last_check is not None:
                last_check()
            message, content = await _exchange(connection, request, idle_limit)
        except BaseException:
            connection.close()
            raise
        return Answer(connection, message, content)

    def _head(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {self._prefix}{target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._prototype.headers.items() if name not in headers]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines)
        if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1:
            raise ValueError(f"{method} {target!r}: a line break in the path or in a header")
        return f"{head}\r\n\r\n".encode()


async def _exchange(
    connection: Connection, request: bytes, idle_limit: float | None
) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True, read_timeout=idle_limit)
    transport.write(request)
    message, content = await protocol.read()
    while message.code < 200:  # "continue" and its like announce the answer
        message, content = await protocol.read()
    return message, content
