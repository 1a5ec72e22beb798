"""A real cache server with authentication on, and an operator that talks to it with real ServiceAccount tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from prometheus_client import REGISTRY

from inferencecache.adapters.registry import load_adapters
from inferencecache.controllers import CacheServer, register
from inferencecache.kube.client import Client
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key, Manifest
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running
from tests.integration.server.running import Running, Stub, update

CONTROLLER, POLICY = "inferencecache.io/controller", "inferencecache.io/policy"
OFTEN = timedelta(milliseconds=200)
SELDOM = timedelta(hours=1)


def settings(server: Running, folder: Path, *, refresh: timedelta = OFTEN, push: timedelta = SELDOM) -> CacheServer:
    """How the operator is told of the server; it finds its tokens in the folder, or none there."""
    return CacheServer(
        snapshot_url=server.url("/snapshot"),
        policy_url=server.url("/policy"),
        refresh_interval=refresh,
        push_interval=push,
        controller_token=folder / "controller-token",
        policy_token=folder / "policy-token",
    )


@asynccontextmanager
async def operator(client: Client, server: CacheServer) -> AsyncIterator[Manager]:
    """A running operator, without webhooks."""
    manager = quiet_manager(operator_client(client))
    register(manager, registries=load_adapters(), server=server)
    async with running(manager):
        yield manager


def engine(name: str, namespace: str, labels: dict[str, str], **annotations: str) -> Manifest:
    """An engine Pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": "vllm", "image": "example.net/vllm:1"}]},
    }


def own(kind: str, key: Key, spec: Manifest) -> Manifest:
    """An object of one of our kinds."""
    metadata = {"name": key.name, "namespace": key.namespace}
    return {"apiVersion": "inferencecache.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


async def report(stub: Stub, namespace: str, replica: str, blocks: int, **stats: int) -> None:
    """What a sidecar reports of its engine: so many blocks, and load if any is given."""
    message = update(replica, [bytes([n]) * 8 for n in range(1, blocks + 1)], tenant_id=namespace)
    if stats:
        message.stats.CopyFrom(pb.ReplicaStats(replica_id=replica, **stats))
    reply = await stub.method("ReportCacheState")(iter([message]), timeout=60)
    assert reply.accepted


async def scrapes() -> float:
    """How often the operator has tried to read the index, whatever came of it."""
    return sum(
        REGISTRY.get_sample_value(
            "inferencecache_controller_server_requests_total", {"endpoint": "snapshot", "result": result}
        )
        or 0.0
        for result in ("ok", "error")
    )


async def scraped_again(times: int = 2) -> None:
    """Wait until the index was read, or tried to be, that many times more. The last may still be in hand."""
    before = await scrapes()
    await eventually(scrapes, lambda now: now >= before + times)
