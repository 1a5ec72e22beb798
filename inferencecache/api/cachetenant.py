"""CacheTenant: a share of the index for one tenant (spec 01 §6)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from inferencecache.api.model import (
    AGE,
    Column,
    Condition,
    CustomObject,
    CustomResource,
    Int64,
    Model,
    Schema,
    Text,
)


class Quota(Model):
    """Limits of a tenant."""

    max_index_entries: Annotated[Int64 | None, Schema(minimum=0)] = None
    """Distinct prefixes the tenant may hold; 0 is a real cap."""


class Crypto(Model):
    """Reserved: only the empty object is accepted."""


class CacheTenantSpec(Model):
    """A tenant and its limits."""

    tenant_id: Annotated[Text, Field(alias="tenantID"), Schema(required=True, min_length=1)] = ""
    """The id that traffic carries."""
    quota: Quota | None = None
    """Limits of the tenant."""
    isolation_mode: Annotated[Text | None, Schema(default="Fairness", enum=("Fairness",))] = None
    """How tenants are kept apart."""
    crypto: Annotated[Crypto | None, Schema(preserve_unknown=True, max_properties=0)] = None
    """Reserved: only the empty object is accepted."""


class CacheTenantStatus(Model):
    """The observed tenant."""

    observed_generation: Int64 | None = None
    """The generation this status was derived from."""
    index_entries: Int64 | None = None
    """Entries held; absent means never observed."""
    conditions: Annotated[tuple[Condition, ...] | None, Schema(list_map_keys=("type",))] = None
    """Ready and QuotaExceeded."""


class CacheTenant(CustomObject):
    """A share of the index for one tenant."""

    resource: ClassVar[CustomResource] = CustomResource(
        kind="CacheTenant",
        plural="cachetenants",
        short_names=("ct",),
        columns=(
            Column("Tenant", ".spec.tenantID"),
            Column("Entries", ".status.indexEntries", "integer"),
            Column("Quota", ".spec.quota.maxIndexEntries", "integer"),
            Column("Isolation", ".spec.isolationMode"),
            AGE,
        ),
    )

    spec: CacheTenantSpec = CacheTenantSpec()
    status: CacheTenantStatus = CacheTenantStatus()
