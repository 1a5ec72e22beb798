"""What a pool and its Bindings come to on a real master (spec 10 §16)."""

from __future__ import annotations

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, Held, Masterly, World, by_hand, holds, operator, requested
from tests.mooncake import Master, Store


async def test_1_two_pools_of_one_backend_share_ledger_and_document_and_a_settled_world_is_not_written(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    first, second = await world.pool("first"), await world.pool("second")
    one = await world.binding("one", domain="alpha", pool="first")
    two = await world.binding("two", domain="beta", ceiling="32Mi", pool="second")
    masters = Masterly(only=master.admin)
    with Store(master, segment=64 * MIB):
        async with operator(world, masters=masters):
            for pool in (first, second):
                await world.says(KVCachePool, pool, phase="Ready")
            for binding in (one, two):
                await world.says(KVCachePoolBinding, binding, phase="Ready", QuotaGranted=("True", "Granted"))
            both = {"alpha": 16 * MIB, "beta": 32 * MIB}
            assert await requested(master) == both
            assert await world.document() == both
            assert await world.users() == [f"KVCachePool//{world.named(name)}" for name in ("first", "second")]

            before = await world.versions()
            masters.asked.clear()

            async def looked_at() -> int:
                return len(masters.asked)

            await eventually(looked_at, lambda asked: asked > 8)
            assert masters.writes == []
            assert await world.versions() == before


async def test_3_a_domain_that_two_bindings_claim_is_managed_for_neither_and_kept_as_it_is(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool, other = await world.pool(), await world.pool("other")
    first = await world.binding("first", domain="alpha", ceiling="16Mi")
    with Store(master, segment=64 * MIB):
        async with operator(world):
            await world.says(KVCachePoolBinding, first, phase="Ready")
            second = await world.binding("second", domain="alpha", ceiling="32Mi", pool="other")
            contested = ("False", "DomainClaimedByMultipleBindings")
            await world.says(KVCachePoolBinding, first, phase="Error", DomainExclusive=contested)
            await world.says(KVCachePoolBinding, second, phase="Error", DomainExclusive=contested)
            assert str(second) in await world.message(KVCachePoolBinding, first, "DomainExclusive")
            assert str(first) in await world.message(KVCachePoolBinding, second, "DomainExclusive")

            await world.ceiling(first, "48Mi")
            marker = await world.binding("marker", domain="marker")
            await world.says(KVCachePoolBinding, marker, phase="Ready")
            assert await requested(master) == {"alpha": 16 * MIB, "marker": 16 * MIB}
            assert await world.document() == {"alpha": 16 * MIB, "marker": 16 * MIB}

            async def listed() -> list[str]:
                return [domain["name"] for domain in (await world.status(KVCachePool, pool)).get("domains", ())]

            await eventually(listed, lambda seen: seen == ["marker"])  # a pass tells the pool after its Bindings
            assert "domains" not in await world.status(KVCachePool, other)
            assert "alpha" in await world.message(KVCachePool, pool, "QuotaWithinTotal")

            await world.delete(KVCachePoolBinding, first)
            await world.gone(KVCachePoolBinding, first)
            await world.says(KVCachePoolBinding, second, phase="Ready", DomainExclusive=("True", "Exclusive"))
            assert await requested(master) == {"alpha": 32 * MIB, "marker": 16 * MIB}


async def test_4_a_tenant_that_was_made_by_hand_survives_every_pass_and_the_end_of_the_pool(
    world: World, master: Master
) -> None:
    await by_hand(master, "mine", 8 * MIB)
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"mine": 8 * MIB, "alpha": 16 * MIB}), bool)
        await world.delete(KVCachePoolBinding, binding)
        await world.gone(KVCachePoolBinding, binding)
        assert await requested(master) == {"mine": 8 * MIB}
        await world.delete(KVCachePool, pool)
        await world.gone(KVCachePool, pool)
        assert await requested(master) == {"mine": 8 * MIB}


async def test_5_nothing_mounted_is_an_error_of_the_pool_and_its_bindings_that_clears_by_itself(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await world.says(KVCachePool, pool, phase="Error", CapacityAllocatable=("False", "NothingToAllocate"))
        zero = {"phase": "Error", "QuotaObserved": ("True", "Observed"), "QuotaGranted": ("False", "ZeroGranted")}
        await world.says(KVCachePoolBinding, binding, **zero)
        status = await world.status(KVCachePoolBinding, binding)
        figures = {name: status[name] for name in ("requestedQuota", "effectiveQuota", "usage", "overQuota")}
        assert figures == {"requestedQuota": "16Mi", "effectiveQuota": "0", "usage": "0", "overQuota": False}
        with Store(master, segment=64 * MIB):
            await world.says(KVCachePool, pool, phase="Ready", CapacityAllocatable=("True", "Allocatable"))
            await world.says(KVCachePoolBinding, binding, phase="Ready", QuotaGranted=("True", "Granted"))


async def test_6_grants_are_cut_in_proportion_and_more_than_the_total_is_told_and_not_refused(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool(total="200Mi")
    ceilings = {"a": "16Mi", "b": "96Mi", "c": "64Mi"}
    bindings = {name: await world.binding(name, domain=name, ceiling=size) for name, size in ceilings.items()}
    with Store(master, segment=64 * MIB):
        async with operator(world):
            await world.says(KVCachePool, pool, phase="Ready", QuotaWithinTotal=("True", "WithinTotal"))
            for binding in bindings.values():
                await world.says(KVCachePoolBinding, binding, phase="Ready")
            granted = [(await world.status(KVCachePoolBinding, one))["effectiveQuota"] for one in bindings.values()]
            assert granted == ["6100806", "36604835", "24403223"]

            await world.ceiling(bindings["c"], "128Mi")
            await world.says(KVCachePool, pool, phase="Ready", QuotaWithinTotal=("False", "Oversubscribed"))
            message = await world.message(KVCachePool, pool, "QuotaWithinTotal")
            assert "240Mi" in message
            assert "200Mi" in message
            await eventually(holds(master, {"a": 16 * MIB, "b": 96 * MIB, "c": 128 * MIB}), bool)
            await world.says(KVCachePoolBinding, bindings["c"], phase="Ready")


async def test_7_a_master_that_is_down_leaves_the_old_figures_of_bindings_and_takes_the_pools(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    kept, released = await world.binding("kept", domain="alpha"), await world.binding("released", domain="beta")
    masters = Held()
    with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as engine:
        async with operator(world, masters=masters):
            await world.says(KVCachePoolBinding, kept, phase="Ready")
            assert engine.put("key", MIB) == 0

            async def usage() -> str:
                return str((await world.status(KVCachePoolBinding, kept)).get("usage"))

            await eventually(usage, lambda seen: seen == "1Mi")
            await world.says(KVCachePoolBinding, released, phase="Ready")

            async def total() -> str:
                return str((await world.status(KVCachePool, pool)).get("usage", {}).get("total"))

            await eventually(total, lambda seen: seen == "1Mi")
            async with masters.between_passes():  # in the middle of one, its figures might be lost as well
                master.kill()
            unreachable = {
                "QuotaLedgerAvailable": ("False", "LedgerUnreachable"),
                "QuotaPolicyWritable": ("Unknown", "LedgerUnreachable"),
                "CapacityAllocatable": ("True", "Allocatable"),
            }
            await world.says(KVCachePool, pool, phase="Error", **unreachable)
            await world.says(KVCachePoolBinding, kept, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
            assert await usage() == "1Mi"
            await eventually(lambda: world.status(KVCachePool, pool), lambda seen: "usage" not in seen)

            await world.delete(KVCachePoolBinding, released)
            held = {"phase": "Deleting", "Releasable": ("False", "LedgerRequestFailed")}
            await world.says(KVCachePoolBinding, released, **held)
            assert await world.document() == {"alpha": 16 * MIB, "beta": 16 * MIB}

            master.start()
            await world.gone(KVCachePoolBinding, released)
            assert await requested(master) == {"alpha": 16 * MIB}
            assert await world.document() == {"alpha": 16 * MIB}


async def test_8_a_policy_that_the_master_cannot_write_is_told_apart_from_a_ledger_that_cannot_be_read(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    first = await world.binding("first", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        with master.unwritable():
            second = await world.binding("second", domain="beta")
            told = {
                "QuotaLedgerAvailable": ("True", "Available"),
                "QuotaPolicyWritable": ("False", "QuotaPolicyNotWritable"),
            }
            await world.says(KVCachePool, pool, phase="Error", **told)
            await world.says(KVCachePoolBinding, second, QuotaObserved=("False", "MasterNotScraped"))
            await world.delete(KVCachePoolBinding, first)
            await world.says(KVCachePoolBinding, first, Releasable=("False", "LedgerRequestFailed"))
            assert await requested(master) == {"alpha": 16 * MIB}
        await world.says(KVCachePool, pool, QuotaPolicyWritable=("True", "Writable"))
        await eventually(holds(master, {"beta": 16 * MIB}), bool)


async def test_9_a_binding_whose_domain_holds_objects_is_held_and_listed_until_it_is_drained(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    full, empty = await world.binding("full", domain="alpha"), await world.binding("empty", domain="beta")
    with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as engine:
        async with operator(world):
            await world.says(KVCachePoolBinding, full, phase="Ready")
            assert engine.put("key", MIB) == 0
            await world.delete(KVCachePoolBinding, full, empty)
            await world.says(KVCachePoolBinding, full, phase="Deleting", Releasable=("False", "LedgerNotReleased"))
            assert "alpha" in await world.message(KVCachePoolBinding, full, "Releasable")
            await world.gone(KVCachePoolBinding, empty)
            assert await world.document() == {"alpha": 16 * MIB}
            assert await requested(master) == {"alpha": 16 * MIB}
            await eventually(lambda: world.status(KVCachePool, pool), lambda seen: "usedBy" not in seen)
            assert engine.remove("key") == 0
            await world.gone(KVCachePoolBinding, full)
            assert await requested(master) == {}
            assert await world.document() == {}


async def test_10_a_binding_in_use_keeps_its_quota_and_its_figures_move(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as engine:
        async with operator(world):
            await world.says(KVCachePoolBinding, binding, phase="Ready")
            await world.use(binding, "llm", "chat")
            await world.delete(KVCachePoolBinding, binding)
            await world.says(KVCachePoolBinding, binding, phase="Deleting", Releasable=("False", "HeldByWorkloads"))
            assert "ModelDeployment/llm" in await world.message(KVCachePoolBinding, binding, "Releasable")
            assert engine.put("key", MIB) == 0

            async def usage() -> str:
                return str((await world.status(KVCachePoolBinding, binding)).get("usage"))

            await eventually(usage, lambda seen: seen == "1Mi")
            assert await requested(master) == {"alpha": 16 * MIB}
            assert len((await world.status(KVCachePool, pool))["usedBy"]) == 1
            assert engine.remove("key") == 0
            await world.use(binding)
            await world.gone(KVCachePoolBinding, binding)
            assert await requested(master) == {}


async def test_11_a_backend_that_declares_no_ledger_is_never_asked_for_one(world: World, single_tenant: Master) -> None:
    await world.backend(admin=single_tenant.admin, managed=False)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    masters = Masterly(only=single_tenant.admin)
    with Store(single_tenant, segment=64 * MIB):
        async with operator(world, masters=masters):
            await without_a_ledger(world, pool, binding)
            assert set(masters.asked) == {"GET /metrics"}
            single_tenant.kill()
            await world.says(KVCachePool, pool, phase="Error", CapacityAllocatable=("False", "CapacityNotObserved"))
            await world.delete(KVCachePoolBinding, binding)
            await world.gone(KVCachePoolBinding, binding)
            await world.delete(KVCachePool, pool)
            await world.gone(KVCachePool, pool)
            assert set(masters.asked) == {"GET /metrics"}
    assert await world.users() == []


async def test_11_a_leader_that_never_came_up_holds_nothing_if_it_was_to_keep_no_ledger(world: World) -> None:
    await world.backend(admin=None, managed=False)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await world.says(KVCachePool, pool, phase="Error", BackendResolved=("False", "EndpointsNotPublished"))
        await world.delete(KVCachePoolBinding, binding)
        await world.gone(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.gone(KVCachePool, pool)


async def test_12_an_external_master_says_itself_that_it_keeps_no_ledger(world: World, single_tenant: Master) -> None:
    await world.backend(admin=single_tenant.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    with Store(single_tenant, segment=64 * MIB):
        async with operator(world):
            await without_a_ledger(world, pool, binding)
            await world.delete(KVCachePoolBinding, binding)
            await world.gone(KVCachePoolBinding, binding)
            await world.delete(KVCachePool, pool)
            await world.gone(KVCachePool, pool)


async def without_a_ledger(world: World, pool: Key, binding: Key) -> None:
    """Wait until pool and Binding are ready and say that there is no quota."""
    off = {
        "QuotaLedgerAvailable": ("False", "MultiTenancyDisabled"),
        "QuotaPolicyWritable": ("Unknown", "MultiTenancyDisabled"),
        "CapacityAllocatable": ("True", "Allocatable"),
    }
    await world.says(KVCachePool, pool, phase="Ready", **off)
    assert "one reuse domain" in (await world.status(KVCachePool, pool))["phaseMessage"]
    unenforced = {"QuotaObserved": ("True", "NoTenantLedger"), "QuotaGranted": ("True", "Unenforced")}
    await world.says(KVCachePoolBinding, binding, phase="Ready", **unenforced)
    figures = {"requestedQuota", "effectiveQuota", "usage", "overQuota"}
    assert not figures & (await world.status(KVCachePoolBinding, binding)).keys()


async def test_16_a_master_that_starts_from_the_document_has_the_ledger_it_had(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    await world.pool()
    names = ["on", "1e3", "null", "007", "a-b"]
    for number, domain in enumerate(names):
        await world.binding(f"b{number}", domain=domain, ceiling=f"{number + 1}Mi")
    tenants = {domain: (number + 1) * MIB for number, domain in enumerate(names)}
    async with operator(world):
        await eventually(holds(master, tenants), bool)
    master.kill()
    master.policy.write_text(await world.document_text())
    master.start()
    assert await requested(master) == tenants
