"""The admin client and the metrics of a real master (spec 10 §6.3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from inferencecache.controllers.mooncake.admin import (
    AdminClient,
    BadQuota,
    BadTenant,
    CannotPersist,
    Health,
    LedgerEntry,
    MasterFailure,
    MooncakeClients,
    MultiTenancyOff,
    TenantNotEmpty,
)
from inferencecache.controllers.mooncake.exposition import TenantFigures, parse
from tests.integration.kube.waiting import eventually
from tests.mooncake import MIB, Master, Store

LARGEST = 2**63 - 1


async def test_a_quota_is_written_read_changed_and_deleted(admin: AdminClient) -> None:
    assert await admin.quotas() == {}
    await admin.put_quota("a", 5)
    await admin.put_quota("a", LARGEST)
    entry = LedgerEntry(
        tenant_id="a",
        requested_quota_bytes=LARGEST,
        has_explicit_policy=True,
        effective_quota_bytes=0,
        charged_bytes=0,
        over_quota=False,
    )
    assert await admin.quotas() == {"a": entry}
    await admin.delete_quota("a")
    assert await admin.quotas() == {}
    await admin.delete_quota("a")


@pytest.mark.parametrize("tenant", ["_a", "a\nb", "a\x7f"])
async def test_a_tenant_id_the_master_does_not_take_is_told_from_a_quota_it_does_not_take(
    admin: AdminClient, tenant: str
) -> None:
    with pytest.raises(BadTenant):
        await admin.put_quota(tenant, 1)
    for quota in (0, -1, LARGEST + 1):
        with pytest.raises(BadQuota):
            await admin.put_quota("a", quota)
    assert await admin.quotas() == {}


NAMES = ["a", "a b", "a+b", "a&tenant_id=b", "a/b", "a#b", "%41", "é", "😀", '"quoted"', "back\\slash", "a,b", "\u2028"]


async def test_any_tenant_id_comes_back_as_it_went_from_the_ledger_and_from_the_metrics(admin: AdminClient) -> None:
    for quota, name in enumerate(NAMES, start=1):
        await admin.put_quota(name, quota)
    wanted = {name: quota for quota, name in enumerate(NAMES, start=1)}
    assert {name: entry.requested_quota_bytes for name, entry in (await admin.quotas()).items()} == wanted
    scrape = parse(await admin.metrics())
    assert {name: figures.requested for name, figures in scrape.tenants.items()} == wanted
    for name in NAMES:
        await admin.delete_quota(name)
    assert await admin.quotas() == {}


async def test_a_master_without_tenants_says_so_to_every_call_of_the_ledger(
    single_tenant: Master, clients: MooncakeClients
) -> None:
    admin = clients.at(single_tenant.admin)
    for call in (admin.quotas(), admin.put_quota("a", 1), admin.delete_quota("a")):
        with pytest.raises(MultiTenancyOff):
            await call
    assert await admin.health() == Health(service_ready=True)
    with Store(single_tenant, segment=16 * MIB) as store:
        assert store.put("key", MIB) == 0
        scrape = parse(await admin.metrics())
    assert (scrape.tenants, scrape.allocatable, scrape.total_capacity) == ({}, None, 16 * MIB)
    assert scrape.allocated == MIB


async def test_a_tenant_that_holds_objects_is_not_deleted(master: Master, admin: AdminClient) -> None:
    await admin.put_quota("a", 16 * MIB)
    with Store(master, tenant="a", segment=64 * MIB) as store:
        assert store.put("key", 4 * MIB) == 0
        with pytest.raises(TenantNotEmpty):
            await admin.delete_quota("a")
        entry = (await admin.quotas())["a"]
        assert (entry.has_explicit_policy, entry.charged_bytes) == (True, 4 * MIB)
        assert store.remove("key") == 0
        await admin.delete_quota("a")
    assert await admin.quotas() == {}


async def test_a_master_that_cannot_write_its_policy_file_changes_nothing(master: Master, admin: AdminClient) -> None:
    await admin.put_quota("a", 5)
    before, document = await admin.quotas(), master.policy.read_text()
    with master.unwritable():
        for call in (admin.put_quota("a", 6), admin.put_quota("b", 7), admin.delete_quota("a")):
            with pytest.raises(CannotPersist):
                await call
        assert await admin.quotas() == before
    assert master.policy.read_text() == document
    await admin.put_quota("b", 7)
    assert set(await admin.quotas()) == {"a", "b"}


async def test_segments_and_capacity_come_and_go_with_a_store(master: Master, admin: AdminClient) -> None:
    assert await admin.segments() == []
    await admin.put_quota("a", 16 * MIB)
    with Store(master, tenant="a", segment=64 * MIB) as store:
        (segment,) = await admin.segments()
        assert (segment.size_bytes, segment.protocol) == (64 * MIB, "tcp")
        assert segment.segment_name.startswith("127.0.0.1:")
        assert segment.segment_id
        assert segment.client_id
        assert store.put("key", 3 * MIB) == 0
        scrape = parse(await admin.metrics())
        assert (scrape.allocatable, scrape.total_capacity, scrape.allocated) == (64 * MIB, 64 * MIB, 3 * MIB)
        assert scrape.tenants["a"] == TenantFigures(
            requested=16 * MIB,
            effective=16 * MIB,
            usage=3 * MIB,
            usage_includes_in_flight=True,
            over_quota=False,
            explicit_policy=True,
        )
        store.close()
        assert await admin.segments() == []
    scrape = parse(await admin.metrics())
    assert (scrape.allocatable, scrape.total_capacity, scrape.tenants["a"].effective) == (0, 0, 0)


async def test_a_quota_as_large_as_there_is_leaves_the_scrape_readable(admin: AdminClient) -> None:
    """The master's own sums then leave the range of 64 bits."""
    await admin.put_quota("a", LARGEST)
    await admin.put_quota("b", LARGEST)
    text = await admin.metrics()
    assert f"mooncake_tenant_quota_requested_bytes_sum {2 * LARGEST}" in text
    assert parse(text).tenants["b"].requested == LARGEST


async def test_a_restarted_master_is_reached_at_once_and_remembers_its_quotas(
    master: Master, admin: AdminClient
) -> None:
    await admin.put_quota("a", 5)
    master.restart()
    assert {name: entry.requested_quota_bytes for name, entry in (await admin.quotas()).items()} == {"a": 5}
    master.kill()
    with pytest.raises(MasterFailure):
        await admin.quotas()
    master.start()
    assert set(await admin.quotas()) == {"a"}


async def test_a_store_mounts_again_after_its_master_restarted(master: Master, admin: AdminClient) -> None:
    await admin.put_quota("a", 5)
    with Store(master, tenant="a", segment=16 * MIB):
        master.restart()

        async def granted() -> int | None:
            return parse(await admin.metrics()).tenants["a"].effective

        # A new master grants nothing before a store mounts on it, which may be before we first look.
        await eventually(granted, lambda grant: grant == 5)


async def test_a_frozen_master_costs_its_own_calls_one_timeout_and_nobody_elses(
    master: Master, tmp_path_factory: pytest.TempPathFactory
) -> None:
    patient, hasty = MooncakeClients(timeout=timedelta(hours=1)), MooncakeClients(timeout=timedelta(seconds=4))
    running = [asyncio.create_task(clients.run()) for clients in (patient, hasty)]
    with Master(tmp_path_factory.mktemp("other")) as other:
        frozen = patient.at(master.admin)
        assert await frozen.quotas() == {}
        assert await patient.at(other.admin).health() == Health(service_ready=True)
        master.freeze()
        waiting = [asyncio.create_task(frozen.quotas()) for _ in range(20)]
        async with asyncio.timeout(60):
            assert await patient.at(other.admin).health() == Health(service_ready=True)
        assert not any(call.done() for call in waiting), "the answer of one master waited for another"
        async with asyncio.timeout(60):  # in turn they would take 80 s
            calls = (hasty.at(master.admin).quotas() for _ in range(20))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {MasterFailure}
        master.thaw()
        assert await asyncio.gather(*waiting) == [{}] * 20
    for task in running:
        task.cancel()
    await asyncio.wait(running)
