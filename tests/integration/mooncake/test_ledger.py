"""Converging the ledger of a real master (spec 10 §6.2), over random ledgers and tenants that hold objects."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.admin import AdminClient, CannotPersist, MooncakeClients, MultiTenancyOff
from inferencecache.controllers.mooncake.ledger import Outcome, Verdict, plan, read, settle
from tests.mooncake import MIB, Master, Store, converge


async def requested(admin: AdminClient) -> dict[str, int]:
    return {name: entry.requested_quota_bytes for name, entry in (await admin.quotas()).items()}


@pytest.fixture
async def stores(master: Master, admin: AdminClient) -> AsyncIterator[dict[str, Store]]:
    """A store for each of two tenants, one of which mounts memory."""
    with contextlib.ExitStack() as stack:
        yield {
            "a": stack.enter_context(Store(master, tenant="a", segment=64 * MIB)),
            "b": stack.enter_context(Store(master, tenant="b")),
        }


names = st.sampled_from("abcdef")
quotas = st.integers(1, 2).map(lambda count: count * MIB)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.dictionaries(names, quotas),
    filled=st.sets(st.sampled_from("ab")),
    desired=st.dictionaries(names, quotas),
    registered=st.sets(names),
)
async def test_any_ledger_converges_and_then_receives_no_write(
    admin: AdminClient,
    stores: dict[str, Store],
    before: dict[str, int],
    filled: set[str],
    desired: dict[str, int],
    registered: set[str],
) -> None:
    for name, quota in before.items():
        await admin.put_quota(name, quota)
    filled &= set(before)
    for name in filled:
        assert stores[name].put("key", MIB // 2) == 0

    outcome = await converge(admin, desired, registered)
    doomed = {name for name in before if name in registered and name not in desired}
    assert outcome == Outcome(
        verdict=Verdict.RETAINED if doomed & filled else Verdict.CONVERGED,
        put=tuple(sorted(name for name, quota in desired.items() if before.get(name) != quota)),
        deleted=tuple(sorted(doomed - filled)),
        retained=tuple(sorted(doomed & filled)),
    )
    settled = {name: quota for name, quota in before.items() if name not in doomed or name in filled} | desired
    assert await requested(admin) == settled

    again = await converge(admin, desired, registered)
    assert again == Outcome(verdict=outcome.verdict, retained=outcome.retained)
    assert await requested(admin) == settled

    for name in filled:
        assert stores[name].remove("key") == 0
    assert (await converge(admin, desired, registered)).deleted == outcome.retained
    reading = await read(admin)
    await settle(admin, reading, plan(reading.entries, {}, set("abcdef")))
    assert await requested(admin) == {}


async def test_a_settled_master_does_not_write_its_file_again(master: Master, admin: AdminClient) -> None:
    assert (await converge(admin, {"a": 1, "b": 2}, {"a", "b"})).converged
    stamp = master.policy.stat()
    assert (await converge(admin, {"a": 1, "b": 2}, {"a", "b"})).converged
    assert (master.policy.stat().st_ino, master.policy.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)


async def test_a_master_that_cannot_persist_is_told_from_one_that_does_not_answer(
    master: Master, admin: AdminClient
) -> None:
    await admin.put_quota("old", 1)
    with master.unwritable():
        for desired in ({"new": 1}, {}):
            outcome = await converge(admin, desired, {"old"})
            assert (outcome.verdict, type(outcome.failure)) == (Verdict.NOT_WRITABLE, CannotPersist)
    master.kill()
    assert (await converge(admin, {"new": 1}, {"old"})).verdict is Verdict.UNREACHABLE
    master.start()
    assert await converge(admin, {"new": 1}, {"old"}) == Outcome(
        verdict=Verdict.CONVERGED, put=("new",), deleted=("old",)
    )


async def test_a_master_without_tenants_has_nothing_to_converge(
    single_tenant: Master, clients: MooncakeClients
) -> None:
    outcome = await converge(clients.at(single_tenant.admin), {"a": 1}, {"a"})
    assert (outcome.verdict, type(outcome.failure), outcome.converged) == (Verdict.NO_LEDGER, MultiTenancyOff, True)
