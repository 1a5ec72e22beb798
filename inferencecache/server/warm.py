"""Starting with a peer's index instead of an empty one (`--warm-from`), for servers without a shared log.

`/dump` on the controller's port is the whole index as a file of ordinary `CacheStateUpdate` messages, each behind its
length, which is how protobuf's own tools write several messages into one file. A server that starts reads the dump of a
peer before it says that it is ready; meanwhile it answers from what it has. It does not wait for ever: with no peer to
ask, as in the first server of all, or with one that stalls, it goes on with what it got, and reports fill the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from inferencecache.server.dump import updates
from inferencecache.server.index import PrefixIndex
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheStateUpdate

INSTANCE_HEADER: Final = "Inferencecache-Instance"
"""Names the process that dumps, so that a server which reached itself through a Service can tell."""

MAX_MESSAGE_BYTES: Final = 4 << 20
WARM_SECONDS: Final = 30.0
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 2.0
_STALL_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 0.002
_MAX_LENGTH_BYTES: Final = 4
"""A length of more bytes is over any message there is."""

_log = structlog.get_logger(__name__)


class DumpError(ValueError):
    """What a peer sent is no dump."""


class PeerUnusable(Exception):
    """The peer did not give its dump."""


async def dump(index: PrefixIndex) -> AsyncIterator[bytes]:
    """The body of `/dump`, in pieces of a few milliseconds of work; the index may change in between."""
    for update in updates(index):
        message = update.SerializeToString()
        yield _length(len(message)) + message
        await asyncio.sleep(0)


async def read(pieces: AsyncIterator[bytes]) -> AsyncIterator[CacheStateUpdate]:
    """The messages of a dump that arrives in `pieces` of any size.

    Raises:
        DumpError: it is none, or ends within a message.
    """
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        at = 0
        while (frame := _frame(buffer, at)) is not None:
            start, at = frame
            try:
                yield CacheStateUpdate.FromString(bytes(buffer[start:at]))
            except DecodeError as error:
                raise DumpError(f"a message of the dump cannot be read: {error}") from error
        del buffer[:at]
    if buffer:
        raise DumpError("the dump ends within a message")


async def warm_from(
    url: str,
    report: Callable[[CacheStateUpdate], object],
    *,
    instance: str,
    token_file: Path | None = None,
    within: float = WARM_SECONDS,
    pause_seconds: float = _PAUSE_SECONDS,
) -> int:
    """Read a peer's dump into this server; gives up after a few attempts.

    Args:
        url: of the peer's `/dump`; behind a Service it may be any peer.
        report: takes each message.
        instance: names this process.
        token_file: holds the bearer token to show, if the peer wants one; read for each attempt.
        within: seconds for everything.
        pause_seconds: between two attempts.

    Returns:
        How many messages were taken.
    """
    started = time.monotonic()
    taken = 0
    try:
        async with asyncio.timeout(within):
            for attempt in range(1, _ATTEMPTS + 1):
                if attempt > 1:
                    await asyncio.sleep(pause_seconds)
                try:
                    async for update in _fetch(url, instance, token_file):
                        report(update)
                        taken += 1
                except (PeerUnusable, ValueError, OSError) as error:  # also a token file that holds no token
                    _log.warning("warm_from_failed", url=url, attempt=attempt, error=str(error) or type(error).__name__)
                else:
                    _log.info("warmed", url=url, messages=taken, seconds=round(time.monotonic() - started, 3))
                    return taken
    except TimeoutError:
        _log.warning("warm_from_timeout", url=url, messages=taken)
    return taken


async def _fetch(url: str, instance: str, token_file: Path | None) -> AsyncIterator[CacheStateUpdate]:
    import aiohttp  # only servers that warm from a peer need it

    headers = _authorization(token_file)
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=_STALL_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=headers, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                raise PeerUnusable(f"the peer answered {reply.status}: {(await reply.text())[:200].strip()}")
            if reply.headers.get(INSTANCE_HEADER) == instance:
                raise PeerUnusable("that is this server itself")
            turn_ends = time.monotonic() + _TURN_SECONDS
            async for update in read(reply.content.iter_any()):
                yield update
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + _TURN_SECONDS
    except aiohttp.ClientError as error:
        raise PeerUnusable(str(error) or type(error).__name__) from error


def _authorization(token_file: Path | None) -> dict[str, str]:
    return {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}


def _length(size: int) -> bytes:
    """A base-128 varint."""
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _frame(buffer: bytearray, at: int) -> tuple[int, int] | None:
    """Where the message begins and ends whose length starts `at`; None if it is not there as a whole yet."""
    size = shift = 0
    for number, byte in enumerate(buffer[at : at + _MAX_LENGTH_BYTES], 1):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if size > MAX_MESSAGE_BYTES:
                raise DumpError(f"a message of {size} bytes is over the limit of {MAX_MESSAGE_BYTES}")
            start = at + number
            return (start, start + size) if len(buffer) >= start + size else None
    if len(buffer) - at >= _MAX_LENGTH_BYTES:
        raise DumpError("a length of the dump makes no sense")
    return None
