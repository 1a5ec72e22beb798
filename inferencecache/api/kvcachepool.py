"""KVCachePool: one store published for namespaces to draw on, with the quota that all of them share (spec 10 §2.1)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from inferencecache.api.kvcache import (
    ADDRESS_LENGTH,
    CATEGORY,
    GROUP,
    HIT_RATE,
    MULTI_TENANCY_DISABLED,
    QUOTA_LEDGER_AVAILABLE,
    USED_BY_KEYS,
    VERSION,
    PoolCondition,
    UsedBy,
)
from inferencecache.api.model import AGE, Column, CustomObject, CustomResource, Int32, Int64, Model, Schema, Text
from inferencecache.api.quantity import Quantity


class PoolQuota(Model):
    """What all Bindings may ask for together."""

    total: Annotated[Quantity, Schema(required=True)] = Quantity(0)
    """Bytes. No Binding may ask for more; that all of them together do is reported, not refused."""


class KVCachePoolSpec(Model):
    """The published store and its quota."""

    backends: Annotated[tuple[Text, ...], Schema(required=True, atomic=True)] = ()
    """The name of one KVCacheBackend: a ledger counts the bytes of one store. Cannot be changed."""
    quota: Annotated[PoolQuota, Schema(required=True)] = PoolQuota()
    """What all Bindings may ask for together."""


class PoolUsage(Model):
    """What the store holds for this pool."""

    total: Quantity | None = None
    """Bytes of all domains; absent as long as it was not observed."""


class BindingReference(Model):
    """The name of a KVCachePoolBinding."""

    namespace: Annotated[Text, Schema(required=True)] = ""
    """Its namespace."""
    name: Annotated[Text, Schema(required=True)] = ""
    """Its name."""


class DomainStatus(Model):
    """A reuse domain that a Binding registered."""

    name: Annotated[Text, Schema(required=True, max_length=63)] = ""
    """The domain, which is the store's tenant."""
    binding: Annotated[BindingReference, Schema(required=True)] = BindingReference()
    """The Binding that holds it."""
    block_size: Annotated[Int32, Schema(required=True)] = 0
    """Tokens per block."""
    dtype: Annotated[Text, Schema(required=True)] = ""
    """Element type of the cache."""
    blocks: Int64 | None = None
    """Reserved; never set."""
    hit_rate: Annotated[Text | None, Schema(pattern=HIT_RATE)] = None
    """Reserved; never set."""


class KVCachePoolStatus(Model):
    """The observed pool."""

    phase: Text = ""
    """Provisioning, Ready, Error or Deleting."""
    phase_message: Text = ""
    """Why the phase is what it is."""
    conditions: Annotated[tuple[PoolCondition, ...], Schema(list_map_keys=("type",))] = ()
    """Conditions by type."""
    client_endpoint: Annotated[Text, Schema(max_length=ADDRESS_LENGTH)] = ""
    """Where engines connect, as host:port; empty as long as the store has no address."""
    usage: PoolUsage | None = None
    """What the store holds for this pool."""
    domains: Annotated[tuple[DomainStatus, ...], Schema(list_map_keys=("name",))] = ()
    """The reuse domains that Bindings registered."""
    used_by: Annotated[tuple[UsedBy, ...], Schema(list_map_keys=USED_BY_KEYS)] = ()
    """The Bindings of this pool; it is not deleted before they are."""


class KVCachePool(CustomObject):
    """A store published for namespaces to draw on."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="KVCachePool",
        plural="kvcachepools",
        short_names=("kvcp",),
        categories=(CATEGORY,),
        namespaced=False,
        group=GROUP,
        version=VERSION,
        columns=(
            Column("Quota", ".spec.quota.total"),
            Column("Usage", ".status.usage.total"),
            Column("Phase", ".status.phase"),
            Column("Endpoint", ".status.clientEndpoint"),
            AGE,
        ),
    )

    spec: KVCachePoolSpec = KVCachePoolSpec()
    status: KVCachePoolStatus = KVCachePoolStatus()

    @property
    def backend(self) -> str | None:
        """The name of its one backend; None if it names none, or several past admission."""
        return self.spec.backends[0] if len(self.spec.backends) == 1 else None

    @property
    def single_tenant(self) -> bool:
        """Whether its master was seen to keep no ledger of tenants."""
        return any(
            (condition.type, condition.status, condition.reason)
            == (QUOTA_LEDGER_AVAILABLE, "False", MULTI_TENANCY_DISABLED)
            for condition in self.status.conditions
        )

    @property
    def flaw(self) -> str:
        """What of it cannot be read; nothing, as one with a flaw is decoded as `inferencecache.api.stored` does."""
        return ""
