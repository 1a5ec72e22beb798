"""How pools and Bindings leave, and what may hold them (spec 10 §10, §11)."""

from __future__ import annotations

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool.act import Writer
from inferencecache.kube.client import Client
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import MIB, Masterly, World, by_hand, holds, operator, requested
from tests.mooncake import Master, Store


async def test_13_a_pool_and_its_bindings_that_are_deleted_together_go_together(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    bindings = [await world.binding(name, domain=name) for name in ("a", "b", "c")]
    masters = Masterly(only=master.admin)
    async with operator(world, masters=masters):
        await eventually(holds(master, dict.fromkeys("abc", 16 * MIB)), bool)
        # Or nothing might be recorded yet of what is to be taken out.
        await eventually(lambda: world.status(KVCachePool, pool), lambda seen: len(seen.get("domains", ())) == 3)
        masters.asked.clear()
        await world.delete(KVCachePool, pool)
        await world.delete(KVCachePoolBinding, *bindings)
        await world.gone(KVCachePoolBinding, *bindings)
        await world.gone(KVCachePool, pool)
    # A master writes its whole policy anew for each.
    assert sorted(masters.writes) == [f"DELETE /api/v1/tenant_quotas?tenant_id={name}" for name in "abc"]
    assert await requested(master) == {}
    assert await world.document() == {}
    assert await world.users() == []


async def test_13_a_pool_waits_for_a_master_that_is_down_and_goes_when_it_is_back(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        master.kill()
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "HeldByBindings"))
        assert str(binding) in await world.message(KVCachePool, pool, "Releasable")
        await world.delete(KVCachePoolBinding, binding)
        await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "LedgerNotReleased"))
        held = {"phase": "Deleting", "Releasable": ("False", "LedgerRequestFailed")}
        await world.says(KVCachePoolBinding, binding, **held)
        assert await world.users() == [f"KVCachePool//{pool.name}"]
        master.start()
        await world.gone(KVCachePool, pool)
        await world.gone(KVCachePoolBinding, binding)
    assert await requested(master) == {}
    assert await world.document() == {}
    assert await world.users() == []


async def test_a_pool_without_bindings_needs_its_master_all_the_same(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    async with operator(world):
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
        master.kill()
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "LedgerNotReleased"))
        master.start()
        await world.gone(KVCachePool, pool)


async def test_a_full_domain_holds_its_binding_and_its_pool_and_no_other_binding(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    full, empty = await world.binding("full", domain="alpha"), await world.binding("empty", domain="beta")
    with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as engine:
        async with operator(world):
            await world.says(KVCachePoolBinding, full, phase="Ready")
            assert engine.put("key", MIB) == 0
            await world.delete(KVCachePool, pool)
            await world.delete(KVCachePoolBinding, full, empty)
            await world.gone(KVCachePoolBinding, empty)
            await world.says(KVCachePoolBinding, full, phase="Deleting", Releasable=("False", "LedgerNotReleased"))
            await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "LedgerNotReleased"))
            assert await world.document() == {"alpha": 16 * MIB}
            assert engine.remove("key") == 0
            await world.gone(KVCachePoolBinding, full)
            await world.gone(KVCachePool, pool)
            assert await requested(master) == {}


async def test_a_pool_leaves_what_its_sibling_has_and_what_was_made_by_hand(world: World, master: Master) -> None:
    await by_hand(master, "mine", 8 * MIB)
    await world.backend(admin=master.admin)
    leaving, staying = await world.pool("leaving"), await world.pool("staying")
    gone = await world.binding("a", domain="alpha", pool="leaving")
    kept = await world.binding("b", domain="beta", pool="staying")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB, "beta": 16 * MIB, "mine": 8 * MIB}), bool)
        await world.delete(KVCachePoolBinding, gone)
        await world.delete(KVCachePool, leaving)
        await world.gone(KVCachePool, leaving)
        assert await requested(master) == {"beta": 16 * MIB, "mine": 8 * MIB}
        assert await world.users() == [f"KVCachePool//{staying.name}"]
        await eventually(world.document, lambda seen: seen == {"beta": 16 * MIB})
        assert await world.finalizers(KVCachePoolBinding, kept) == ["gpustack.ai/controlled"]


async def test_a_binding_that_workloads_use_holds_its_pool_and_says_so(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.use(binding, "llm")
        await world.delete(KVCachePool, pool)
        await world.delete(KVCachePoolBinding, binding)
        await world.says(KVCachePool, pool, Releasable=("False", "HeldByBindings"))
        await world.says(KVCachePoolBinding, binding, phase="Deleting", Releasable=("False", "HeldByWorkloads"))
        await world.use(binding)
        await world.gone(KVCachePoolBinding, binding)
        await world.gone(KVCachePool, pool)


async def test_the_entry_of_a_binding_that_was_forced_away_is_taken_out_when_the_master_allows(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    with Store(master, segment=64 * MIB), Store(master, tenant="alpha") as engine:
        async with operator(world):
            await world.says(KVCachePoolBinding, binding, phase="Ready")
            await eventually(lambda: domains(world, pool), lambda seen: seen == ["alpha"])
            assert engine.put("key", MIB) == 0
            await world.force_away(KVCachePoolBinding, binding)
            marker = await world.binding("marker", domain="marker")
            await world.says(KVCachePoolBinding, marker, phase="Ready")
            # It cannot be taken out yet. The pool still knows that it is one of its own, and so does the document.
            await eventually(lambda: domains(world, pool), lambda seen: seen == ["alpha", "marker"])
            assert await world.document() == {"alpha": 16 * MIB, "marker": 16 * MIB}
            assert engine.remove("key") == 0
            await eventually(holds(master, {"marker": 16 * MIB}), bool)
            await eventually(lambda: domains(world, pool), lambda seen: seen == ["marker"])
            await eventually(world.document, lambda seen: seen == {"marker": 16 * MIB})


async def test_a_pool_takes_out_the_entry_of_a_binding_that_was_forced_away(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(lambda: domains(world, pool), lambda seen: seen == ["alpha"])
    await world.delete(KVCachePool, pool)
    await world.force_away(KVCachePoolBinding, binding)
    assert await requested(master) == {"alpha": 16 * MIB}
    async with operator(world):
        await world.gone(KVCachePool, pool)
    assert await requested(master) == {}
    assert await world.document() == {}


async def test_a_pool_whose_finalizer_was_removed_by_hand_lets_its_bindings_go_and_a_sibling_mends_the_document(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool, _ = await world.pool(), await world.pool("sibling")
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        master.kill()
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, Releasable=("False", "LedgerNotReleased"))
        assert await world.document() == {"alpha": 16 * MIB}
        await world.client.patch(KVCachePool.resource, pool, {"metadata": {"finalizers": None}})
        await world.gone(KVCachePoolBinding, binding)
        master.start()
        await eventually(world.document, lambda seen: seen == {})


async def test_with_the_backend_went_the_ledger_so_every_binding_and_pool_may_go(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    used, staying = await world.binding("used", domain="alpha"), await world.binding("staying", domain="beta")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB, "beta": 16 * MIB}), bool)
        await world.use(used, "llm")
        await world.delete(KVCachePoolBinding, used)
        await world.says(KVCachePoolBinding, used, Releasable=("False", "HeldByWorkloads"))
        await world.force_away(KVCacheBackend, Key("", world.named("store")))
        await world.gone(KVCachePoolBinding, used)
        await world.says(KVCachePool, pool, phase="Error", BackendResolved=("False", "BackendNotFound"))
        await world.says(KVCachePoolBinding, staying, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        assert "clientEndpoint" not in await world.status(KVCachePool, pool)
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, Releasable=("False", "HeldByBindings"))
        await world.delete(KVCachePoolBinding, staying)
        await world.gone(KVCachePoolBinding, staying)
        await world.gone(KVCachePool, pool)


async def test_bindings_behind_a_backend_without_addresses_say_so_and_are_held(world: World) -> None:
    await world.backend(admin=None)
    pool = await world.pool()
    staying, leaving = await world.binding("a", domain="alpha"), await world.binding("b", domain="beta")
    async with operator(world):
        await world.says(KVCachePool, pool, phase="Error", BackendResolved=("False", "EndpointsNotPublished"))
        assert await world.users() == [f"KVCachePool//{pool.name}"]
        await world.says(KVCachePoolBinding, staying, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        # No pass has put the finalizer on yet, as nothing was registered; this one has it from an earlier time.
        await world.client.patch(
            KVCachePoolBinding.resource, leaving, {"metadata": {"finalizers": ["gpustack.ai/controlled"]}}
        )
        await world.delete(KVCachePoolBinding, leaving)
        held = {"phase": "Deleting", "Releasable": ("False", "LedgerRequestFailed")}
        await world.says(KVCachePoolBinding, leaving, **held)
        await world.delete(KVCachePool, pool)
        await world.delete(KVCachePoolBinding, staying)
        await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "LedgerNotReleased"))


async def test_a_pool_of_several_backends_past_admission_is_an_error_and_held(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    await world.backend("other", admin=master.admin)
    pool = await world.pool(backends=[world.named("store"), world.named("other")])
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await world.says(KVCachePool, pool, phase="Error", BackendResolved=("False", "BackendNotSingular"))
        await world.says(KVCachePoolBinding, binding, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        await world.delete(KVCachePoolBinding, binding)
        await world.gone(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, phase="Deleting", Releasable=("False", "LedgerNotReleased"))


async def test_a_binding_whose_pool_is_gone_is_let_go(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.use(binding, "llm")
        await world.force_away(KVCachePool, pool)
        await world.delete(KVCachePoolBinding, binding)
        await world.gone(KVCachePoolBinding, binding)


async def test_a_live_binding_whose_pool_was_forced_away_does_not_look_ready(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.force_away(KVCachePool, pool)
        await world.says(KVCachePoolBinding, binding, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        told = (await world.status(KVCachePoolBinding, binding))["phaseMessage"]
    assert f"there is no KVCachePool {pool.name}" in told


async def test_an_entry_that_a_master_had_before_it_was_without_tenants_for_a_while_is_taken_out_afterwards(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    leaving, staying = await world.binding("a", domain="alpha"), await world.binding("b", domain="beta")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB, "beta": 16 * MIB}), bool)
        master.tenants = False
        master.restart()
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("False", "MultiTenancyDisabled"))
        await world.delete(KVCachePoolBinding, leaving)
        await world.gone(KVCachePoolBinding, leaving)
        master.tenants = True
        master.restart()
        await eventually(holds(master, {"beta": 16 * MIB}), bool)
        await eventually(lambda: domains(world, pool), lambda seen: seen == ["beta"])
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
        assert await world.finalizers(KVCachePoolBinding, staying) == ["gpustack.ai/controlled"]


async def test_a_binding_that_comes_while_its_pool_goes_is_told_so_and_is_not_served(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool, _sibling = await world.pool(), await world.pool("sibling")
    holding = await world.binding("holding", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await world.says(KVCachePoolBinding, holding, QuotaObserved=("True", "Observed"))
        before = await world.status(KVCachePoolBinding, holding)
        await world.delete(KVCachePool, pool)
        await world.says(KVCachePool, pool, Releasable=("False", "HeldByBindings"))
        late = await world.binding("late", domain="beta")
        await world.says(KVCachePoolBinding, late, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        assert f"KVCachePool {pool.name} is being deleted" in await world.message(
            KVCachePoolBinding, late, "QuotaObserved"
        )
        assert await world.status(KVCachePoolBinding, holding) == before
        await world.binding("own", domain="gamma", pool="sibling")  # whose pass writes the quotas of all pools
        await eventually(lambda: requested(master), lambda seen: "gamma" in seen)
        assert await requested(master) == {"alpha": 16 * MIB, "gamma": 16 * MIB}
        assert await world.document() == {"alpha": 16 * MIB, "gamma": 16 * MIB}
        assert await world.finalizers(KVCachePoolBinding, late) == []
        await world.delete(KVCachePoolBinding, late, holding)
        await world.gone(KVCachePool, pool)
    assert await requested(master) == {"gamma": 16 * MIB}


async def test_a_pool_made_anew_claims_its_backend_though_the_old_ones_claim_still_shows(
    world: World, master: Master
) -> None:
    """Users are known by name, and the copy of a backend in a cache may be from before the old pool was gone."""
    await world.backend(admin=master.admin)
    pool = await world.pool()
    client = Client(world.client.connection, field_manager="inferencecache-controller")
    name = world.named("store")
    writer, new = Writer(client), await client.get(KVCachePool, pool)
    await writer.claim(await client.get(KVCacheBackend, Key("", name)), [new], new={pool.name})
    shows_the_claim = await client.get(KVCacheBackend, Key("", name))
    await writer.give_up(shows_the_claim, pool.name)
    assert await world.users() == []
    await writer.claim(shows_the_claim, [new], new={pool.name})
    assert await world.users() == [f"KVCachePool//{pool.name}"]


async def domains(world: World, pool: Key) -> list[str]:
    """What a pool's status lists."""
    return [row["name"] for row in (await world.status(KVCachePool, pool)).get("domains", ())]
