"""Validation as pure functions: objects in, a verdict out. No HTTP, no API server; the command line uses them, too.

The rules are tables whose rows carry the numbers of spec 02 §5 (`cachebackend.RULES`), so that a reader of either finds
the other.
"""

from inferencecache.webhooks.validation.cachebackend import RULES, validate_cache_backend
from inferencecache.webhooks.validation.findings import Verdict, Violation, ViolationKind
from inferencecache.webhooks.validation.siblings import (
    needs_tenant_siblings,
    validate_cache_policy,
    validate_cache_tenant,
)

__all__ = [
    "RULES",
    "Verdict",
    "Violation",
    "ViolationKind",
    "needs_tenant_siblings",
    "validate_cache_backend",
    "validate_cache_policy",
    "validate_cache_tenant",
]
