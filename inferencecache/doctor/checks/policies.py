"""Checks 8 and 9: tenants over their quota, and which policy a namespace's index follows (spec 09 §1.3)."""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.doctor.checks.reads import unread
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.observe import Observations
from inferencecache.kube.resource import Key

QUOTA_EXCEEDED = "QuotaExceeded"
READY = "Ready"


def check_tenants(seen: Observations) -> Iterator[Finding]:
    """CT001 or CT002 for every tenant, in the order of their names."""
    if not seen.caches_installed:
        return
    yield from unread(Check.TENANTS, CacheTenant.resource.kind, seen.tenants)
    for tenant in sorted(seen.tenants.items, key=Key.of):
        resource = f"cachetenant/{Key.of(tenant)}"
        conditions = {one.type: one for one in tenant.status.conditions or ()}
        exceeded, ready = conditions.get(QUOTA_EXCEEDED), conditions.get(READY)
        quota = tenant.spec.quota.max_index_entries if tenant.spec.quota is not None else None
        counted = (
            f"tenant {tenant.spec.tenant_id} has {_or(tenant.status.index_entries, 'unknown')} entries, "
            f"quota {_or(quota, 'unset')}"
        )
        if exceeded is not None and exceeded.status == "True":
            yield Finding("CT001", Check.TENANTS, resource, f"{counted}: {exceeded.message}")
        elif ready is not None and ready.status == "False":
            yield Finding("CT002", Check.TENANTS, resource, f"{counted}; it is not ready: {ready.message}")
        else:
            yield Finding("CT002", Check.TENANTS, resource, counted)


def check_policies(seen: Observations) -> Iterator[Finding]:
    """CP001 to CP003 for every namespace that has backends, in the order of their names."""
    if not seen.caches_installed:
        return
    yield from unread(Check.POLICIES, CachePolicy.resource.kind, seen.policies)
    if seen.policies.failure:
        return
    for namespace in sorted({backend.metadata.namespace for backend in seen.backends.items}):
        names = sorted(one.metadata.name for one in seen.policies.items if one.metadata.namespace == namespace)
        resource = f"namespace/{namespace}"
        if not names:
            yield Finding("CP001", Check.POLICIES, resource, "no CachePolicy: the server's defaults apply")
        elif len(names) == 1:
            yield Finding("CP002", Check.POLICIES, resource, f"CachePolicy {names[0]} applies")
        else:
            yield Finding(
                "CP003",
                Check.POLICIES,
                resource,
                f"{len(names)} CachePolicies: {names[0]} applies, as it is the first by name; delete "
                f"{', '.join(names[1:])}",
            )


def _or(value: int | None, absent: str) -> str:
    return absent if value is None else str(value)
