"""Stores that somebody else runs: there is nothing to render, only an address to use (spec 04 §1.2)."""

from __future__ import annotations

from inferencecache.adapters.registry import storage
from inferencecache.api.cachebackend import CacheBackend, RemoteStorage
from inferencecache.api.endpoint import PROTOCOLS


@storage.register
class ExternalStore:
    """The adapter for every known provider under External ownership."""

    def supports(self, storage: RemoteStorage) -> bool:
        return storage.external and storage.provider in PROTOCOLS

    def render(self, backend: CacheBackend) -> None:
        return None
