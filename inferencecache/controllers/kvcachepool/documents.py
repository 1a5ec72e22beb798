"""The policy document from which a master starts: what it lists at each moment of a pass (spec 10 §9, decision O6).

A leader's Pod that starts takes the document as it then is, so nothing may be missing from it that is still meant to be
on the master. A domain enters the document before it is written to the ledger, and leaves it after it is known to be
gone from there: the document never lists less than the ledger holds of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import LedgerEntry

Tenants = dict[str, int]
"""Bytes by tenant."""


def to_start_from(snapshot: Snapshot, ledger: Mapping[str, LedgerEntry] | None, listed: Mapping[str, int]) -> Tenants:
    """What the document lists before anything is written to the ledger.

    What is desired; what is contested, as it stands; and what is leaving and still there, at the ceiling of the Binding
    that releases it.

    Args:
        snapshot: what is claimed.
        ledger: the master's, as it was read; None if it could not be.
        listed: what the present document lists, which stands in for a ledger that could not be read.
    """
    standing = explicit(ledger) if ledger is not None else listed
    tenants: Tenants = {name: standing[name] for name in snapshot.contested if name in standing}
    for name, ceiling in snapshot.leaving.items():
        if name in standing:
            tenants[name] = ceiling if ceiling is not None else standing[name]
    return {**tenants, **snapshot.desired}


def after_removal(snapshot: Snapshot, ledger: Mapping[str, LedgerEntry], removed: frozenset[str]) -> Tenants:
    """What the document lists once domains are off the ledger: what is desired, and the rest of the ledger.

    Args:
        snapshot: what is claimed.
        ledger: the master's, as it was read before; empty for a master that keeps none.
        removed: the domains that are gone, or go with their pool.
    """
    kept = {name: quota for name, quota in explicit(ledger).items() if name not in removed}
    return kept | {name: quota for name, quota in snapshot.desired.items() if name not in removed}


def explicit(ledger: Mapping[str, LedgerEntry]) -> Tenants:
    """What was asked for, of the tenants that somebody registered."""
    return {name: entry.requested_quota_bytes for name, entry in ledger.items() if entry.has_explicit_policy}


def tenants_of(document: str) -> Tenants:
    """What a document lists. One that is not ours, or was edited until it cannot be read, lists nothing."""
    try:
        read: Any = yaml.load(document, Loader=_Loader)
        return {str(row["name"]): int(row["quota"]) for row in read["tenants"] or ()}
    except (yaml.YAMLError, LookupError, TypeError, ValueError):
        return {}


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
