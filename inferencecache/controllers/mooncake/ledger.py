"""Bringing a master's ledger to what the Bindings ask for (spec 10 §6.2).

A pass reads the ledger once, and then writes only what differs: a settled master receives no write. An entry is taken
out only if somebody registered it through a Binding and it has a policy, so tenants made by hand are left alone.
A tenant that still holds objects is *retained*: it is taken out by a later pass, and keeps no other from being settled.
Everything else that goes wrong ends the pass, as it would go wrong for the next tenant too.

Reading and settling are two steps, because what the ledger holds also belongs into the policy document, which is to be
written before the ledger is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from inferencecache.controllers.mooncake.admin import (
    AdminClient,
    CannotPersist,
    LedgerEntry,
    MasterError,
    MultiTenancyOff,
    TenantNotEmpty,
)


class Verdict(Enum):
    """How far a pass came; the rows of spec 10 §6.2."""

    NO_LEDGER = auto()
    """The master keeps none, by declaration or by its own word."""
    WITHDRAWN = auto()
    """The master kept one when it was read, and none when it was written."""
    NOT_WRITABLE = auto()
    """The master cannot persist what it is told."""
    UNREACHABLE = auto()
    """Any other failure; what became of the last request is not known."""
    RETAINED = auto()
    """All is done, but for tenants that still hold objects."""
    CONVERGED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write, in this order. Both are sorted by tenant."""

    puts: tuple[tuple[str, int], ...] = ()
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The ledger as it was read; without a `failure`, all of it."""

    entries: Mapping[str, LedgerEntry] = field(default_factory=dict)
    failure: MasterError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass came to.

    Attributes:
        verdict: how far it came.
        put: tenants whose policy was written.
        deleted: tenants that were taken out.
        retained: tenants that were to be taken out and still hold objects.
        failure: what ended the pass early; also what made the master known to keep no ledger.
    """

    verdict: Verdict
    put: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()
    failure: MasterError | None = None

    @property
    def converged(self) -> bool:
        """Nothing is left to do."""
        return self.verdict in {Verdict.NO_LEDGER, Verdict.CONVERGED}


DECLARED_OFF: Final = Outcome(verdict=Verdict.NO_LEDGER)
"""Of a pass over a master that is known to keep no ledger without asking it."""


def plan(entries: Mapping[str, LedgerEntry], desired: Mapping[str, int], registered: Collection[str]) -> Plan:
    """What brings a ledger to the desired tenants.

    Args:
        entries: the ledger.
        desired: bytes by tenant.
        registered: tenants that are this operator's to take out.
    """
    return Plan(
        puts=tuple((name, quota) for name, quota in sorted(desired.items()) if not _settled(entries.get(name), quota)),
        deletes=tuple(
            name
            for name, entry in sorted(entries.items())
            if name not in desired and name in registered and entry.has_explicit_policy
        ),
    )


def _settled(entry: LedgerEntry | None, quota: int) -> bool:
    return entry is not None and entry.has_explicit_policy and entry.requested_quota_bytes == quota


async def read(admin: AdminClient) -> Reading:
    """The ledger of a master. Failures are told, not raised."""
    try:
        return Reading(entries=await admin.quotas())
    except MasterError as failure:
        return Reading(failure=failure)


async def settle(admin: AdminClient, reading: Reading, todo: Plan) -> Outcome:
    """Write what is planned after a reading; nothing if that failed. Failures are told, not raised."""
    if isinstance(reading.failure, MultiTenancyOff):
        return Outcome(verdict=Verdict.NO_LEDGER, failure=reading.failure)
    if reading.failure is not None:
        return _stopped(reading.failure)
    put: list[str] = []
    deleted: list[str] = []
    retained: list[str] = []
    try:
        for name, quota in todo.puts:
            await admin.put_quota(name, quota)
            put.append(name)
        for name in todo.deletes:
            try:
                await admin.delete_quota(name)
                deleted.append(name)
            except TenantNotEmpty:
                retained.append(name)
    except MasterError as failure:
        return _stopped(failure, put, deleted, retained)
    return Outcome(
        verdict=Verdict.RETAINED if retained else Verdict.CONVERGED,
        put=tuple(put),
        deleted=tuple(deleted),
        retained=tuple(retained),
    )


def _stopped(
    failure: MasterError, put: Collection[str] = (), deleted: Collection[str] = (), retained: Collection[str] = ()
) -> Outcome:
    match failure:
        case MultiTenancyOff():
            verdict = Verdict.WITHDRAWN
        case CannotPersist():
            verdict = Verdict.NOT_WRITABLE
        case _:
            verdict = Verdict.UNREACHABLE
    return Outcome(verdict=verdict, put=tuple(put), deleted=tuple(deleted), retained=tuple(retained), failure=failure)
