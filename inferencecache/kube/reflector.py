"""Follows one collection of the API server: a list in pages, then a watch that resumes where the last one ended.

The place in the collection's history is a resourceVersion. Every event and every bookmark moves it on, so that a watch
that ends, is cut, or falls silent goes on at the newest version seen (decision F7). Only when the server no longer
knows that version (410, as a status or inside the stream) is the collection listed again; what the new list does not
hold has been deleted meanwhile, and the sink is told so.

A list is handed over page by page, so that neither the raw pages nor a second copy of the content pile up in memory. An
object that does not fit its view is reported, counted, and dropped: an older copy would be a lie.

A server in trouble is asked again after a jittered back-off of this reflector's own, from 0.8 to 30 seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog
from prometheus_client import Counter

from inferencecache.kube.client import PAGE_SIZE, Client, Labels
from inferencecache.kube.codec import decoder_for, name_in
from inferencecache.kube.errors import ApiError, DecodeError, Gone, KubeError, NotFound, TransportError, api_error
from inferencecache.kube.resource import K, Key, Kind, path_of

log = structlog.get_logger(__name__)

LISTS: Final = Counter("reflector_lists_total", "Complete lists made.", ["resource"])
WATCHES: Final = Counter("reflector_watches_total", "Watches started.", ["resource"])
FAILURES: Final = Counter(
    "reflector_failures_total",
    "Lists and watches that failed, by error type.",
    ["resource", "error"],
)
UNDECODABLE: Final = Counter(
    "reflector_undecodable_objects_total",
    "Objects dropped because they do not fit their view.",
    ["resource"],
)

_RESUMABLE: Final = frozenset({401, 403, 429, 500, 502, 503})
"""Refusals of a watch that say nothing about the version it asked for; after any other, the collection is listed."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient a reflector is. The defaults suit a real cluster; tests shorten them."""

    idle_limit: timedelta = timedelta(seconds=90)
    """A watch without event or bookmark for this long is cut; API servers send a bookmark about once a minute."""
    shortest_watch: timedelta = timedelta(minutes=5)
    longest_watch: timedelta = timedelta(minutes=10)
    first_pause: timedelta = timedelta(seconds=0.8)
    longest_pause: timedelta = timedelta(seconds=30)
    healthy_after: timedelta = timedelta(minutes=2)
    """So long without a failure, and the next pause is the first again."""

    def watch_seconds(self) -> float:
        """How long the server shall keep the next watch open; random, so that informers do not reconnect together."""
        return random.uniform(self.shortest_watch.total_seconds(), self.longest_watch.total_seconds())


DEFAULT_TIMING: Final = Timing()


class Backoff:
    """Pauses that double from `first` to `longest` and start over after a healthy while."""

    def __init__(self, timing: Timing) -> None:
        self._first = timing.first_pause.total_seconds()
        self._longest = timing.longest_pause.total_seconds()
        self._healthy_after = timing.healthy_after.total_seconds()
        self._next = self._first
        self._last_failure: float | None = None

    def pause(self, now: float) -> float:
        """Seconds to wait after a failure at `now` (monotonic): between half of the current step and all of it."""
        if self._last_failure is not None and now - self._last_failure - self._next >= self._healthy_after:
            self._next = self._first
        self._last_failure = now
        step = self._next
        self._next = min(step * 2, self._longest)
        return step * random.uniform(0.5, 1.0)


K_contra = TypeVar("K_contra", bound=Kind, contravariant=True)


class Sink(Protocol[K_contra]):
    """Where a reflector delivers what it learns. All methods are called on the event loop and must not block."""

    def put(self, obj: K_contra) -> None:
        """An object exists as given. May raise `DecodeError` for one it cannot hold."""

    def remove(self, key: Key) -> None:
        """An object does not exist, or exists in a form nobody can read."""

    def known(self) -> list[Key]:
        """The keys of what the sink holds."""

    def listed(self) -> None:
        """The content is complete as of now."""

    def absent(self) -> None:
        """The server does not serve this kind (optional kinds only)."""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Frame(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_frame = msgspec.json.Decoder(_Frame)
_versioned = msgspec.json.Decoder(_Versioned)
_status = msgspec.json.Decoder(_Status)


def _version_in(raw: msgspec.Raw) -> str:
    return _versioned.decode(raw).metadata.resource_version


class Reflector(Generic[K]):
    """Keeps a sink in step with one collection for as long as `run` runs."""

    def __init__(
        self,
        client: Client,
        kind: type[K],
        sink: Sink[K],
        *,
        namespace: str = "",
        labels: Labels = None,
        fields: str = "",
        optional: bool = False,
        timing: Timing = DEFAULT_TIMING,
        page_size: int = PAGE_SIZE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._kind = kind
        self._sink = sink
        self._selection: dict[str, Any] = {"namespace": namespace, "labels": labels, "fields": fields}
        self.optional = optional
        self._timing = timing
        self._page_size = page_size
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._decode = decoder_for(kind)
        self._path = path_of(kind.resource, namespace)
        self._name = kind.resource.plural + ("." + kind.resource.group if kind.resource.group else "")
        self._version = ""
        self._attempted = float("inf")
        self._down = True
        self.heard = float("-inf")
        self.failure: Exception | None = None

    def connected(self, now: float) -> bool:
        """Whether the stream is open, as far as can be known at `now` (monotonic).

        After a failure that is known only with the first word of the new stream, or when the server has neither refused
        nor let the attempt fail for longer than connecting may take.
        """
        return not self._down or now - self._attempted > self._client.timeout.total_seconds()

    async def run(self) -> None:
        """Follow the collection until cancelled. Errors of the server, the network and the data are lived with."""
        backoff = Backoff(self._timing)
        while True:
            pause = 0.0
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except NotFound as error:
                self._version = ""
                if self.optional:
                    self._absent()
                else:
                    self._failed(error)
                pause = backoff.pause(self._clock())
            except Exception as error:  # a follower that dies would leave a stale cache behind
                if not isinstance(error, KubeError):
                    self._version = ""  # whatever it is, it must not meet the same event for ever
                self._failed(error)
                wish = error.retry_after if isinstance(error, ApiError) else None
                pause = max(backoff.pause(self._clock()), wish or 0.0)
            if pause:
                await asyncio.sleep(pause)

    async def _list(self) -> None:
        missing = set(self._sink.known())
        token = ""
        version = ""
        self._attempted = float("inf")
        while True:
            page = await self._client.list_page(
                self._kind, **self._selection, limit=self._page_size, continue_token=token
            )
            self._hear()
            for obj in page.items:
                self._put(obj)
                missing.discard(Key.of(obj))
            for key, error in page.broken:
                self._undecodable(key, error)
                missing.discard(key)
            version = page.resource_version
            token = page.continue_token
            if not token:
                break
        for key in missing:
            self._sink.remove(key)
        self._version = version
        LISTS.labels(self._name).inc()
        self._sink.listed()
        self.failure = None

    async def _watch(self) -> None:
        """One watch, until the server ends it as it was asked to."""
        WATCHES.labels(self._name).inc()
        self._attempted = started = self._clock()
        seconds = self._timing.watch_seconds()
        frames = self._client.watch(
            self._kind.resource,
            **self._selection,
            resource_version=self._version,
            timeout_seconds=round(seconds),
            idle_limit=self._timing.idle_limit,
        )
        nothing_came = True
        try:
            async with aclosing(frames):  # type: ignore[type-var]  # it is an async generator
                async for frame in frames:
                    nothing_came = False
                    self._hear()
                    self._take(frame)
        except ApiError as refusal:
            if refusal.status not in _RESUMABLE:
                self._version = ""
            raise
        except DecodeError:
            self._version = ""
            raise
        if nothing_came and self._clock() - started < min(1.0, seconds / 2):
            raise TransportError(f"watch {self._path}: the server ended it at once and without a word")

    def _take(self, frame: bytes) -> None:
        try:
            event = _frame.decode(frame)
            if event.type == "ERROR":
                raise self._stream_error(event.object)
            if event.type in ("ADDED", "MODIFIED"):
                version = self._take_object(event.object)
            else:
                version = _version_in(event.object)
        except msgspec.DecodeError as error:
            raise DecodeError(f"watch {self._path}: a frame is not readable: {error}") from error
        if event.type == "DELETED":
            # The name is enough, and it is there even if the rest does not fit the view.
            self._sink.remove(name_in(event.object))
        self._version = version or self._version

    def _take_object(self, raw: msgspec.Raw) -> str:
        """Deliver an object; returns its version, which is read from the raw document only if the view cannot tell."""
        try:
            obj = self._decode(raw)
        except DecodeError as error:
            version = _version_in(raw)
            self._undecodable(name_in(raw), error)
            return version
        self._put(obj)
        return obj.metadata.resource_version

    def _stream_error(self, raw: msgspec.Raw) -> ApiError:
        return api_error(f"watch {self._path}", _status.decode(raw).code or 500, bytes(raw))

    def _put(self, obj: K) -> None:
        try:
            self._sink.put(obj)
        except DecodeError as error:
            self._undecodable(Key.of(obj), error)

    def _undecodable(self, key: Key, error: Exception) -> None:
        UNDECODABLE.labels(self._name).inc()
        log.error("object skipped", resource=self._name, namespace=key.namespace, name=key.name, error=str(error))
        self._sink.remove(key)

    def _hear(self) -> None:
        self.heard = self._clock()
        self._down = False
        self.failure = None

    def _absent(self) -> None:
        self.heard = self._clock()
        self._down = True
        self._attempted = float("inf")
        for key in self._sink.known():
            self._sink.remove(key)
        self._sink.absent()

    def _failed(self, error: Exception) -> None:
        FAILURES.labels(self._name, type(error).__name__).inc()
        self._down = True
        self._attempted = float("inf")
        self.failure = error
        if isinstance(error, Gone):
            log.info("listing again", resource=self._name, error=str(error))
        elif isinstance(error, KubeError):
            log.warning("list or watch failed", resource=self._name, error=str(error))
        else:
            log.error("list or watch failed unexpectedly", resource=self._name, exc_info=error)
