"""What the conditions of a KVCachePool and of a KVCachePoolBinding mean, and what to do about each."""

from __future__ import annotations

from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.cli.reference.row import Row
from inferencecache.controllers.kvcachepool import reasons as r

_OFF: Final = "the store keeps no ledger of tenants: the pool is Ready, serves one reuse domain, and limits nobody"
_ON: Final = (
    "nothing, if that is meant; else set `leader.multiTenancy` of the KVCacheBackend, or start the external master "
    "with multi-tenancy"
)
_UNREACHABLE: Final = "the master does not answer, or not as a master does"
_RESTORE: Final = "restore the master; the message quotes its answer"

POOL: Final[dict[str, tuple[Row, ...]]] = {
    k.BACKEND_RESOLVED: (
        Row("True", r.RESOLVED, "the backend is there and has its addresses"),
        Row(
            "False",
            r.BACKEND_NOT_SINGULAR,
            "the pool got past admission with no backend, or with several",
            "delete the pool and create it with one backend",
        ),
        Row("False", r.BACKEND_NOT_FOUND, "the KVCacheBackend does not exist", "create it, or delete the pool"),
        Row(
            "False",
            r.ENDPOINTS_NOT_PUBLISHED,
            "the backend has not published its Admin address, or is being deleted and takes no new pool",
            "see the conditions of the KVCacheBackend; create it again once it is gone",
        ),
    ),
    k.QUOTA_LEDGER_AVAILABLE: (
        Row("True", r.AVAILABLE, "the ledger can be read"),
        Row("False", k.MULTI_TENANCY_DISABLED, _OFF, _ON),
        Row("False", r.LEDGER_UNREACHABLE, _UNREACHABLE, _RESTORE),
    ),
    k.QUOTA_POLICY_WRITABLE: (
        Row("True", r.WRITABLE, "the master takes ceilings"),
        Row(
            "False",
            r.QUOTA_POLICY_NOT_WRITABLE,
            "ceilings do not reach the master: it cannot write its policy file, or the document could not be made",
            "give the master a directory that it can write, and see what the message says",
        ),
        Row("Unknown", k.MULTI_TENANCY_DISABLED, "a store without a ledger reads no policy"),
        Row("Unknown", r.LEDGER_UNREACHABLE, _UNREACHABLE, _RESTORE),
    ),
    k.CAPACITY_ALLOCATABLE: (
        Row("True", r.ALLOCATABLE, "the master has memory to grant"),
        Row(
            "False",
            r.NOTHING_TO_ALLOCATE,
            "no segment is mounted, so every grant is zero and every write is refused; after a restart of the master "
            "this lasts about half a minute",
            "wait; if it stays, see MembersMounted of the KVCacheBackend",
        ),
        Row(
            "False",
            r.CAPACITY_NOT_OBSERVED,
            "the metrics could not be read, or do not tell the capacity",
            "see that `/metrics` of the master answers; the message says what was wrong",
        ),
    ),
    k.QUOTA_WITHIN_TOTAL: (
        Row("True", r.WITHIN_TOTAL, "the ceilings fit into `spec.quota.total`; that much need not be mounted"),
        Row(
            "False",
            r.OVERSUBSCRIBED,
            "they do not, or the total cannot be read; the pool serves, and every grant may be cut in proportion to "
            "its ceiling",
            "nothing, if that is meant; else lower ceilings, or raise or mend the total",
        ),
    ),
    k.RELEASABLE: (
        Row(
            "False",
            r.HELD_BY_BINDINGS,
            "the deletion waits for the Bindings of the pool, or for one of which nobody can read whose it is",
            "delete the Bindings that the message names; mend those that cannot be read",
        ),
        Row(
            "False",
            r.LEDGER_NOT_RELEASED,
            "the pool's tenants are, or may be, still on the master",
            "restore the master, or drain the domains that the message names; if the ledger no longer matters, take "
            "the finalizer off",
        ),
    ),
}

BINDING: Final[dict[str, tuple[Row, ...]]] = {
    k.DOMAIN_EXCLUSIVE: (
        Row("True", r.EXCLUSIVE, "nobody else claims the domain on this store"),
        Row(
            "False",
            r.DOMAIN_CLAIMED_BY_MULTIPLE_BINDINGS,
            "Bindings that were created at the same time claim one domain; its quota stays as it is",
            "delete all but one; the message names the others",
        ),
    ),
    k.QUOTA_OBSERVED: (
        Row("True", r.OBSERVED, "the figures are the master's"),
        Row("True", r.NO_TENANT_LEDGER, "the store keeps no ledger, so there are no figures"),
        Row("True", r.TENANT_NOT_IN_LEDGER, "the master was read and does not list the domain"),
        Row(
            "False",
            r.MASTER_NOT_SCRAPED,
            "the master could not be read, or this Binding cannot be served; its figures and quota are the last ones",
            "see the conditions of the pool; mend the Binding if the message is about it",
        ),
    ),
    k.QUOTA_GRANTED: (
        Row("True", r.GRANTED, "there is a grant, if perhaps a smaller one than the ceiling"),
        Row("True", r.UNENFORCED, "the store limits nobody"),
        Row("False", r.NO_LEDGER_ENTRY, "every write is refused until the domain is registered", "wait for a pass"),
        Row(
            "False",
            r.GRANT_NOT_EXPORTED,
            "the master's metrics do not tell the grant",
            "use Mooncake 0.3.12 or newer",
        ),
        Row(
            "False",
            r.ZERO_GRANTED,
            "the grant is zero, so every write is refused",
            "see CapacityAllocatable of the pool",
        ),
    ),
    k.RELEASABLE: (
        Row(
            "False",
            r.HELD_BY_WORKLOADS,
            "the deletion waits for the workloads in `status.usedBy`",
            "remove those workloads; nothing needs to be drained",
        ),
        Row(
            "False",
            r.LEDGER_NOT_RELEASED,
            "the store keeps the tenant as long as its domain holds objects",
            "drain the domain; the next pass releases it",
        ),
        Row(
            "False",
            r.LEDGER_REQUEST_FAILED,
            "a request to the ledger failed, so nobody knows whether the tenant is gone",
            "see the conditions of the pool; draining changes nothing",
        ),
    ),
}
