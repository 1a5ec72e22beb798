"""A local copy of one collection that tells of its changes.

An informer joins a reflector, which follows the API server, to a store, which answers questions. Handlers are plain
functions, called on the event loop in the order of the changes, after the store holds the change; they put keys into
queues and return. One that raises is reported and hurts nobody else. One that comes late is first told the content.

The content is eventually that of the server. An object that vanished while nobody watched is told as deleted; one that
was deleted and made anew meanwhile (same name, other uid) is told as both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias

import msgspec
import structlog
from prometheus_client import Counter

from inferencecache.kube.client import PAGE_SIZE, Client, Labels
from inferencecache.kube.errors import DecodeError
from inferencecache.kube.reflector import DEFAULT_TIMING, Reflector, Timing
from inferencecache.kube.resource import K, Key
from inferencecache.kube.store import IndexFunction, Store

log = structlog.get_logger(__name__)

HANDLER_FAILURES: Final = Counter("informer_handler_failures_total", "Handlers of changes that raised.", ["resource"])


@dataclass(frozen=True, slots=True)
class Change(Generic[K]):
    """What happened to one object: `old` is `None` when it is new, `new` is `None` when it is gone.

    `initial` marks the content that was there when the informer, or the handler, started.
    """

    old: K | None
    new: K | None
    initial: bool = False

    @property
    def obj(self) -> K:
        """The object as it is now, or as it last was."""
        obj = self.new if self.new is not None else self.old
        if obj is None:
            raise ValueError("a change has an old object, a new one, or both")
        return obj

    @property
    def key(self) -> Key:
        """The name of the object."""
        return Key.of(self.obj)


Handler: TypeAlias = Callable[[Change[K]], None]


class Informer(Generic[K]):
    """The objects of one kind that a selection matches.

    `transform` may shrink or replace each object before it is stored. `optional` says that the kind may be absent from
    the cluster: then `missing` is true, nothing waits for it, and it is asked for again until it appears.
    """

    def __init__(
        self,
        client: Client,
        kind: type[K],
        *,
        namespace: str = "",
        labels: Labels = None,
        fields: str = "",
        transform: Callable[[K], K] | None = None,
        optional: bool = False,
        indexes: Mapping[str, IndexFunction] | None = None,
        timing: Timing = DEFAULT_TIMING,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.kind = kind
        self._content = _Content(kind, transform)
        for name, function in (indexes or {}).items():
            self.add_index(name, function)
        self._reflector = Reflector(
            client,
            kind,
            self._content,
            namespace=namespace,
            labels=labels,
            fields=fields,
            optional=optional,
            timing=timing,
            page_size=page_size,
        )

    # --------------------------------------------------------------------------------------------------- questions

    def __len__(self) -> int:
        return len(self._content.store)

    def get(self, key: Key) -> K | None:
        """The object of that name, or `None`."""
        return self._content.store.get(key)

    def by_index(self, name: str, value: str) -> list[K]:
        """The objects whose index function gave `value`. Raises `LookupError` for an index nobody added."""
        return self._content.store.by_index(name, value)

    @property
    def synced(self) -> bool:
        """Whether a first list has been taken in whole and told to the handlers."""
        return self._content.complete

    @property
    def missing(self) -> bool:
        """Whether the server said that it does not serve this (optional) kind."""
        return self._content.missing

    @property
    def failure(self) -> Exception | None:
        """Why nothing is coming in at the moment, if that is so."""
        return self._reflector.failure

    def silent_for(self, now_monotonic: float) -> float:
        """Seconds since the last word from the server; infinite before the first.

        A quiet collection is silent, too, between two bookmarks (about a minute); see `connected`.
        """
        return now_monotonic - self._reflector.heard

    def connected(self, now_monotonic: float) -> bool:
        """Whether the watch is open, as far as can be known: a change would arrive as soon as the server sends it."""
        return self._reflector.connected(now_monotonic)

    # ---------------------------------------------------------------------------------------------------- settings

    def add_index(self, name: str, fn: IndexFunction) -> None:
        """Add an index; `fn` maps an object to the values under which `by_index` shall find it."""
        self._content.store.add_index(name, fn)

    def on_change(self, fn: Handler[K]) -> None:
        """Call `fn` for each change from now on, and first for each object that is already here, as initial."""
        self._content.add_handler(fn)

    def require(self) -> None:
        """From now on the kind is not optional: its absence is a failure that is waited for."""
        self._reflector.optional = False
        if self.missing:
            self._content.settled.clear()

    # -------------------------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Follow the server until cancelled."""
        await self._reflector.run()

    async def wait_synced(self) -> None:
        """Wait for the first complete content; does not wait for an optional kind that is known to be missing."""
        await self._content.settled.wait()

    def list(self, namespace: str = "") -> list[K]:
        """All objects, or those of one namespace."""
        return self._content.store.list(namespace)


class _Content(Generic[K]):
    """What the reflector feeds: the store, and the handlers that hear of each change to it."""

    def __init__(self, kind: type[K], transform: Callable[[K], K] | None) -> None:
        self.store: Store[K] = Store()
        self.complete = False
        self.missing = False
        self.settled = asyncio.Event()
        self._kind = kind.resource
        self._transform = transform
        self._sharing = _Sharing()
        self._handlers: list[Handler[K]] = []

    def add_handler(self, handler: Handler[K]) -> None:
        self._handlers.append(handler)
        for obj in self.store.list():
            self._call(handler, Change(None, obj, initial=True))

    def put(self, obj: K) -> None:
        old = self.store.get(Key.of(obj))
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        try:
            if self._transform is not None:
                obj = self._transform(obj)
            self._sharing.share(old, obj)
            self.store.put(obj)
        except Exception as error:
            raise DecodeError(f"{self._kind.kind} {Key.of(obj)} cannot be transformed or indexed: {error!r}") from error
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._tell(Change(old, None))
            old = None
        self._tell(Change(old, obj, initial=old is None and not self.complete))

    def remove(self, key: Key) -> None:
        old = self.store.remove(key)
        if old is not None:
            self._tell(Change(old, None))

    def known(self) -> list[Key]:
        return list(self.store.keys())

    def listed(self) -> None:
        self._sharing.forget()
        self.missing = False
        self.complete = True
        self.settled.set()

    def absent(self) -> None:
        if not self.missing:
            log.info("kind is not served; waiting for it", kind=self._kind.kind, group=self._kind.group)
        self.missing = True
        self.complete = False
        self.settled.set()

    def _tell(self, change: Change[K]) -> None:
        for handler in self._handlers:
            self._call(handler, change)

    def _call(self, handler: Handler[K], change: Change[K]) -> None:
        try:
            handler(change)
        except Exception:
            HANDLER_FAILURES.labels(self._kind.plural).inc()
            log.exception("handler failed", kind=self._kind.kind, namespace=change.key.namespace, name=change.key.name)


class _Sharing:
    """Lets equal strings of many objects be one string.

    Label and annotation values repeat a lot (an application, a team, a hash), and so do namespaces. The table lives
    only while a list is taken in; afterwards a new version of an object takes over the maps of the one before.
    """

    _LONGEST = 64

    def __init__(self) -> None:
        self._strings: dict[str, str] = {}

    def share(self, old: Any, new: Any) -> None:
        """Replace strings of `new`, which nobody has seen yet, by equal ones."""
        metadata = new.metadata
        if not isinstance(metadata, msgspec.Struct):
            return
        force = msgspec.structs.force_setattr
        for name in ("labels", "annotations"):
            values = getattr(metadata, name, None)
            if not values:
                continue
            if old is not None and values == getattr(old.metadata, name):
                force(metadata, name, getattr(old.metadata, name))
            elif type(values) is dict:
                for word, value in values.items():
                    if len(value) <= self._LONGEST:
                        values[word] = self._strings.setdefault(value, value)

    def forget(self) -> None:
        """The list is complete; what follows are single changes."""
        self._strings = {}
