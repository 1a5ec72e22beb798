"""One tick of the poller when parts of its world are not as they should be (spec 05 §7.1, §7.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.cacheindex.reconciler import SINGLETON, CacheIndexReconciler
from inferencecache.controllers.cacheindex.snapshot import SnapshotError
from inferencecache.controllers.dataplane.client import Endpoint, ServerCallError, ServerClient, TokenFile
from inferencecache.controllers.policy import document
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import Forbidden, KubeError
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key, Kind, Resource

INTERVAL = timedelta(seconds=30)


class Known:
    """What an informer would know."""

    def __init__(self, *objects: Kind, connected: bool = True, missing: bool = False) -> None:
        self._objects = {Key.of(obj): obj for obj in objects}
        self._connected = connected
        self.missing = missing

    def get(self, key: Key) -> Any:
        return self._objects.get(key)

    def list(self, namespace: str = "") -> list[Any]:
        return [obj for key, obj in self._objects.items() if namespace in ("", key.namespace)]

    def connected(self, _now: float) -> bool:
        return self._connected


class Written:
    """A client that takes patches, or refuses those of some names."""

    def __init__(self, *, refused: str = "") -> None:
        self.patches: dict[str, dict[str, Any]] = {}
        self._refused = refused

    async def patch(
        self, resource: Resource, key: Key, patch: Mapping[str, Any], *, subresource: str
    ) -> dict[str, Any]:
        assert subresource == "status"
        if key.name == self._refused:
            raise Forbidden("not permitted", status=403)
        self.patches[f"{resource.kind} {key}"] = dict(patch)
        return {}


class Answering(ServerClient):
    """A server with one answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__()
        self._answer = status, body

    async def exchange(
        self, method: str, url: str, *, token: str, body: bytes | None, address: str = ""
    ) -> tuple[int, bytes]:
        return self._answer


def backend(namespace: str, name: str = "kv", count: int = 7) -> CacheBackend:
    return CacheBackend.decode(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}"},
            "spec": {"runtime": "VLLM", "engineSelector": {"matchLabels": {"app": "e"}}},
            "status": {"indexParticipation": {"prefixCount": count}},
        }
    )


def pod(namespace: str) -> Pod:
    metadata = {"name": "e-0", "namespace": namespace, "labels": {"app": "e"}}
    return msgspec.convert({"metadata": metadata}, Pod)


INDEX = CacheIndex.decode({"metadata": {"name": SINGLETON.name, "uid": "u"}})
TENANT = CacheTenant.decode({"metadata": {"name": "t", "namespace": "a"}, "spec": {"tenantID": "a"}})
ROWS = [{"replicaId": "e-0", "tenant": namespace, "prefixCount": 9} for namespace in ("a", "b")]


async def tick(
    written: Written,
    *,
    status: int = 200,
    body: bytes = json.dumps({"replicas": ROWS}).encode(),
    indexes: Known | None = None,
    backends: Known | None = None,
    policies: Known | None = None,
    tenants: Known | None = None,
    pods: Known | None = None,
) -> Result:
    token = TokenFile(Path("/nonexistent"))
    reconciler = CacheIndexReconciler(
        client=cast(Client, written),
        indexes=cast("Informer[CacheIndex]", indexes or Known(INDEX)),
        backends=cast("Informer[CacheBackend]", backends or Known(backend("a"), backend("b"))),
        policies=cast("Informer[CachePolicy]", policies or Known()),
        tenants=cast("Informer[CacheTenant]", tenants or Known(TENANT)),
        pods=cast("Informer[Pod]", pods or Known(pod("a"), pod("b"))),
        endpoint=Endpoint(name="test", client=Answering(status, body), url="http://s/snapshot", token=token),
        interval=INTERVAL,
    )
    return await reconciler.reconcile(SINGLETON)


def counts(written: Written) -> dict[str, int]:
    return {
        name.removeprefix("CacheBackend "): patch["status"]["indexParticipation"]["prefixCount"]
        for name, patch in written.patches.items()
        if name.startswith("CacheBackend ")
    }


async def test_a_tick_writes_everything_that_differs_and_asks_for_the_next() -> None:
    written = Written()
    assert await tick(written) == Result(INTERVAL)
    assert set(written.patches) == {
        "CacheBackend a/kv",
        "CacheBackend b/kv",
        "CacheIndex cluster-default",
        "CacheTenant a/t",
    }
    assert counts(written) == {"a/kv": 9, "b/kv": 9}


async def test_a_tenant_whose_quota_finds_no_room_in_the_document_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def tenant(name: str, created: str) -> CacheTenant:
        metadata = {"name": name, "namespace": "a", "creationTimestamp": created}
        spec = {"tenantID": name, "quota": {"maxIndexEntries": 5}}
        return CacheTenant.decode({"metadata": metadata, "spec": spec})

    monkeypatch.setattr(document, "LARGEST_POLICIES", 100)  # of which one quota takes most
    # It finds no room either, which says nothing of the tenant of that name.
    policy = CachePolicy.decode({"metadata": {"name": "old", "namespace": "a"}, "spec": {"evictionTTL": "1000000h"}})
    written = Written()
    tenants = Known(tenant("old", "2026-01-01T00:00:00Z"), tenant("new", "2026-02-01T00:00:00Z"))
    await tick(written, policies=Known(policy), tenants=tenants)
    told = {name: written.patches[f"CacheTenant a/{name}"]["status"]["conditions"][0] for name in ("old", "new")}
    assert {name: one["reason"] for name, one in told.items()} == {"old": "Observed", "new": "DocumentFull"}


async def test_the_participation_alone_is_patched_and_only_of_this_very_backend() -> None:
    written = Written()
    await tick(written)
    patch = written.patches["CacheBackend a/kv"]
    assert set(patch["status"]) == {"indexParticipation"}
    assert patch["metadata"] == {"uid": "uid-a"}


@pytest.mark.parametrize(
    ("connected", "expected"), [(True, {"a/kv": 9, "b/kv": 0}), (False, {"a/kv": 9})], ids=["watching", "blind"]
)
async def test_that_a_pod_is_gone_is_believed_only_while_we_would_hear_of_it(
    connected: bool, expected: dict[str, int]
) -> None:
    written = Written()
    await tick(written, pods=Known(pod("a"), connected=connected))
    assert counts(written) == expected


@pytest.mark.parametrize("refused", ["kv", "cluster-default", "t"])
async def test_what_cannot_be_written_holds_up_nothing_else_and_is_told(refused: str) -> None:
    written, everything = Written(refused=refused), Written()
    await tick(everything)
    with pytest.raises(Forbidden) as caught:
        await tick(written)
    assert caught.value.retry_within == INTERVAL
    assert set(written.patches) == {
        name for name in everything.patches if not name.endswith((f" {refused}", f"/{refused}"))
    }


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [(503, b"", ServerCallError), (204, b"", ServerCallError), (200, b"<html>", SnapshotError)],
)
async def test_a_failed_scrape_writes_nothing(status: int, body: bytes, error: type[KubeError]) -> None:
    written = Written()
    with pytest.raises(error) as caught:
        await tick(written, status=status, body=body)
    assert caught.value.retry_within == INTERVAL
    assert written.patches == {}


async def test_a_cluster_without_the_index_kind_has_everything_else() -> None:
    written = Written()
    assert await tick(written, indexes=Known(missing=True)) == Result(INTERVAL)
    assert set(written.patches) == {"CacheBackend a/kv", "CacheBackend b/kv", "CacheTenant a/t"}
