"""Which CacheTenant a tenant id belongs to, when several name it (spec 01 §6).

Admission refuses the second of two, but two creates at the same time can both pass, and older objects were never asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferencecache.api.cachetenant import CacheTenant
from inferencecache.kube.resource import Key


def owners(tenants: Iterable[CacheTenant]) -> dict[str, CacheTenant]:
    """The owner of each tenant id, by id: the first by namespace and name that sets a quota of entries.

    An id that nobody sets a quota for has no owner, and then nobody is in anybody's way.
    """
    found: dict[str, CacheTenant] = {}
    for tenant in sorted(tenants, key=Key.of):
        if tenant.spec.tenant_id and quota_of(tenant) is not None:
            found.setdefault(tenant.spec.tenant_id, tenant)
    return found


def quota_of(tenant: CacheTenant) -> int | None:
    """How many entries the tenant may have; 0 is a quota, None is none."""
    return None if tenant.spec.quota is None else tenant.spec.quota.max_index_entries
