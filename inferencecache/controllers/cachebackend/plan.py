"""Which path a backend takes, and what its store runs (spec 05 §2.2, decision F9).

The dispatch table is a table: the first row whose test holds decides. A StatefulSet is a way to run a managed store
like any other, so the spec's row that sent it to Unmanaged is gone (decision F9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from inferencecache.adapters.binding import Binding, UnknownProvider, protocol_of
from inferencecache.adapters.registry import (
    NoAdapter,
    RenderError,
    RuntimeAdapter,
    RuntimeRegistry,
    StorageAdapter,
    StorageRegistry,
    Workload,
)
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend


class Path(StrEnum):
    """How a backend is served."""

    MANAGED = "Managed"
    EXTERNAL = "External"
    POOL = "Pool"
    EVENTS_ONLY = "EventsOnly"
    HOST_ONLY = "HostOnly"
    UNMANAGED = "Unmanaged"


@dataclass(frozen=True, slots=True)
class Plan:
    """The path, the row that chose it, and for Managed either what the store runs or why it cannot be rendered.

    `engine_container` is the name of the engine's container; empty without a runtime adapter.
    """

    path: Path
    row: str
    store: Workload | None = None
    broken: str = ""
    engine_container: str = ""


class Question:
    """What the rows ask about one backend; nothing is looked up or rendered before a row asks."""

    def __init__(self, backend: CacheBackend, runtimes: RuntimeRegistry, storage: StorageRegistry) -> None:
        self.backend = backend
        self._runtimes = runtimes
        self._storage = storage

    @cached_property
    def adapter(self) -> RuntimeAdapter | None:
        """The runtime adapter, if one is registered for runtime and type."""
        try:
            return self._runtimes.select(self.backend.runtime_id, self.backend)
        except NoAdapter:
            return None

    @cached_property
    def provider(self) -> StorageAdapter | None:
        """The storage adapter, if one is registered for provider and ownership."""
        try:
            return self._storage.select(self.backend.spec.remote_storage)
        except NoAdapter:
            return None

    @cached_property
    def store(self) -> Workload | None:
        """What the provider runs. Raises `RenderError`."""
        return self.provider.render(self.backend) if self.provider is not None else None

    @property
    def engine_container(self) -> str:
        """The name of the engine's container; empty without an adapter."""
        return self.adapter.engine_container_name() if self.adapter is not None else ""

    @property
    def external(self) -> bool:
        """The remote tier is somebody else's."""
        storage = self.backend.spec.remote_storage
        return storage is not None and storage.external

    @property
    def on_pool(self) -> bool:
        """The remote tier is a KV cache pool."""
        return bool(self.backend.pool_binding)

    @property
    def host_only(self) -> bool:
        """There is no remote tier."""
        return self.backend.spec.remote_storage is None

    @property
    def works_alone(self) -> bool:
        """Engines can do without a remote tier."""
        return self.adapter is not None and self.adapter.supports_binding(None)

    @property
    def speaks(self) -> bool:
        """Engines speak the protocol of the remote tier."""
        try:
            protocol = protocol_of(self.backend.spec.remote_storage)
        except UnknownProvider:
            return False
        return self.adapter is not None and protocol is not None and self.adapter.supports_binding(Binding(protocol))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the dispatch table."""

    name: str
    test: Callable[[Question], bool]
    path: Path


ROWS: Final = (
    Row(
        "events only, no fitting runtime adapter", lambda q: q.backend.events_only and not q.works_alone, Path.UNMANAGED
    ),
    Row("events only", lambda q: q.backend.events_only, Path.EVENTS_ONLY),
    Row("no runtime adapter", lambda q: q.adapter is None, Path.UNMANAGED),
    Row("external, protocol not spoken", lambda q: q.external and not q.speaks, Path.UNMANAGED),
    Row("external", lambda q: q.external, Path.EXTERNAL),
    Row(
        "no remote tier, and none would be a lie",
        lambda q: q.host_only and (not q.works_alone or q.backend.cache_type == c.TYPE_HICACHE),
        Path.UNMANAGED,
    ),
    Row("no remote tier", lambda q: q.host_only, Path.HOST_ONLY),
    Row("on a pool, protocol not spoken", lambda q: q.on_pool and not q.speaks, Path.UNMANAGED),
    Row("on a pool", lambda q: q.on_pool, Path.POOL),
    Row("no storage adapter", lambda q: q.provider is None, Path.UNMANAGED),
    Row("managed, protocol not spoken", lambda q: not q.speaks, Path.UNMANAGED),
    Row("nothing rendered", lambda q: not (q.store and q.store.pod_spec and q.store.service_spec), Path.UNMANAGED),
    Row("managed", lambda q: True, Path.MANAGED),
)
"""The dispatch table, strongest row first."""


def plan_for(backend: CacheBackend, runtimes: RuntimeRegistry, storage: StorageRegistry) -> Plan:
    """Choose the path of a backend and render its store."""
    question = Question(backend, runtimes, storage)
    try:
        row = next(row for row in ROWS if row.test(question))
    except RenderError as error:
        return Plan(
            Path.MANAGED, "the store cannot be rendered", broken=str(error), engine_container=question.engine_container
        )
    store = question.store if row.path is Path.MANAGED else None
    return Plan(row.path, row.name, store, engine_container=question.engine_container)
