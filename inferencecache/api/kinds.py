"""All kinds of the product in one place, for those who deal with every one of them."""

from __future__ import annotations

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.api.schema import NOTHING_ADDED, AddedValues, render_crd

KINDS: tuple[type[CustomObject], ...] = (
    CacheBackend,
    CacheIndex,
    CachePolicy,
    CacheTenant,
    PDTopology,
    PromptTemplate,
    KVCacheBackend,
    KVCachePool,
    KVCachePoolBinding,
)
"""Of the group inferencecache.io, then of worker.gpustack.ai, each in alphabetical order."""


def crds(added: AddedValues = NOTHING_ADDED) -> list[dict[str, object]]:
    """The CustomResourceDefinitions of all kinds, as manifests; `added` are values of a CacheBackend's enums."""
    return [render_crd(kind, added if kind is CacheBackend else NOTHING_ADDED) for kind in KINDS]
