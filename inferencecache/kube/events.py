"""Tells the users of an object what happened to it: events.k8s.io/v1 Events, aggregated and never in the way.

`event` notes something and returns; a background task writes it. What is said again about the same object, with the
same words and within a window, is one Event with a series: the second time starts the series at once, later ones are
counted here and written now and then, as client-go's broadcaster does.

Nothing that happens to the server can block a reconciler or grow memory: the queue is bounded, an object that talks too
much is cut short by a token bucket, failed writes are repeated with back-off a limited number of times, and whatever is
dropped is counted and logged with its text.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import structlog
from prometheus_client import Counter

from inferencecache.kube.client import Client
from inferencecache.kube.errors import AlreadyExists, KubeError, NotFound, ServerError, TooManyRequests, TransportError
from inferencecache.kube.resource import Key, Kind, Manifest, Resource, ResourceType, api_version

log = structlog.get_logger(__name__)

EVENTS: Final[Resource] = ResourceType("events.k8s.io", "v1", "Event", "events")
NOTE_BYTES: Final = 1024
"""The API server refuses a longer note."""

EventType: TypeAlias = Literal["Normal", "Warning"]

WRITTEN: Final = Counter("event_recorder_writes_total", "Events created and series updated.", ["controller"])
DROPPED: Final = Counter("event_recorder_dropped_total", "Events not written, by reason.", ["controller", "reason"])

_RETRYABLE: Final = (TransportError, ServerError, TooManyRequests)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a recorder keeps, and for how long."""

    queued: int = 1000
    """Events waiting to be written."""
    remembered: int = 4096
    """Events and objects remembered for aggregation and for the spam guard; the least recent are forgotten."""
    window: timedelta = timedelta(minutes=6)
    """The same thing said again within this time after the last is one Event."""
    series_interval: timedelta = timedelta(minutes=1)
    """How often the count of a running series is written."""
    burst: int = 25
    """New Events about one object at once..."""
    refill: timedelta = timedelta(minutes=5)
    """...and the time after which it may have one more."""
    tries: int = 12
    first_pause: timedelta = timedelta(seconds=1)
    longest_pause: timedelta = timedelta(seconds=30)
    flush: timedelta = timedelta(seconds=5)
    """What is left when the recorder is stopped has this long to be written."""


DEFAULT_LIMITS: Final = Limits()


@dataclass(slots=True, eq=False)
class _Entry:
    """One Event: as it was first said, how often it was said, and how much of that the server knows."""

    same: tuple[str, ...]
    manifest: Manifest
    last_said: float
    last_observed: str
    count: int = 1
    written: int = 0
    written_at: float = float("-inf")
    queued: bool = False
    tries: int = 0

    @property
    def key(self) -> Key:
        return Key(self.manifest["metadata"]["namespace"], self.manifest["metadata"]["name"])

    @property
    def series(self) -> dict[str, Any]:
        return {"series": {"count": self.count, "lastObservedTime": self.last_observed}} if self.count > 1 else {}


class EventRecorder:
    """Records Events in the name of one controller. `run` must run for them to be written.

    `instance` names this process among the replicas; the host name by default. `now` and `clock` give wall and
    monotonic time.
    """

    def __init__(
        self,
        client: Client,
        controller: str,
        *,
        instance: str = "",
        limits: Limits = DEFAULT_LIMITS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = (instance or socket.gethostname())[:128]
        self._limits = limits
        self._now = now
        self._clock = clock
        self._guard = _SpamGuard(limits)
        self._open: OrderedDict[tuple[str, ...], _Entry] = OrderedDict()
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._last_stamp = 0

    def event(
        self,
        regarding: Kind | Mapping[str, Any],
        type: EventType,  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Kind | Mapping[str, Any] | None = None,
    ) -> None:
        """Note that something happened to `regarding`. Never blocks and never raises for what the server may say.

        Objects are given decoded, as manifests, or as object references. `reason` is a CamelCase word that machines
        match on, `note` a sentence for people, cut to 1024 bytes; `action` says what was being done, by default the
        reason.
        """
        subject = reference(regarding)
        other = reference(related) if related is not None else None
        note = _cut(note)
        action = (action or reason)[:128]
        clock, observed = self._clock(), self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = (*_identity(subject), type, reason, action, note, *(_identity(other) if other else ()))
        entry = self._open.get(same)
        if entry is not None and clock - entry.last_said <= self._limits.window.total_seconds():
            entry.count += 1
            entry.last_said, entry.last_observed = clock, observed
            self._open.move_to_end(same)
            if entry.written == 1:
                self._enqueue(entry)
            return
        if entry is not None:
            self._close(same)
        manifest = {
            "apiVersion": api_version(EVENTS),
            "kind": EVENTS.kind,
            "metadata": {"name": self._name(subject), "namespace": subject.get("namespace") or "default"},
            "eventTime": observed,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason[:128],
            "regarding": subject,
            "note": note,
            "type": type,
        }
        if other is not None:
            manifest["related"] = other
        entry = _Entry(same, manifest, last_said=clock, last_observed=observed)
        if not self._guard.allows(_identity(subject), clock):
            self._drop(entry, "spam")
        elif len(self._queue) >= self._limits.queued:
            self._drop(entry, "queue_full")
        else:
            self._open[same] = entry
            self._enqueue(entry)
            while len(self._open) > self._limits.remembered:
                self._close(next(iter(self._open)))

    async def run(self) -> None:
        """Write what is noted until cancelled, then what is left, for a short while."""
        try:
            while True:
                self._wake.clear()
                self._sweep()
                while self._queue:
                    await self._write(self._queue[0], last_chance=False)
                await self._sleep(self._limits.series_interval.total_seconds() / 4)
        finally:
            await self._flush()

    async def _flush(self) -> None:
        for same in list(self._open):
            self._close(same)
        try:
            async with asyncio.timeout(self._limits.flush.total_seconds()):
                while self._queue:
                    await self._write(self._queue[0], last_chance=True)
        except TimeoutError:
            pass
        finally:
            while self._queue:
                self._drop(self._queue.popleft(), "stopped")

    async def _write(self, entry: _Entry, *, last_chance: bool) -> None:
        """Write the entry at the head of the queue; it leaves the queue only when its fate is known."""
        count = entry.count
        try:
            await self._send(entry)
        except _RETRYABLE as error:
            entry.tries += 1
            if entry.tries < self._limits.tries and not last_chance:
                if entry.tries == 1:
                    log.warning("event not written yet", controller=self._controller, error=str(error))
                self._queue.rotate(-1)  # if it is this one that the server cannot digest, others need not wait for it
                step = self._limits.first_pause.total_seconds() * 2 ** (entry.tries - 1)
                await asyncio.sleep(min(step, self._limits.longest_pause.total_seconds()) * random.uniform(0.5, 1))
                return
            self._leave_head(entry)
            self._drop(entry, "unreachable", error)
        except KubeError as error:
            self._leave_head(entry)
            self._drop(entry, "refused", error)
        else:
            entry.written, entry.written_at, entry.tries = count, self._clock(), 0
            WRITTEN.labels(self._controller).inc()
            self._leave_head(entry)
            if entry.count > count == 1:
                self._enqueue(entry)

    async def _send(self, entry: _Entry) -> None:
        if entry.written:
            try:
                await self._client.patch(EVENTS, entry.key, entry.series)
            except NotFound:
                # Events expire after an hour or so; a series that outlives its Event goes on in a new one.
                entry.manifest["metadata"]["name"] = self._name(entry.manifest["regarding"])
                entry.written = 0
            else:
                return
        try:
            await self._client.create({**entry.manifest, **entry.series})
        except AlreadyExists:
            # Names are unique: an attempt of ours got through though its answer did not.
            if entry.series:
                await self._client.patch(EVENTS, entry.key, entry.series)

    def _sweep(self) -> None:
        """Close what was not said again within the window, and write counts that have been waiting long enough."""
        now = self._clock()
        for same, entry in list(self._open.items()):
            if now - entry.last_said > self._limits.window.total_seconds():
                self._close(same)
            elif (
                entry.count > entry.written > 0
                and now - entry.written_at >= self._limits.series_interval.total_seconds()
            ):
                self._enqueue(entry)

    def _close(self, same: tuple[str, ...]) -> None:
        entry = self._open.pop(same)
        if entry.count > entry.written > 0:
            self._enqueue(entry)

    def _enqueue(self, entry: _Entry) -> None:
        if not entry.queued:
            entry.queued = True
            self._queue.append(entry)
            self._wake.set()

    def _leave_head(self, entry: _Entry) -> None:
        self._queue.popleft()
        entry.queued = False

    def _drop(self, entry: _Entry, reason: str, error: Exception | None = None) -> None:
        DROPPED.labels(self._controller, reason).inc()
        if self._open.get(entry.same) is entry:
            del self._open[entry.same]  # the same words may try again, as a new Event
        regarding = entry.manifest["regarding"]
        log.warning(
            "event dropped",
            why=reason,
            controller=self._controller,
            kind=regarding.get("kind", ""),
            namespace=regarding.get("namespace", ""),
            name=regarding.get("name", ""),
            reason=entry.manifest["reason"],
            note=entry.manifest["note"],
            count=entry.count,
            error=str(error) if error is not None else None,
        )

    def _name(self, subject: Mapping[str, Any]) -> str:
        self._last_stamp = max(self._last_stamp + 1, time.time_ns())
        base = subject.get("name") or subject.get("kind", "object").lower()  # a Pod under admission may have no name
        return f"{base[:230].rstrip('.-')}.{self._last_stamp:x}"

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass


class _SpamGuard:
    """A token bucket per object."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()

    def allows(self, subject: tuple[str, ...], now: float) -> bool:
        tokens, since = self._buckets.pop(subject, (float(self._limits.burst), now))
        tokens = min(self._limits.burst, tokens + (now - since) / self._limits.refill.total_seconds())
        allowed = tokens >= 1
        self._buckets[subject] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self._limits.remembered:
            self._buckets.popitem(last=False)
        return allowed


def reference(obj: Kind | Mapping[str, Any]) -> dict[str, str]:
    """The object reference of a decoded object, of a manifest, or of something that is one already."""
    if not isinstance(obj, Mapping):
        found = {
            "apiVersion": api_version(obj.resource),
            "kind": obj.resource.kind,
            "namespace": obj.metadata.namespace,
            "name": obj.metadata.name,
            "uid": obj.metadata.uid,
            "resourceVersion": obj.metadata.resource_version,
        }
    else:
        names = obj.get("metadata", obj)
        found = {
            "apiVersion": obj.get("apiVersion", ""),
            "kind": obj.get("kind", ""),
            **{field: names.get(field, "") for field in ("namespace", "name", "uid", "resourceVersion")},
        }
    return {field: value for field, value in found.items() if value}


def _identity(subject: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(subject.get(field, "") for field in ("kind", "namespace", "name", "uid"))


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= NOTE_BYTES:
        return note
    return encoded[: NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"
