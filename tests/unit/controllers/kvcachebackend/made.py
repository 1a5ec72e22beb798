"""Backends, Pods and readings for tests, with only what a test says differing from the ordinary."""

from __future__ import annotations

from typing import Any

import msgspec

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.decide import Facts, Rollout
from inferencecache.controllers.kvcachebackend.objects import Settings
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.reading import Reading
from inferencecache.controllers.mooncake.admin import Health, Segment
from inferencecache.controllers.mooncake.exposition import Scrape

SETTINGS = Settings(namespace="pools", image="store:1")
GIB = 1 << 30


def managed(
    *groups: dict[str, Any], leader: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any
) -> KVCacheBackend:
    """A managed backend; without groups one of 4 GiB memory."""
    given = [
        {"nodeSelector": {"lends": "memory"}, "medium": "DRAM", "capacityPerMember": "4Gi", **group}
        for group in groups or ({},)
    ]
    connection = {"managed": {"leader": leader or {}, "members": given, **spec.pop("managed", {})}}
    return backend(connection, status, **spec)


def external(*, status: dict[str, Any] | None = None) -> KVCacheBackend:
    """The addresses of a store that somebody else runs."""
    endpoints = [
        {"name": "Client", "address": "store.example:50051"},
        {"name": "Admin", "address": "store.example:9003"},
    ]
    return backend({"external": {"endpoints": endpoints}}, status)


def backend(connection: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> KVCacheBackend:
    return KVCacheBackend.decode(
        {
            "apiVersion": "worker.gpustack.ai/v1",
            "kind": "KVCacheBackend",
            "metadata": {"name": "dram", "uid": "u", "generation": 1},
            "spec": {"connection": connection, **spec},
            "status": status or {},
        }
    )


def pod(
    name: str,
    component: str,
    *,
    ip: str = "",
    ready: bool = True,
    labels: dict[str, str] | None = None,
    node: str = "",
    **status: Any,
) -> StorePod:
    """A Pod of the backend."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *status.pop("conditions", ())]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "labels": {
                    "app.kubernetes.io/name": "kv-cache-backend",
                    "app.kubernetes.io/instance": "dram",
                    "app.kubernetes.io/component": component,
                    **(labels or {}),
                },
            },
            "spec": {"nodeName": node},
            "status": {"podIP": ip, "phase": "Running", "conditions": conditions, **status},
        },
        StorePod,
    )


def segment(number: int = 1, *, host: str = "10.0.0.1", size: int = GIB, **given: Any) -> Segment:
    """A mounted segment."""
    values = {
        "segment_id": f"s{number}",
        "client_id": f"c{number}",
        "segment_name": f"{host}:1400{number}",
        "size_bytes": size,
        "protocol": "tcp",
        "te_endpoint": f"{host}:15000",
        "status": "OK",
        **given,
    }
    return Segment(**values)


def scrape(**given: Any) -> Scrape:
    """The figures of a leader with a gibibyte, half full."""
    values = {"tenants": {}, "total_capacity": GIB, "allocated": GIB // 2, "file_capacity": 0, "file_allocated": 0}
    return Scrape(**{**values, **given})


def reading(*, serving: bool = True, **given: Any) -> Reading:
    """What a leader with one segment says."""
    values = {"health": Health(service_ready=serving), "scrape": scrape(), "segments": [segment()]}
    return Reading(**{**values, **given})


def rollout(
    name: str = "dram-leader", *, wanted: int = 1, updated: int = 1, ready: int = 1, fresh: bool = True
) -> Rollout:
    """A workload that is as wanted."""
    return Rollout(name=name, wanted=wanted, updated=updated, ready=ready, fresh=fresh)


def healthy(**given: Any) -> Facts:
    """What is seen of a managed backend on which nothing is wrong."""
    values = {
        "leader": rollout(),
        "groups": (rollout("dram-member-0"),),
        "pods": (
            pod("l", "leader", labels={"mooncake.io/store-role": "leader"}),
            pod("m", "member-0", ip="10.0.0.1", node="n1"),
        ),
        "reading": reading(),
    }
    return Facts(**{**values, **given})
