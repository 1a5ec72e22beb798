"""Several servers, one history: a log in Redis or Valkey that each of them appends to and replays.

The index stays in memory, so a lookup costs what it costs with one server. What changes is how it is fed. A server that
accepts a report, an event or a document appends it to the log, and every server, the accepting one included, applies
the log in its order. All of them therefore hold the same, whichever of them a producer talks to, and a server that
starts reads the log from its beginning.

*Live*, an accepted record is applied when it comes back from the log; only then is it acknowledged. When the store does
not answer, the server is *degraded*: lookups go on from memory, records are applied at once and kept, and when the
store is back they are appended. They are then applied a second time, in the log's order, which makes a server that went
its own way agree with the others again. While it is still reading the log's past, a server is *warming* and accepts the
same way as in an outage.

The log is trimmed: what is older than the longest TTL holds nothing alive. A store that lost the log (emptied,
replaced, restarted without persistence) gets it anew: one server creates the stream, the store lets it be exactly one,
and that server appends what it holds. So does one whose buffer overflowed in an outage. Nothing here is precious. A
record that is lost costs a few misses, or hints at a block that is gone, until producers report again or the TTL ends
it; every such loss is counted.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from enum import StrEnum
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from inferencecache.server.store.history import History
from inferencecache.server.store.metrics import StoreMetrics
from inferencecache.server.store.outbox import Entry, Outbox
from inferencecache.server.store.records import DOCUMENT, KINDS, Batch, Record, UnreadableEntry, decode
from inferencecache.server.store.settings import StoreSettings
from inferencecache.server.store.stream import FAILURES, START, LogStream, Position, open_stream

_BUFFER_BYTES: Final = 64 << 20
_LOG_BYTES: Final = 256 << 20
_WARM_SECONDS: Final = 30.0

_BATCH_RECORDS: Final = 256
_BATCH_BYTES: Final = 256 << 10
_WINDOW_BYTES: Final = 4 << 20
"""What may be on its way or be dumped ahead, so that a backlog neither floods the store nor looks like a stall."""

_READ_ENTRIES: Final = 64
_TURN_SECONDS: Final = 0.002
"""After applying records for that long, lookups get their turn."""

_STALL_SECONDS: Final = 5.0
_TEND_SECONDS: Final = 1.0
_TRIM_SECONDS: Final = 30.0
_RETENTION_SLACK_SECONDS: Final = 60.0
_MIN_DELAY_SECONDS: Final = 0.1
_MAX_DELAY_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class State(StrEnum):
    """How a server stands to the log; the values are what `/readyz` tells."""

    WARMING = "warming"
    LIVE = "live"
    DEGRADED = "degraded"


class _SessionOver(Exception):
    """The store answers, but not as the log that this session began with."""


class SharedLog:
    """One server's end of the log. All methods belong to one event loop, that of the index."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        apply: Callable[[Record], None],
        dump: Callable[[], Iterable[Record]],
        retention_seconds: Callable[[], float],
        registry: CollectorRegistry,
        buffer_bytes: int = _BUFFER_BYTES,
        log_bytes: int = _LOG_BYTES,
        warm_seconds: float = _WARM_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            settings: where the store is.
            apply: takes one record into this server's index or documents; never raises.
            dump: the whole index as records, walked while the index changes; for a log that is written anew.
            retention_seconds: the longest TTL in force: so much of the past the log must keep.
            registry: where the metrics go.
            buffer_bytes: what may wait for the store.
            log_bytes: what the log may take in the store, about.
            warm_seconds: how long this server may be `WARMING`, counted from `run`.
            monotonic: a clock in seconds.
        """
        self._settings = settings
        self._apply_here = apply
        self._dump = dump
        self._retention_seconds = retention_seconds
        self._log_bytes = log_bytes
        self._warm_seconds = warm_seconds
        self._monotonic = monotonic
        self._origin = uuid.uuid4().hex
        self._outbox = Outbox(buffer_bytes)
        self._metrics = StoreMetrics(registry, pending=lambda: len(self._outbox))
        self._live = False
        self._warm_until: float | None = None
        self._outage_told = False
        self._position = START
        self._history = History()
        self._documents: dict[str, bytes] = {}
        self._documents_as_of = START
        # The log lacks something this server holds, so this server has to write all it holds.
        self._incomplete = False
        self._seeding: Iterator[Record] | None = None
        self._turn_ends = 0.0
        # Set when there is more to send, and when what is on its way got less.
        self._pushed = asyncio.Event()
        self._returned = asyncio.Event()

    @property
    def state(self) -> State:
        """How this server stands to the log now."""
        if self._live:
            return State.LIVE
        if self._warm_until is None or self._monotonic() < self._warm_until:
            return State.WARMING
        return State.DEGRADED

    def accept(self, record: Record) -> asyncio.Future[None] | None:
        """Take `record` for all servers.

        Returns:
            What is done when the record is in the log and in this server's index, after all that were accepted before
            it; None if it is in this index already and goes into the log as soon as that can be.
        """
        if record.kind == DOCUMENT and self._in_force(record):
            return None
        if not self._live:
            self._apply(record)
            self._push(record, applied=True)
            return None
        entry = self._push(record, applied=False)
        entry.waiter = asyncio.get_running_loop().create_future()
        return entry.waiter

    async def run(self) -> None:
        """Keep to the log until cancelled: connect, and connect again whenever the store went away."""
        self._warm_until = self._monotonic() + self._warm_seconds
        delay = _MIN_DELAY_SECONDS
        try:
            while True:
                reason = await self._session_and_its_end()
                if self._live:
                    delay = _MIN_DELAY_SECONDS
                self._fall_back(reason)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, _MAX_DELAY_SECONDS)
        finally:
            self._live = False
            self._release_all()

    async def _session_and_its_end(self) -> Exception:
        try:
            async with open_stream(self._settings) as stream:
                await self._session(stream)
        except (*FAILURES, _SessionOver) as reason:
            return reason
        except Exception as bug:
            # Replies that make no sense, or an error of ours: lookups go on without the store all the same.
            _log.exception("index_store_session_failed", store=self._settings.address)
            return bug
        raise AssertionError("a session only ends by failing")

    async def _session(self, stream: LogStream) -> None:
        self._incomplete |= await stream.create()
        end = await stream.end()
        if end < self._position:
            # Another log, or a younger one; what of it was met before is known by its numbers.
            self._position = START
        await self._load_documents(stream, end)
        while self._position < end and await self._read(stream):
            pass
        self._outbox.rewind()
        if self._incomplete:
            self._incomplete = False
            self._seeding = self._everything()
        self._go_live()
        await _side_by_side(self._follow(stream), self._send(stream), self._seed(), self._tend(stream))

    def _go_live(self) -> None:
        self._live = True
        self._warm_until = 0.0
        self._metrics.up.set(1)
        self._outage_told = False
        _log.info("index_store_live", store=self._settings.address, pending=len(self._outbox))

    def _fall_back(self, reason: Exception) -> None:
        self._live = False
        self._metrics.up.set(0)
        self._release_all()
        if not self._outage_told:
            self._outage_told = True
            _log.warning("index_store_lost", store=self._settings.address, reason=str(reason) or type(reason).__name__)

    # What goes into the log.

    def _in_force(self, document: Record) -> bool:
        """Whether it is the newest of its name, and no other is on its way to become that."""
        coming = any(entry.record.name == document.name for entry in self._outbox)
        return not coming and self._documents.get(document.name) == document.body

    def _push(self, record: Record, *, applied: bool) -> Entry:
        entry, dropped = self._outbox.push(record, applied=applied)
        for old in dropped:
            self._metrics.overflowed.inc()
            self._release(old)
            self._incomplete = True
        self._pushed.set()
        return entry

    async def _send(self, stream: LogStream) -> None:
        while True:
            while entries := self._outbox.take(_BATCH_RECORDS, _BATCH_BYTES, self._monotonic()):
                await self._append(stream, entries)
                await self._window()
            self._pushed.clear()
            await self._pushed.wait()

    async def _append(self, stream: LogStream, entries: list[Entry]) -> None:
        batch = Batch(self._origin, entries[0].sequence, [entry.record for entry in entries])
        if not await stream.append(batch):
            raise _SessionOver("the log is gone from the store")

    async def _window(self) -> None:
        while self._outbox.sent_size > _WINDOW_BYTES:
            self._returned.clear()
            await self._returned.wait()

    async def _seed(self) -> None:
        """Write what this server holds into a log that lacks it; an interrupted walk goes on in the next session."""
        while self._seeding is not None:
            record = next(self._seeding, None)
            if record is None:
                self._seeding = None
                return
            self._push(record, applied=True)
            await asyncio.sleep(0)
            while self._outbox.size > _WINDOW_BYTES:
                self._returned.clear()
                await self._returned.wait()

    def _everything(self) -> Iterator[Record]:
        for name, body in tuple(self._documents.items()):
            yield Record(DOCUMENT, body, name)
        yield from self._dump()

    # What comes out of the log.

    async def _follow(self, stream: LogStream) -> None:
        while True:
            await self._read(stream)

    async def _read(self, stream: LogStream) -> int:
        entries = await stream.read(self._position, _READ_ENTRIES)
        for at, fields in entries:
            try:
                batch = decode(fields)
            except UnreadableEntry:
                self._metrics.unreadable.inc()
            else:
                await self._meet(batch, at)
            self._position = at
        return len(entries)

    async def _meet(self, batch: Batch, at: Position) -> None:
        skip, gone = self._history.news(batch)
        if gone:
            self._metrics.gone.inc(gone)
            _log.warning("index_store_records_missed", store=self._settings.address, origin=batch.origin, records=gone)
        for sequence, record in enumerate(batch.records[skip:], batch.sequence + skip):
            if record.kind not in KINDS:
                self._metrics.unreadable.inc()
            elif record.kind != DOCUMENT or at > self._documents_as_of:
                self._apply(record)
            self._metrics.applied.inc()
            self._history.meet(batch.origin, sequence)
            if batch.origin == self._origin:
                self._met_own(sequence)
            if self._monotonic() > self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = self._monotonic() + _TURN_SECONDS

    def _met_own(self, sequence: int) -> None:
        entry, lost = self._outbox.met(sequence)
        if entry is not None:
            entry.settle()
        for missing in lost:
            # The log lost it after taking it. Its number is spent: others would take it for a record they have met.
            self._push(missing.record, applied=missing.applied).waiter = missing.waiter
        self._returned.set()

    async def _load_documents(self, stream: LogStream, end: Position) -> None:
        """Take the newest documents, in place of those the log up to `end` tells of."""
        own = {entry.record.name for entry in self._outbox}
        stored = await stream.documents()
        self._documents_as_of = end
        for name, body in stored.items():
            if name not in own and self._documents.get(name) != body:
                self._apply(Record(DOCUMENT, body, name))

    def _apply(self, record: Record) -> None:
        if record.kind == DOCUMENT:
            self._documents[record.name] = record.body
        self._apply_here(record)

    def _release(self, entry: Entry) -> None:
        """Nobody waits for the log any longer: the record counts here and now."""
        if not entry.applied:
            entry.applied = True
            self._apply(entry.record)
        entry.settle()

    def _release_all(self) -> None:
        for entry in self._outbox:
            self._release(entry)

    # The log itself.

    async def _tend(self, stream: LogStream) -> None:
        trim_at = self._monotonic()
        while True:
            now = self._monotonic()
            since = self._outbox.waiting_since
            if since is not None and now - since > _STALL_SECONDS:
                raise _SessionOver("what was appended does not come back")
            if now >= trim_at:
                await self._trim(stream)
                trim_at = now + _TRIM_SECONDS
            elif not await stream.exists():
                raise _SessionOver("the log is gone from the store")
            await asyncio.sleep(_TEND_SECONDS)

    async def _trim(self, stream: LogStream) -> None:
        end = await stream.end()
        if end < self._position:
            raise _SessionOver("the store went back to an older log")
        retention_ms = int((self._retention_seconds() + _RETENTION_SLACK_SECONDS) * 1000)
        await stream.trim(until_ms=end.milliseconds - retention_ms, max_bytes=self._log_bytes)


async def _side_by_side(*jobs: Coroutine[None, None, None]) -> None:
    """Do `jobs` until one of them fails; all have ended when its error is raised.

    A task group would do, but for one thing: there, an error that meets a cancellation takes its place, and this loop
    would go on although its server stops.
    """
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
