"""What the webhooks are given in tests: readers without a cluster, and the SGLang rows of the adapter table.

The SGLang stand-ins know what validation asks an adapter (pairs, bindings, reserved names) and wire nothing; they step
aside as soon as a real adapter serves the pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from inferencecache.adapters.binding import Binding
from inferencecache.adapters.registry import NoAdapter, RuntimeRegistry, Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.schema import apply_defaults
from inferencecache.webhooks.decisions import UnwiredMemo
from inferencecache.webhooks.handlers import Handlers

SETTINGS = Settings(
    kvevent_subscriber_image="registry.example.net/kv/subscriber:2.3.1",
    policy_server_grpc_address="kv-index.platform.svc.cluster.local:9090",
)


@dataclass
class Cluster:
    """Objects in memory, behind the two reader protocols."""

    stored: list[Any] = field(default_factory=list)
    failure: Exception | None = None
    admissions: list[str] = field(default_factory=list)
    lists: int = 0

    async def backends(self, namespace: str) -> Sequence[CacheBackend]:
        self.lists += 1
        if self.failure:
            raise self.failure
        return self.cached(namespace)

    def cached(self, namespace: str) -> Sequence[CacheBackend]:
        return [obj for obj in self.stored if isinstance(obj, CacheBackend) and obj.metadata.namespace == namespace]

    def admitted(self, namespace: str) -> None:
        self.admissions.append(namespace)

    async def siblings(self, kind: type[Any], namespace: str) -> Sequence[Any]:
        self.lists += 1
        if self.failure:
            raise self.failure
        return [obj for obj in self.stored if isinstance(obj, kind) and obj.metadata.namespace == namespace]


@dataclass(frozen=True)
class TableRow:
    """One row of the adapter table of spec 02 §5.3."""

    runtime: str
    cache_type: str
    protocols: frozenset[str]
    args: tuple[str, ...]
    env: tuple[str, ...] = ()
    checks_kernels: bool = False

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return (runtime_id, backend.cache_type) == (self.runtime, self.cache_type)

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [(self.runtime, self.cache_type)]

    def supports_binding(self, binding: Binding | None) -> bool:
        return binding is None or binding.protocol in self.protocols

    def inject_engine_config(self, pod_spec: Any, binding: Any, backend: CacheBackend) -> None:
        raise AssertionError("a stand-in wires nothing")

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> None:
        return None

    def kernel_check_init_container(self, backend: CacheBackend, pod_spec: Any) -> None:
        return None

    def reserved_args(self) -> list[str]:
        return list(self.args)

    def reserved_env(self) -> list[str]:
        return list(self.env)

    def engine_container_name(self) -> str:
        return self.runtime


_SGLANG = (
    TableRow(
        "sglang",
        "LMCache",
        frozenset({"resp"}),
        ("--enable-lmcache", "--lmcache-config-file"),
        ("LMCACHE_USE_EXPERIMENTAL", "INFERENCECACHE_FAIL_OPEN"),
    ),
    TableRow(
        "sglang",
        "SGLangHiCache",
        frozenset(),
        (
            "--enable-hierarchical-cache",
            "--hicache-size",
            "--hicache-ratio",
            "--hicache-write-policy",
            "--hicache-io-backend",
            "--hicache-mem-layout",
        ),
    ),
)


def whole_registry() -> RuntimeRegistry:
    """The built-in adapters, with stand-ins behind them."""
    built_in, _ = load_adapters()
    registry = RuntimeRegistry()
    for adapter in (*built_in._adapters, *_SGLANG):
        registry.register(adapter)
    return registry


def serves(registry: RuntimeRegistry, backend: CacheBackend) -> bool:
    """Whether a real adapter serves a backend."""
    try:
        registry.select(backend.runtime_id, backend)
    except NoAdapter:
        return False
    return True


def handlers(cluster: Cluster, *, runtimes: RuntimeRegistry | None = None, settings: Settings = SETTINGS) -> Handlers:
    """Handlers over objects in memory."""
    return Handlers(
        runtimes=whole_registry() if runtimes is None else runtimes,
        settings=settings,
        backends=cluster,
        siblings=cluster,
        unwired=UnwiredMemo(),
    )


def backend_from(document: dict[str, Any]) -> CacheBackend:
    """A backend as it is stored: schema defaults, the defaulting webhook, schema defaults again."""
    document = apply_defaults(CacheBackend, document)
    return CacheBackend.decode(apply_defaults(CacheBackend, default_cache_backend(document)))


async def post(
    app: FastAPI, path: str, body: bytes, *, content_type: str = "application/json", chunks: Iterable[bytes] = ()
) -> tuple[int, bytes]:
    """Send a POST straight through the ASGI app; `chunks` follow the first part of the body."""
    parts = [body, *chunks]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0) if parts else b"", "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", content_type.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 9443),
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
