"""The ConfigMap with the policy document of a backend, from which its leaders start (spec 10 §9.2).

It is rendered for every backend, an external one's too: whether somebody starts a master from it is not known here.
It belongs to the backend and goes with it; pools only ever write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachepool.documents import tenants_of
from inferencecache.controllers.mooncake.policy import PolicyError, render
from inferencecache.kube.apply import ChildConflict, apply_child
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.errors import Forbidden, Invalid, KubeError, NotFound
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.own_writes import OwnWrites
from inferencecache.kube.resource import Key, Manifest

_AUTHORITATIVE: Final = (("data",),)


class PolicyRefused(KubeError):
    """The document cannot be rendered or written; the one that stands is left as it is."""


def config_map(backend: KVCacheBackend, namespace: str, document: str) -> Manifest:
    """The ConfigMap, but for its owner reference."""
    name = backend.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": k.policy_config_map(name),
            "namespace": namespace,
            "labels": {k.LABEL_TYPE: k.TYPE_BACKENDS},
            "annotations": {k.ANNOTATION_BACKEND: name, k.ANNOTATION_ROLE: k.ROLE_QUOTA_POLICY},
        },
        "data": {k.POLICY_KEY: document},
    }


class PolicyFiles:
    """The policy documents of all backends, in one namespace."""

    def __init__(self, client: Client, cache: Cache, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._config_maps: Informer[ConfigMap] = cache.informer(
            ConfigMap, namespace=namespace, labels={k.LABEL_TYPE: k.TYPE_BACKENDS}
        )
        self._known = OwnWrites(self._config_maps)
        self._settled: dict[Key, tuple[Mapping[str, int], str, str]] = {}
        self._config_maps.on_change(self._told)

    async def tenants(self, backend: str) -> dict[str, int]:
        """Bytes by tenant, as the document lists them now; nothing if there is none."""
        key = self._key(backend)
        found = self._known.get(key)
        if found is None:
            try:
                found = await self._client.get(ConfigMap, key)
            except NotFound:
                return {}
        return tenants_of(found.data.get(k.POLICY_KEY, ""))

    async def write(self, backend: KVCacheBackend, tenants: Mapping[str, int]) -> None:
        """Have the document list exactly these. Raises `PolicyRefused`."""
        key = self._key(backend.metadata.name)
        latest = self._known.get(key)
        state = (tenants, backend.metadata.uid, latest.metadata.resource_version if latest is not None else "")
        if self._settled.get(key) == state:
            return
        try:
            wanted = config_map(backend, self._namespace, render(tenants.items()))
            written = await apply_child(self._client, wanted, latest, backend, _AUTHORITATIVE, blocks_deletion=False)
        except (PolicyError, Forbidden, Invalid, NotFound) as error:
            raise PolicyRefused(f"ConfigMap {key}: {error}") from error
        except ChildConflict as error:
            refused = PolicyRefused(str(error))
            refused.retry_within = error.retry_within
            raise refused from error
        if written is not None:
            self._known.answered(msgspec.convert(written, ConfigMap))
        elif latest is not None:
            # Rendering thousands of tenants and comparing them takes a while, and siblings come one after another.
            self._settled[key] = state

    def _key(self, backend: str) -> Key:
        return Key(self._namespace, k.policy_config_map(backend))

    def _told(self, change: Change[ConfigMap]) -> None:
        if change.new is None:
            self._settled.pop(change.key, None)
