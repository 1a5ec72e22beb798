"""The part of the Redis protocol (RESP2) that the shared log needs: commands out, replies in, over one connection.

It is small on purpose. The usual Python client takes a second and 25 MiB to import, two hundred microseconds per record
of the log, and now and then swallows a cancellation, on which a clean stop depends. Its pools and retries are what the
log does not want, whose own answer to an outage is better. Here a connection that failed, or whose call was cancelled,
is of no more use; whoever held it opens another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final, TypeAlias

Argument: TypeAlias = bytes | str | int
Reply: TypeAlias = "bytes | int | list[Reply] | StoreError | None"

_LIMIT: Final = 1 << 20
"""Of the stream's buffer. Lines are short; long strings are read by their length, however long they are."""

_MAX_DEPTH: Final = 8


class StoreError(Exception):
    """The store refused a command; the message is its own."""


class BrokenReply(ConnectionError):
    """What came is not the protocol: there is something else behind that address."""


def encode(command: Sequence[Argument]) -> bytes:
    """`command` as it travels."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        if not isinstance(argument, bytes):
            argument = str(argument).encode()
        parts += b"$%d\r\n" % len(argument), argument, b"\r\n"
    return b"".join(parts)


async def read_reply(reader: asyncio.StreamReader, depth: int = 0) -> Reply:
    """The next reply. An error is returned, not raised, as it may stand inside an array.

    Raises:
        BrokenReply: the other side does not speak the protocol.
        EOFError: the connection ended before the reply did.
    """
    try:
        line = await reader.readuntil(b"\r\n")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return StoreError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            length = int(rest)
            if length < 0:
                return None
            return (await reader.readexactly(length + 2))[:-2]
        if kind == b"*" and depth < _MAX_DEPTH:
            length = int(rest)
            return [await read_reply(reader, depth + 1) for _ in range(length)] if length >= 0 else None
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise BrokenReply(f"not a reply of a Redis: {error}") from error
    raise BrokenReply(f"not a reply of a Redis: {line[:40]!r}")


class Connection:
    """One connection; its calls take turns. Of no more use once a call failed or was cancelled."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None, within: float) -> Connection:
        """Connect, in `within` seconds.

        Raises:
            OSError: it could not be reached; a `TimeoutError` is one.
        """
        async with asyncio.timeout(within):
            return cls(*await asyncio.open_connection(host, port, ssl=tls, limit=_LIMIT))

    async def call(self, *commands: Sequence[Argument], within: float) -> list[Reply]:
        """Send `commands` at once; their replies in order, in `within` seconds from when the turn came.

        Raises:
            StoreError: the first error among the replies.
            OSError: the connection broke, or the store did not answer in time.
        """
        async with self._turn, asyncio.timeout(within):
            try:
                self._writer.write(b"".join(map(encode, commands)))
                await self._writer.drain()
                replies = [await read_reply(self._reader) for _ in commands]
            except EOFError as error:
                raise ConnectionError("the store closed the connection") from error
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return replies

    def close(self) -> None:
        """Give the connection up, without waiting for anything."""
        self._writer.transport.abort()
