"""The checks: pure functions from observations to findings, one module per subject.

`CHECKS` is their order, which is the order of the report (spec 09 §1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from inferencecache.doctor.checks.admission import check_admission
from inferencecache.doctor.checks.backends import check_backends
from inferencecache.doctor.checks.kinds import check_kinds
from inferencecache.doctor.checks.pods import check_injection, check_orphans
from inferencecache.doctor.checks.policies import check_policies, check_tenants
from inferencecache.doctor.checks.pools import check_bindings, check_pools, check_stores
from inferencecache.doctor.checks.server import check_server
from inferencecache.doctor.findings import Finding
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.report import Report

CHECKS: Final[tuple[Callable[[Observations], Iterator[Finding]], ...]] = (
    check_server,
    check_backends,
    check_injection,
    check_orphans,
    check_tenants,
    check_policies,
    check_stores,
    check_pools,
    check_bindings,
    check_admission,
    check_kinds,
)


def examine(seen: Observations) -> Report:
    """Run all checks."""
    return Report(tuple(finding for check in CHECKS for finding in check(seen)))
