"""The store, as far as the shared log uses it: one stream, one hash, and a handful of commands.

Two connections: reading waits for news in the store, which would hold up everything else on the same one.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inferencecache.server.store.records import DOCUMENT, Batch, encode
from inferencecache.server.store.resp import Argument, Connection, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from inferencecache.server.store.settings import StoreSettings

LOG: Final = "{inferencecache}:log"
"""The stream. The braces keep it and the documents together in a store that spreads its keys by hash."""

DOCUMENTS: Final = "{inferencecache}:documents"
"""A hash with the newest body of each document, for servers that start after the log forgot it."""

FAILURES: Final = (StoreError, OSError)
"""What everything here raises when the store does not answer, or not as it should."""

_CREATED: Final = "created"
"""A consumer group with no consumers. Making it makes the stream, and only one server can make it."""

_BLOCK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 2.0


class Position(NamedTuple):
    """A place in the stream: milliseconds of the store's clock, and a number among the entries of that millisecond."""

    milliseconds: int
    number: int

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.number}"


START: Final = Position(0, 0)


@asynccontextmanager
async def open_stream(settings: StoreSettings) -> AsyncIterator[LogStream]:
    """The store, connected and logged in to; disconnected at the end. Raises `FAILURES`, within seconds."""
    reading = await connect(settings)
    try:
        writing = await connect(settings)
        try:
            yield LogStream(reading, writing)
        finally:
            writing.close()
    finally:
        reading.close()


class LogStream:
    """The commands. All raise `FAILURES`, within seconds, and are of no more use then."""

    def __init__(self, reading: Connection, writing: Connection) -> None:
        self._reading = reading
        self._writing = writing

    async def create(self) -> bool:
        """Make the stream unless there is one; whether this call made it."""
        try:
            await self._do("XGROUP", "CREATE", LOG, _CREATED, "0", "MKSTREAM")
        except StoreError as error:
            if str(error).startswith("BUSYGROUP"):
                return False
            raise
        return True

    async def exists(self) -> bool:
        """Whether there is a stream."""
        return bool(await self._do("EXISTS", LOG))

    async def end(self) -> Position:
        """The newest entry there ever was in the stream, which must exist."""
        return _position(_pairs(await self._do("XINFO", "STREAM", LOG))[b"last-generated-id"])

    async def append(self, batch: Batch) -> bool:
        """Add `batch` and keep its documents, all or nothing. False: there is no stream, and nothing was added."""
        documents = [record for record in batch.records if record.kind == DOCUMENT]
        *_, results = await self._writing.call(
            ("MULTI",),
            # Never makes the stream: a log that vanished is to be noticed, and written anew by one server.
            ("XADD", LOG, "NOMKSTREAM", "*", *chain.from_iterable(encode(batch).items())),
            *(("HSET", DOCUMENTS, document.name, document.body) for document in documents),
            ("EXEC",),
            within=_ANSWER_SECONDS,
        )
        assert isinstance(results, list)
        for result in results:
            if isinstance(result, StoreError):
                raise result
        return results[0] is not None

    async def read(self, after: Position, count: int) -> Sequence[tuple[Position, Mapping[bytes, bytes]]]:
        """Up to `count` entries after that one; waits for the first a second at most."""
        block_ms = int(_BLOCK_SECONDS * 1000)
        (reply,) = await self._reading.call(
            ("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", LOG, str(after)),
            within=_BLOCK_SECONDS + _ANSWER_SECONDS,
        )
        entries: Any = reply[0][1] if reply else ()  # type: ignore[index]
        return [(_position(entry_id), _pairs(fields)) for entry_id, fields in entries]

    async def documents(self) -> dict[str, bytes]:
        """The newest body of every document by name."""
        stored = _pairs(await self._do("HGETALL", DOCUMENTS))
        return {name.decode(errors="replace"): body for name, body in stored.items()}

    async def trim(self, *, until_ms: int, max_bytes: int) -> None:
        """Forget, about, what is older than `until_ms` of the store's clock, and more if the rest is too large."""
        await self._do("XTRIM", LOG, "MINID", "~", max(until_ms, 0))
        size = await self._do("MEMORY", "USAGE", LOG) or 0
        if size > max_bytes:
            length = await self._do("XLEN", LOG)
            await self._do("XTRIM", LOG, "MAXLEN", "~", length * max_bytes // size)

    async def _do(self, *command: Argument) -> Any:
        (reply,) = await self._writing.call(command, within=_ANSWER_SECONDS)
        return reply


async def connect(settings: StoreSettings) -> Connection:
    """A connection to the store, logged in to. Raises `FAILURES`, within seconds."""
    connection = await Connection.open(settings.host, settings.port, tls=_tls(settings), within=_CONNECT_SECONDS)
    try:
        password = settings.password_file.read_text().strip() if settings.password_file else settings.password
        if password:
            credentials = (settings.username, password) if settings.username else (password,)
            await connection.call(("AUTH", *credentials), within=_ANSWER_SECONDS)
        if settings.database:
            await connection.call(("SELECT", settings.database), within=_ANSWER_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection


def _tls(settings: StoreSettings) -> ssl.SSLContext | None:
    if not settings.tls:
        return None
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context


def _pairs(flat: Sequence[bytes]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _position(entry_id: bytes) -> Position:
    milliseconds, _, number = entry_id.partition(b"-")
    return Position(int(milliseconds), int(number))
