"""Bringing a ledger to what is desired (spec 10 §6.2), against a ledger one can verify by eye.

The same against a real master: tests/integration/mooncake/test_ledger.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.admin import (
    AdminClient,
    BadTenant,
    CannotPersist,
    LedgerEntry,
    MasterError,
    MasterFailure,
    MultiTenancyOff,
    TenantNotEmpty,
)
from inferencecache.controllers.mooncake.ledger import (
    DECLARED_OFF,
    Outcome,
    Plan,
    Verdict,
    plan,
    read,
    settle,
)
from tests.mooncake import converge


def entry(tenant: str, requested: int, *, explicit: bool = True) -> LedgerEntry:
    return LedgerEntry(tenant_id=tenant, requested_quota_bytes=requested, has_explicit_policy=explicit)


@dataclass
class Ledger:
    """A master's ledger: a dict, the tenants that hold objects, and at which write it fails with what."""

    entries: dict[str, LedgerEntry] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)
    failures: dict[int, MasterError] = field(default_factory=dict)
    unreadable: MasterError | None = None
    writes: list[tuple[Any, ...]] = field(default_factory=list)
    reads: int = 0

    async def quotas(self) -> dict[str, LedgerEntry]:
        self.reads += 1
        if self.unreadable is not None:
            raise self.unreadable
        return dict(self.entries)

    async def put_quota(self, tenant: str, requested: int) -> None:
        self._write("put", tenant, requested)
        self.entries[tenant] = entry(tenant, requested)

    async def delete_quota(self, tenant: str) -> None:
        self._write("delete", tenant)
        if tenant in self.filled:
            raise TenantNotEmpty(tenant)
        self.entries.pop(tenant, None)

    def _write(self, *what: Any) -> None:
        if failure := self.failures.get(len(self.writes)):
            raise failure
        self.writes.append(what)

    @property
    def admin(self) -> AdminClient:
        return cast(AdminClient, self)


@pytest.mark.parametrize(
    ("entries", "desired", "registered", "expected"),
    [
        ([], {}, set(), Plan()),
        ([], {"b": 2, "a": 1}, {"a", "b"}, Plan(puts=(("a", 1), ("b", 2)))),
        ([entry("a", 1)], {"a": 1}, {"a"}, Plan()),
        ([entry("a", 1)], {"a": 2}, {"a"}, Plan(puts=(("a", 2),))),
        ([entry("a", 1, explicit=False)], {"a": 1}, {"a"}, Plan(puts=(("a", 1),))),
        ([entry("a", 1)], {"a": 2}, set(), Plan(puts=(("a", 2),))),
        ([entry("b", 1), entry("a", 1)], {}, {"a", "b"}, Plan(deletes=("a", "b"))),
        ([entry("a", 1)], {}, set(), Plan()),
        ([entry("a", 1, explicit=False)], {}, {"a"}, Plan()),
        ([], {}, {"a"}, Plan()),
        ([entry("a", 1), entry("b", 1)], {"c": 1}, {"b", "c"}, Plan(puts=(("c", 1),), deletes=("b",))),
    ],
    ids=[
        "nothing", "new, by name", "settled", "another quota", "no policy yet", "desired without being registered",
        "registered and no longer desired", "made by hand", "without a policy", "not there", "all at once",
    ],
)  # fmt: skip
def test_only_what_differs_is_written_and_only_what_is_ours_is_taken_out(
    entries: list[LedgerEntry], desired: dict[str, int], registered: set[str], expected: Plan
) -> None:
    assert plan({row.tenant_id: row for row in entries}, desired, registered) == expected


OFF, SICK, DOWN, BAD = MultiTenancyOff("off"), CannotPersist("read-only"), MasterFailure("down"), BadTenant("bad")


@pytest.mark.parametrize(
    ("unreadable", "failures", "filled", "verdict", "converged"),
    [
        (OFF, {}, set(), Verdict.NO_LEDGER, True),
        (SICK, {}, set(), Verdict.NOT_WRITABLE, False),
        (DOWN, {}, set(), Verdict.UNREACHABLE, False),
        (None, {0: OFF}, set(), Verdict.WITHDRAWN, False),
        (None, {1: OFF}, set(), Verdict.WITHDRAWN, False),
        (None, {0: SICK}, set(), Verdict.NOT_WRITABLE, False),
        (None, {1: SICK}, set(), Verdict.NOT_WRITABLE, False),
        (None, {0: DOWN}, set(), Verdict.UNREACHABLE, False),
        (None, {0: BAD}, set(), Verdict.UNREACHABLE, False),
        (None, {2: DOWN}, {"old-1"}, Verdict.UNREACHABLE, False),
        (None, {}, {"old-1"}, Verdict.RETAINED, False),
        (None, {}, set(), Verdict.CONVERGED, True),
    ],
)
async def test_a_pass_tells_how_far_it_came(
    unreadable: MasterError | None,
    failures: dict[int, MasterError],
    filled: set[str],
    verdict: Verdict,
    converged: bool,
) -> None:
    ledger = Ledger({name: entry(name, 1) for name in ("old-1", "old-2")}, filled, failures, unreadable)
    outcome = await converge(ledger.admin, {"new": 1}, {"old-1", "old-2", "new"})
    assert (outcome.verdict, outcome.converged) == (verdict, converged)
    assert outcome.failure is (unreadable or next(iter(failures.values()), None))
    assert ledger.reads == 1


async def test_a_pass_that_failed_tells_what_it_had_done() -> None:
    ledger = Ledger({name: entry(name, 1) for name in "abcd"}, {"b"}, {4: DOWN})
    outcome = await converge(ledger.admin, {"new": 1}, set("abcd"))
    assert outcome == Outcome(
        verdict=Verdict.UNREACHABLE, put=("new",), deleted=("a", "c"), retained=("b",), failure=DOWN
    )


async def test_a_filled_tenant_keeps_no_other_from_being_taken_out() -> None:
    ledger = Ledger({name: entry(name, 1) for name in "abc"}, {"a", "c"})
    outcome = await converge(ledger.admin, {}, set("abc"))
    assert outcome == Outcome(verdict=Verdict.RETAINED, deleted=("b",), retained=("a", "c"))
    ledger.filled.clear()
    assert await converge(ledger.admin, {}, set("abc")) == Outcome(verdict=Verdict.CONVERGED, deleted=("a", "c"))


def test_a_master_that_is_declared_without_tenants_is_as_one_that_says_so() -> None:
    assert (DECLARED_OFF.verdict, DECLARED_OFF.converged) == (Verdict.NO_LEDGER, True)


async def test_settling_writes_by_what_was_read_before() -> None:
    ledger = Ledger({"a": entry("a", 1)})
    reading = await read(ledger.admin)
    assert dict(reading.entries) == ledger.entries
    await settle(ledger.admin, reading, plan(reading.entries, {"a": 2}, {"a"}))
    assert (ledger.reads, ledger.writes) == (1, [("put", "a", 2)])


names = st.sampled_from("abcdefgh")
quotas = st.integers(1, 3)
ledgers = st.dictionaries(names, st.tuples(quotas, st.booleans()))


@given(
    before=ledgers,
    desired=st.dictionaries(names, quotas),
    registered=st.sets(names),
    filled=st.sets(names),
    failing=st.none() | st.tuples(st.integers(0, 6), st.sampled_from([OFF, SICK, DOWN])),
)
async def test_any_ledger_converges_and_then_receives_no_write(
    before: dict[str, tuple[int, bool]],
    desired: dict[str, int],
    registered: set[str],
    filled: set[str],
    failing: tuple[int, MasterError] | None,
) -> None:
    was = {name: entry(name, quota, explicit=explicit) for name, (quota, explicit) in before.items()}
    ledger = Ledger(dict(was), filled, dict([failing] if failing else []))
    await converge(ledger.admin, desired, registered)
    ledger.failures.clear()
    outcome = await converge(ledger.admin, desired, registered)

    doomed = {name for name in was if name not in desired and name in registered and was[name].has_explicit_policy}
    assert set(outcome.retained) == doomed & filled
    assert outcome.verdict is (Verdict.RETAINED if doomed & filled else Verdict.CONVERGED)
    assert ledger.entries == {
        **{name: row for name, row in was.items() if name not in doomed or name in filled},
        **{name: entry(name, quota) for name, quota in desired.items()},
    }

    ledger.writes.clear()
    assert await converge(ledger.admin, desired, registered) == Outcome(
        verdict=outcome.verdict, retained=outcome.retained
    )
    assert ledger.writes == [("delete", name) for name in outcome.retained]
