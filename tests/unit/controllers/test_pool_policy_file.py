"""The policy documents that are known: written once, compared once, and forgotten with their backend."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles
from inferencecache.kube.cache import Cache
from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.resource import Key, Manifest, Resource

BACKEND = KVCacheBackend.decode(
    {"metadata": {"name": "store", "uid": "u"}, "spec": {"type": "Mooncake", "connection": {"managed": {}}}}
)


class Tenants(dict[str, int]):
    """Tenants of which a test can tell whether anybody still has them."""


class ApiServer:
    """As much of one as it takes to make ConfigMaps."""

    field_manager = "us"

    def __init__(self) -> None:
        self.writes = 0
        self.stored: Manifest = {}

    async def locate(self, manifest: Manifest) -> tuple[Resource, Key]:
        metadata = manifest["metadata"]
        return ConfigMap.resource, Key(metadata["namespace"], metadata["name"])

    async def get_manifest(self, resource: Resource, key: Key) -> Manifest:
        raise NotFound(str(key), status=404)

    async def apply_new(self, manifest: Manifest) -> Manifest:
        self.writes += 1
        metadata = {**manifest["metadata"], "uid": "c", "resourceVersion": str(self.writes)}
        self.stored = {**manifest, "metadata": metadata}
        return self.stored


async def test_nothing_is_kept_of_a_document_that_went_with_its_backend() -> None:
    server: Any = ApiServer()
    cache = Cache(server)
    files = PolicyFiles(server, cache, "pools")
    informer: Informer[ConfigMap] = cache.informers[0]
    tenants = Tenants(alpha=1)
    kept = weakref.ref(tenants)
    await files.write(BACKEND, tenants)
    assert server.writes == 1

    informer._content.put(msgspec.convert(server.stored, ConfigMap))
    await files.write(BACKEND, tenants)
    assert server.writes == 1, "what is settled is not written again"
    informer._content.remove(Key("pools", "store-tenant-quota-policy"))
    del tenants
    gc.collect()
    assert kept() is None
    await files.write(BACKEND, {"alpha": 1})
    assert server.writes == 2, "what is gone is made anew"
