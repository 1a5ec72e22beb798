"""KVCachePoolBinding: a namespace's quota on a pool, under one reuse domain (spec 10 §2.2).

The domain is the tenant of the store, word for word. It provisions capacity and a name; it keeps nobody out.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.kvcache import (
    CATEGORY,
    DEFAULT_DOMAIN,
    GROUP,
    HIT_RATE,
    USED_BY_KEYS,
    VERSION,
    PoolCondition,
    UsedBy,
)
from inferencecache.api.model import AGE, Column, CustomObject, CustomResource, Flag, Int32, Int64, Model, Schema, Text
from inferencecache.api.quantity import Quantity


class PoolReference(Model):
    """The name of a KVCachePool."""

    name: Annotated[Text, Schema(required=True)] = ""
    """The pool. Cannot be changed."""


class BindingQuota(Model):
    """What the namespace asks for."""

    ceiling: Annotated[Quantity, Schema(required=True)] = Quantity(0)
    """Bytes asked for; the grant is in `status.effectiveQuota`."""


class Domain(Model):
    """A reuse domain: who sends this name shares one cache. Cannot be changed."""

    name: Annotated[Text, Schema(default=DEFAULT_DOMAIN, max_length=63)] = DEFAULT_DOMAIN
    """The store's tenant; claimed once per store."""
    block_size: Annotated[Int32, Schema(required=True)] = 0
    """Tokens per block."""
    dtype: Annotated[Text, Schema(required=True, max_length=32)] = ""
    """Element type of the cache, spelled as the engine's --kv-cache-dtype wants it."""


class KVCachePoolBindingSpec(Model):
    """The quota and the domain."""

    pool_ref: Annotated[PoolReference, Schema(required=True)] = PoolReference()
    """The pool that is drawn on."""
    quota: Annotated[BindingQuota, Schema(required=True)] = BindingQuota()
    """What the namespace asks for."""
    domain: Annotated[Domain, Schema(required=True)] = Domain()
    """The reuse domain."""


class KVCachePoolBindingStatus(Model):
    """What the store granted; a figure is absent as long as it was not observed, and 0 is a real zero."""

    phase: Text = ""
    """Provisioning, Ready, Error or Deleting."""
    phase_message: Text = ""
    """Why the phase is what it is."""
    conditions: Annotated[tuple[PoolCondition, ...], Schema(list_map_keys=("type",))] = ()
    """Conditions by type."""
    requested_quota: Quantity | None = None
    """Bytes asked for, as the store has it."""
    effective_quota: Quantity | None = None
    """Bytes granted."""
    usage: Quantity | None = None
    """Bytes that the domain holds."""
    over_quota: Flag | None = None
    """Whether the grant was cut below what the domain holds."""
    blocks: Int64 | None = None
    """Reserved; never set."""
    hit_rate: Annotated[Text | None, Schema(pattern=HIT_RATE)] = None
    """Reserved; never set."""
    used_by: Annotated[tuple[UsedBy, ...], Schema(list_map_keys=USED_BY_KEYS)] = ()
    """The workloads that use the domain, written by them; it is not deleted before they are gone."""


class KVCachePoolBinding(CustomObject):
    """A namespace's quota on a pool, under one reuse domain."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="KVCachePoolBinding",
        plural="kvcachepoolbindings",
        short_names=("kvcpb",),
        categories=(CATEGORY,),
        group=GROUP,
        version=VERSION,
        columns=(
            Column("Pool", ".spec.poolRef.name"),
            Column("Domain", ".spec.domain.name"),
            Column("Ceiling", ".spec.quota.ceiling", priority=1),
            Column("BlockSize", ".spec.domain.blockSize", "integer", priority=1),
            Column("Dtype", ".spec.domain.dtype", priority=1),
            Column("Effective", ".status.effectiveQuota"),
            Column("Usage", ".status.usage"),
            Column("Phase", ".status.phase"),
            AGE,
        ),
    )

    spec: KVCachePoolBindingSpec = KVCachePoolBindingSpec()
    status: KVCachePoolBindingStatus = KVCachePoolBindingStatus()

    @property
    def pool(self) -> str:
        """The name of the pool that is drawn on."""
        return self.spec.pool_ref.name

    @property
    def releasing(self) -> bool:
        """Whether it is being deleted and no workload holds it any longer (spec 10 §6.1)."""
        return self.metadata.deletion_timestamp is not None and not self.status.used_by

    @property
    def flaw(self) -> str:
        """What of it cannot be read; nothing, as one with a flaw is decoded as `inferencecache.api.stored` does."""
        return ""
