"""Reasons that the conditions of pools and Bindings carry (spec 10 §7, §10, §11). Other clients match on them.

`MultiTenancyDisabled` lives with the kinds, as admission and injection decide by it.
"""

from __future__ import annotations

from typing import Final

# BackendResolved.
RESOLVED: Final = "Resolved"
BACKEND_NOT_SINGULAR: Final = "BackendNotSingular"
BACKEND_NOT_FOUND: Final = "BackendNotFound"
ENDPOINTS_NOT_PUBLISHED: Final = "EndpointsNotPublished"

# QuotaLedgerAvailable.
AVAILABLE: Final = "Available"
LEDGER_UNREACHABLE: Final = "LedgerUnreachable"
"""Also of QuotaPolicyWritable."""

# QuotaPolicyWritable.
WRITABLE: Final = "Writable"
QUOTA_POLICY_NOT_WRITABLE: Final = "QuotaPolicyNotWritable"

# CapacityAllocatable.
ALLOCATABLE: Final = "Allocatable"
NOTHING_TO_ALLOCATE: Final = "NothingToAllocate"
CAPACITY_NOT_OBSERVED: Final = "CapacityNotObserved"

# QuotaWithinTotal.
WITHIN_TOTAL: Final = "WithinTotal"
OVERSUBSCRIBED: Final = "Oversubscribed"

# Releasable: of a pool, of both, of a Binding.
HELD_BY_BINDINGS: Final = "HeldByBindings"
LEDGER_NOT_RELEASED: Final = "LedgerNotReleased"
HELD_BY_WORKLOADS: Final = "HeldByWorkloads"
LEDGER_REQUEST_FAILED: Final = "LedgerRequestFailed"

# DomainExclusive.
EXCLUSIVE: Final = "Exclusive"
DOMAIN_CLAIMED_BY_MULTIPLE_BINDINGS: Final = "DomainClaimedByMultipleBindings"

# QuotaObserved.
OBSERVED: Final = "Observed"
NO_TENANT_LEDGER: Final = "NoTenantLedger"
MASTER_NOT_SCRAPED: Final = "MasterNotScraped"
TENANT_NOT_IN_LEDGER: Final = "TenantNotInLedger"

# QuotaGranted.
GRANTED: Final = "Granted"
UNENFORCED: Final = "Unenforced"
NO_LEDGER_ENTRY: Final = "NoLedgerEntry"
GRANT_NOT_EXPORTED: Final = "GrantNotExported"
ZERO_GRANTED: Final = "ZeroGranted"
