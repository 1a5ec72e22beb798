"""The plugin registry: runtimes keyed by (runtime, type), stores keyed by (provider, ownership).

Built-in adapters register themselves with a decorator. Third parties ship theirs in a distribution of their own, with
an entry point in the group `inferencecache.runtimes` or `inferencecache.storage` that names a module (importing it
registers the adapter) or the adapter itself. A plugin that fails to load is reported by name and costs only itself.

What is served already stays with whom it is: a plugin brings runtimes, cache types and providers of its own. The CRD
closes over those that are known, so it has to be rendered where the plugin is installed (`inferencecache crds`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import product
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import structlog

from inferencecache.adapters import DEFAULT_POLICY_SERVER
from inferencecache.adapters.binding import Binding, declare_protocol, known_protocols
from inferencecache.adapters.flags import Spelling, as_written
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage
from inferencecache.api.endpoint import PROTOCOLS

PodSpec = dict[str, Any]
Container = dict[str, Any]

RUNTIME_GROUP: Final = "inferencecache.runtimes"
STORAGE_GROUP: Final = "inferencecache.storage"

_log = structlog.get_logger(__name__)


class InjectionError(Exception):
    """A Pod that cannot be wired; the message says why, and the Pod is admitted as it came."""


class RenderError(Exception):
    """A store that cannot be rendered; the message names the field and the remedy."""


class NoAdapter(LookupError):
    """Nothing is registered for what was asked; the message names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator's flags decide about injected sidecars (spec 04 §1.3)."""

    kvevent_subscriber_image: str = ""
    """Empty: no sidecar is ever appended."""
    policy_server_grpc_address: str = DEFAULT_POLICY_SERVER
    policy_server_tls: bool = False
    policy_server_ca: str = ""
    """CAs in PEM that the server's certificate is checked against; empty: those of the sidecar's image."""
    policy_server_audience: str = ""
    """Audience of the ServiceAccount token that the sidecar shows; empty: it shows none."""
    kvevent_replay_endpoint: str = ""
    """Where the sidecar asks its engine for events that it missed; empty: nowhere."""

    @property
    def policy_server(self) -> str:
        """The address the sidecar reports to; empty counts as the default."""
        return self.policy_server_grpc_address or DEFAULT_POLICY_SERVER


class RuntimeAdapter(Protocol):
    """How engine Pods of one (runtime, type) are wired (spec 04 §1.1)."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        """Whether this adapter is the one for a runtime id (lower case) and the backend's cache type."""

    def supported_pairs(self) -> list[tuple[str, str]]:
        """The (runtime id, type) pairs, for messages."""

    def supports_binding(self, binding: Binding | None) -> bool:
        """Whether engines can use this protocol (the address may be empty), or None for host-only."""

    def inject_engine_config(self, pod_spec: PodSpec, binding: Binding | None, backend: CacheBackend) -> None:
        """Wire a Pod spec in place, which the caller copied; repeating it changes nothing. Raises `InjectionError`."""

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> Container | None:
        """The event subscriber, or None when there is nothing to observe."""

    def reserved_args(self) -> list[str]:
        """Flags that engineOverrides may not touch."""

    def reserved_env(self) -> list[str]:
        """Variables that engineOverrides may not touch."""

    def engine_container_name(self) -> str:
        """The engine's canonical container name."""


@runtime_checkable
class ChecksKernels(Protocol):
    """What a runtime adapter may also do; the init container of the kernel check is then its to add and remove."""

    def kernel_check_init_container(self, backend: CacheBackend, pod_spec: PodSpec) -> Container | None:
        """The kernel check for a wired Pod, or None when it must not be there."""


@runtime_checkable
class ReadsFlagsLoosely(Protocol):
    """What a runtime adapter may also do, if its engine takes a flag in several spellings.

    Such an engine is taken to read `--flag.key` as a part of the value of `--flag`, too.
    """

    def flag_meant(self, flag: str) -> str:
        """The one spelling under which all spellings of a flag are compared, that of `reserved_args`."""


def flag_spelling(adapter: RuntimeAdapter) -> Spelling:
    """How to tell whether two flags are the same to an adapter's engine."""
    return adapter.flag_meant if isinstance(adapter, ReadsFlagsLoosely) else as_written


@dataclass(frozen=True, slots=True)
class Workload:
    """What a managed store runs: a Pod spec and the spec of the Service in front (no selector, no metadata)."""

    pod_spec: PodSpec
    service_spec: dict[str, Any]


class StorageAdapter(Protocol):
    """What runs for one (provider, ownership) (spec 04 §1.2)."""

    def supports(self, storage: RemoteStorage) -> bool:
        """Whether this adapter is the one for a declaration."""

    def render(self, backend: CacheBackend) -> Workload | None:
        """The workload, or None if somebody else runs the store. Raises `RenderError`."""


@runtime_checkable
class BringsProviders(Protocol):
    """What a storage adapter may also do; for providers that are not built in, it must."""

    def protocols(self) -> Mapping[str, str]:
        """The protocol that engines speak to each provider that this adapter brings."""


class DuplicateAdapter(ValueError):
    """Something is registered already for what an adapter wants to serve; the message names both."""


A = TypeVar("A")


class _Registry:
    """Adapters in the order of their registration."""

    group: str

    def __init__(self) -> None:
        self._adapters: list[Any] = []

    def register(self, adapter: A | None) -> A | None:
        """Add an adapter, or a class of which one is made. `None` is ignored. Usable as a decorator.

        Raises `TypeError` for what is no adapter: it would fail every later selection, not just its own. Raises
        `DuplicateAdapter` for one that would never be selected.
        """
        if adapter is not None:
            made = adapter() if isinstance(adapter, type) else adapter
            if not callable(getattr(made, "supports", None)):
                raise TypeError(f"{adapter!r} is no adapter: it has no method `supports`")
            self._admit(made)
            self._adapters.append(made)
        return adapter

    def _admit(self, adapter: Any) -> None:
        """Raise `DuplicateAdapter` if what an adapter serves is served already."""
        raise NotImplementedError

    def load_plugins(self, found: Iterable[EntryPoint] | None = None) -> list[str]:
        """Load the entry points of this registry's group; returns the names of those that failed."""
        failed = []
        for plugin in entry_points(group=self.group) if found is None else found:
            try:
                loaded = plugin.load()
                if not isinstance(loaded, ModuleType):
                    self.register(loaded)
            except Exception as error:
                failed.append(plugin.name)
                _log.error("plugin failed to load", group=self.group, plugin=plugin.name, error=repr(error))
        return failed


class RuntimeRegistry(_Registry):
    """Runtime adapters; the first that supports a pair serves it."""

    group = RUNTIME_GROUP

    def _admit(self, adapter: Any) -> None:
        served = set(self.supported_pairs())
        for runtime, kind in getattr(adapter, "supported_pairs", list)():
            if (runtime, kind) in served:
                raise DuplicateAdapter(f"{_name(adapter)} wants to serve {runtime}/{kind}, which is served already")

    def select(self, runtime_id: str, backend: CacheBackend | None) -> RuntimeAdapter:
        """The adapter for a backend. Raises `NoAdapter`, which names runtime and type."""
        if backend is not None:
            for adapter in self._adapters:
                if adapter.supports(runtime_id, backend):
                    found: RuntimeAdapter = adapter
                    return found
        cache_type = backend.cache_type if backend is not None else ""
        raise NoAdapter(f'no adapter for engine="{runtime_id}", backend="{cache_type}"')

    def supported_pairs(self) -> list[tuple[str, str]]:
        """All pairs, in the order of registration, each once."""
        pairs = [pair for adapter in self._adapters for pair in getattr(adapter, "supported_pairs", list)()]
        return list(dict.fromkeys(pairs))


class StorageRegistry(_Registry):
    """Storage adapters; the first that supports a declaration serves it."""

    group = STORAGE_GROUP

    def _admit(self, adapter: Any) -> None:
        brought = adapter.protocols() if isinstance(adapter, BringsProviders) else {}
        for provider, ownership in product({*known_protocols(), *brought}, (c.OWNERSHIP_MANAGED, c.OWNERSHIP_EXTERNAL)):
            wanted = RemoteStorage(provider=provider, ownership=ownership)
            if adapter.supports(wanted) and any(other.supports(wanted) for other in self._adapters):
                raise DuplicateAdapter(
                    f"{_name(adapter)} wants to serve {ownership} {provider}, which is served already"
                )
        for provider, protocol in brought.items():
            declare_protocol(provider, protocol)

    def select(self, storage: RemoteStorage | None) -> StorageAdapter:
        """The adapter for a declaration. Raises `NoAdapter`, which names provider and ownership."""
        if storage is None:
            raise NoAdapter("no storage adapter without spec.remoteStorage")
        for adapter in self._adapters:
            if adapter.supports(storage):
                found: StorageAdapter = adapter
                return found
        raise NoAdapter(f'no storage adapter for provider="{storage.provider}", ownership="{storage.ownership}"')


def added_values(registry: RuntimeRegistry) -> dict[str, tuple[str, ...]]:
    """What plugins add to the closed lists of a CacheBackend's schema, by field path; nothing without plugins."""
    built_in = {c.RUNTIME_VLLM.lower(), c.RUNTIME_SGLANG.lower()}
    pairs = registry.supported_pairs()
    added = {
        "spec.runtime": [runtime for runtime, _ in pairs if runtime not in built_in],
        "spec.type": [kind for _, kind in pairs if kind not in (c.TYPE_LMCACHE, c.TYPE_HICACHE)],
        "spec.remoteStorage.provider": [provider for provider in known_protocols() if provider not in PROTOCOLS],
    }
    return {path: tuple(dict.fromkeys(values)) for path, values in added.items() if values}


def _name(adapter: Any) -> str:
    return f"{type(adapter).__module__}.{type(adapter).__qualname__}"


runtimes = RuntimeRegistry()
"""The registry that built-in runtime adapters register with."""
storage = StorageRegistry()
"""The registry that built-in storage adapters register with."""

_BUILT_IN: Final = (
    "inferencecache.adapters.runtimes.vllm_lmcache",
    "inferencecache.adapters.runtimes.sglang_lmcache",
    "inferencecache.adapters.runtimes.sglang_hicache",
    "inferencecache.adapters.storage.redis",
    "inferencecache.adapters.storage.lmcache_server",
    "inferencecache.adapters.storage.mooncake",
    "inferencecache.adapters.storage.external",
)


@functools.cache
def load_adapters() -> tuple[RuntimeRegistry, StorageRegistry]:
    """The registries with the built-in adapters and, behind them, those of installed plugins. Loads them once."""
    for module in _BUILT_IN:
        importlib.import_module(module)
    for registry in (runtimes, storage):
        registry.load_plugins()
    return runtimes, storage
