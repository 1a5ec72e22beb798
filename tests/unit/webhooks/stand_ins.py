"""What the webhooks are given in tests: readers without a cluster, and a way to post to the app."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from inferencecache.adapters.registry import RuntimeRegistry, Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.defaulting import default_cache_backend
from inferencecache.api.schema import apply_defaults
from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.unwired import UnwiredMemo

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


def handlers(cluster: Cluster, *, runtimes: RuntimeRegistry | None = None, settings: Settings = SETTINGS) -> Handlers:
    """Handlers over objects in memory."""
    return Handlers(
        runtimes=load_adapters()[0] if runtimes is None else runtimes,
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
