"""What the pool's documentation says of a store's quotas, measured on a real one (spec 10 §6.5)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.admin import AdminClient
from inferencecache.controllers.mooncake.exposition import TenantFigures, parse
from tests.mooncake import MIB, Master, Store

QUOTA_EXCEEDED = -1700
NOT_REGISTERED = -1701


@pytest.fixture
async def mounted(master: Master) -> AsyncIterator[None]:
    with Store(master, tenant="none", segment=64 * MIB):
        yield


async def figures(admin: AdminClient, tenant: str) -> TenantFigures:
    return parse(await admin.metrics()).tenants[tenant]


async def grants(admin: AdminClient) -> dict[str, int | None]:
    return {name: figures.effective for name, figures in parse(await admin.metrics()).tenants.items()}


def recut(capacity: int, requested: dict[str, int]) -> dict[str, int]:
    """Grants in proportion to requests; the bytes that are left go to the largest remainders."""
    total = sum(requested.values())
    if total <= capacity:
        return requested
    shares = {name: Fraction(capacity * quota, total) for name, quota in requested.items()}
    cut = {name: share.__floor__() for name, share in shares.items()}
    for name in sorted(shares, key=lambda name: cut[name] - shares[name])[: capacity - sum(cut.values())]:
        cut[name] += 1
    return cut


async def test_without_memory_nothing_is_granted_and_with_memory_what_was_asked_for(
    master: Master, admin: AdminClient
) -> None:
    for tenant, quota in (("a", 16), ("b", 48)):
        await admin.put_quota(tenant, quota * MIB)
    assert await grants(admin) == {"a": 0, "b": 0}
    with Store(master, tenant="a", segment=64 * MIB) as store:
        assert await grants(admin) == {"a": 16 * MIB, "b": 48 * MIB}
        store.close()
        assert await grants(admin) == {"a": 0, "b": 0}


async def test_what_was_asked_for_in_excess_is_cut_in_proportion(master: Master, admin: AdminClient) -> None:
    for tenant, quota in (("a", 16), ("b", 96), ("c", 64)):
        await admin.put_quota(tenant, quota * MIB)
    with Store(master, tenant="a", segment=64 * MIB):
        assert await grants(admin) == {"a": 6100806, "b": 36604835, "c": 24403223}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requested=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 64 * MIB), min_size=1))
async def test_the_cut_is_by_largest_remainder(admin: AdminClient, mounted: None, requested: dict[str, int]) -> None:
    for tenant, quota in requested.items():
        await admin.put_quota(tenant, quota)
    found, wanted = await grants(admin), recut(64 * MIB, requested)
    for tenant in requested:
        await admin.delete_quota(tenant)
    remainders = [quota * 64 * MIB % sum(requested.values()) for quota in requested.values()]
    if len(set(remainders)) == len(remainders):
        assert found == wanted
    else:  # whom equal remainders favour is the store's to choose
        assert sorted(found.values()) == sorted(wanted.values())


async def test_a_write_past_the_grant_discards_the_domains_own_objects_and_nobody_is_told(
    master: Master, admin: AdminClient
) -> None:
    await admin.put_quota("a", 16 * MIB)
    with Store(master, tenant="a", segment=64 * MIB) as store:
        keys = [f"key-{number}" for number in range(8)]
        assert [store.put(key, 4 * MIB) for key in keys] == [0] * 8
        assert sum(map(store.exists, keys)) == 4
        found = await figures(admin, "a")
        assert (found.usage, found.effective, found.over_quota) == (16 * MIB, 16 * MIB, False)
        metrics = await admin.metrics()
    assert re.search(r"^master_evicted_key_count 0$", metrics, re.MULTILINE)
    assert re.search(r'^mooncake_tenant_evict_bytes_total\{tenant_id="a"\} 16777216$', metrics, re.MULTILINE)


async def test_a_write_is_refused_while_everything_in_the_grant_was_just_read(
    master: Master, admin: AdminClient
) -> None:
    await admin.put_quota("a", 8 * MIB)
    with Store(master, tenant="a", segment=64 * MIB) as store:
        assert [store.put(key, 4 * MIB) for key in ("one", "two")] == [0, 0]
        assert [store.get(key) for key in ("one", "two")] == [4 * MIB, 4 * MIB]
        assert store.put("three", 4 * MIB) == QUOTA_EXCEEDED
        assert (await figures(admin, "a")).over_quota is False
        assert store.remove("one") == 0
        assert store.put("three", 4 * MIB) == 0


async def test_only_registered_tenants_write_and_default_is_one_like_any_other(
    master: Master, admin: AdminClient
) -> None:
    with Store(master, tenant="a", segment=64 * MIB) as store, Store(master) as nameless:
        assert (store.put("key", MIB), nameless.put("key", MIB)) == (NOT_REGISTERED, NOT_REGISTERED)
        await admin.put_quota("default", 8 * MIB)
        assert (store.put("key", MIB), nameless.put("key", MIB)) == (NOT_REGISTERED, 0)
        await admin.put_quota("a", 8 * MIB)
        assert store.put("key", MIB) == 0


async def test_a_domain_is_over_its_quota_only_when_the_grant_was_recut_below_what_it_holds(
    master: Master, admin: AdminClient
) -> None:
    await admin.put_quota("a", 32 * MIB)
    with Store(master, tenant="a", segment=64 * MIB) as store:
        assert [store.put(f"key-{number}", 4 * MIB) for number in range(12)] == [0] * 12
        assert (await figures(admin, "a")).over_quota is False
        await admin.put_quota("b", 96 * MIB)
        found = await figures(admin, "a")
        assert (found.usage, found.effective, found.over_quota) == (32 * MIB, 16 * MIB, True)
