"""The kinds of the product: models, defaults, OpenAPI schemas, and the strings other people's clients depend on.

Everything here is pure: no client, no HTTP, no clock. A model decodes any object that was ever stored, because rules
tighten over time and a stored object must stay readable; what may be *written* is said by the schema (`schema`), the
defaulting rules (`defaulting`) and the validation of the webhooks.
"""

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
from inferencecache.api.schema import NOTHING_ADDED, AddedValues, dump_crd, render_crd

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
"""All kinds: of the group inferencecache.io, then of worker.gpustack.ai, each in alphabetical order."""


def crds(added: AddedValues = NOTHING_ADDED) -> list[dict[str, object]]:
    """The CustomResourceDefinitions of all kinds, as manifests; `added` are values of a CacheBackend's enums."""
    return [render_crd(kind, added if kind is CacheBackend else NOTHING_ADDED) for kind in KINDS]


__all__ = [
    "KINDS",
    "CacheBackend",
    "CacheIndex",
    "CachePolicy",
    "CacheTenant",
    "KVCacheBackend",
    "KVCachePool",
    "KVCachePoolBinding",
    "PDTopology",
    "PromptTemplate",
    "crds",
    "dump_crd",
]
