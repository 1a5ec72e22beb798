"""The claims of backends on their Bindings."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.stored import StoredBinding
from inferencecache.controllers.cachebackend.pool_claims import FINALIZER, Pools
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.resource import Key, Resource

BACKEND = CacheBackend.decode(
    {
        "metadata": {"name": "kv", "namespace": "a", "generation": 1, "finalizers": [FINALIZER]},
        "spec": {"runtime": "VLLM", "remoteStorage": {"provider": "Mooncake", "poolBindingRef": {"name": "chat"}}},
    }
)
ANOTHER = {"kind": "ModelDeployment", "namespace": "", "name": "llm"}
MINE = {"kind": "CacheBackend", "namespace": "", "name": "kv"}


class Holding:
    """Both a cache that holds one Binding and a client that notes what is written to it."""

    def __init__(self, used_by: Any) -> None:
        metadata = {"name": BACKEND.pool_binding, "namespace": "a"}
        stored = {"metadata": metadata, "spec": {}, "status": {"usedBy": used_by}}
        self._binding = StoredBinding.model_validate_json(msgspec.json.encode(stored))
        self.written: list[Any] = []

    def informer(self, _kind: type[Any], **_options: Any) -> Holding:
        return self

    def get(self, _key: Key) -> StoredBinding:
        return self._binding

    async def patch(self, _resource: Resource, _key: Key, patch: dict[str, Any], *, subresource: str) -> dict[str, Any]:
        self.written.append(patch[subresource]["usedBy"])
        return {}


@pytest.mark.parametrize(
    ("used_by", "written"),
    [
        pytest.param([], [[MINE]], id="used by nobody"),
        pytest.param([ANOTHER], [[MINE, ANOTHER]], id="used by another"),
        pytest.param([MINE], [], id="claimed already"),
        pytest.param(5, [], id="no users that can be read"),
    ],
)
async def test_a_claim_is_added_to_those_that_are_there_and_to_none_that_cannot_be_read(
    used_by: Any, written: list[Any]
) -> None:
    holding = Holding(used_by)
    await Pools(cast(Client, holding), cast(Cache, holding)).hold(BACKEND)
    assert holding.written == written
