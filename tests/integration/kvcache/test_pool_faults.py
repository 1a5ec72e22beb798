"""What goes wrong at masters and at the API server, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from inferencecache.api.kvcache import policy_config_map
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool import visit
from inferencecache.controllers.mooncake.admin import MasterFailure, MooncakeClients
from inferencecache.kube.errors import LeadershipLost
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.pool_world import (
    MIB,
    Driven,
    Masterly,
    Noted,
    World,
    by_hand,
    holds,
    operator,
    requested,
)
from tests.mooncake import Master, Store

Handler = Callable[[web.Request], Any]


@asynccontextmanager
async def scripted(**answers: Handler) -> AsyncIterator[str]:
    """A master that answers what no real one can be made to answer, by method; its address."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text="mooncake_tenant_quota_allocatable_capacity_bytes 1\n")
        status, body = answers[request.method](request)
        return web.json_response(body, status=status)

    app = web.Application()
    app.add_routes([web.route("*", "/{any:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


def entry(tenant: str, quota: int) -> dict[str, Any]:
    """An entry as a master tells it."""
    return {"tenant_id": tenant, "requested_quota_bytes": quota, "has_explicit_policy": True}


async def test_14_a_master_that_is_starting_is_not_one_that_keeps_no_ledger(world: World) -> None:
    starting = (503, {"success": False, "error_code": -1011, "error_message": "service plane is not active"})
    async with scripted(GET=lambda _: starting) as address:
        await world.backend(admin=address)
        pool = await world.pool()
        async with operator(world):
            told = {
                "QuotaLedgerAvailable": ("False", "LedgerUnreachable"),
                "QuotaPolicyWritable": ("Unknown", "LedgerUnreachable"),
            }
            await world.says(KVCachePool, pool, phase="Error", **told)
            await world.delete(KVCachePool, pool)
            await world.says(KVCachePool, pool, Releasable=("False", "LedgerNotReleased"))


async def test_14_a_404_that_is_not_the_masters_own_releases_nothing(world: World) -> None:
    listed = (200, {"success": True, "data": [entry("alpha", 16 * MIB)]})
    deletions: list[tuple[int, Any]] = [(404, {"message": "no such page"})]
    async with scripted(GET=lambda _: listed, DELETE=lambda _: deletions[-1]) as address:
        await world.backend(admin=address)
        await world.pool()
        binding = await world.binding("one", domain="alpha")
        async with operator(world):
            await world.says(KVCachePoolBinding, binding, DomainExclusive=("True", "Exclusive"))
            await world.delete(KVCachePoolBinding, binding)
            await world.says(KVCachePoolBinding, binding, Releasable=("False", "LedgerRequestFailed"))
            assert await world.document() == {"alpha": 16 * MIB}
            deletions.append((404, {"success": False, "error_code": -704, "error_message": "not found"}))
            await world.gone(KVCachePoolBinding, binding)
            assert await world.document() == {}


async def test_a_master_that_stops_keeping_a_ledger_in_the_middle_lets_bindings_go(world: World) -> None:
    listed = (200, {"success": True, "data": [entry("alpha", 16 * MIB)]})
    off = (409, {"success": False, "error_code": -1011, "error_message": "off"})
    async with scripted(GET=lambda _: listed, DELETE=lambda _: off) as address:
        await world.backend(admin=address)
        pool = await world.pool()
        binding = await world.binding("one", domain="alpha")
        async with operator(world):
            await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
            await world.says(KVCachePoolBinding, binding, DomainExclusive=("True", "Exclusive"))
            await world.delete(KVCachePoolBinding, binding)
            await world.gone(KVCachePoolBinding, binding)
            await world.delete(KVCachePool, pool)
            await world.gone(KVCachePool, pool)


async def test_a_frozen_master_costs_one_pass_a_timeout_and_pools_of_others_nothing(
    world: World, master: Master, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    masters = Masterly(only=master.admin, timeout=timedelta(seconds=5))
    with Master(tmp_path / "other") as other:
        await world.backend("sick", admin=master.admin)
        await world.backend("well", admin=other.admin)
        sick = [await world.pool(f"sick-{number}", backend="sick") for number in range(12)]
        well = await world.pool("well", backend="well")
        async with operator(world, masters=masters, shared_for=timedelta(seconds=5)):
            for pool in (*sick, well):
                await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
            master.freeze()
            masters.asked.clear()
            for number in range(4):
                binding = await world.binding(f"b{number}", domain=f"d{number}", pool="well")
                await world.says(KVCachePoolBinding, binding, QuotaObserved=("True", "Observed"))
            for pool in sick:
                await world.says(KVCachePool, pool, QuotaLedgerAvailable=("False", "LedgerUnreachable"))
            timeouts = len(masters.asked)
            master.thaw()
            for pool in sick:
                await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
    assert timeouts < len(sick), "each pool has met the silence itself"


class Restarts(MooncakeClients):
    """Kills a master right before a write, and starts it when the write has failed."""

    def __init__(self, master: Master, at: int) -> None:
        super().__init__()
        self._master = master
        self._at = at

    async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
        if method != "PUT":
            return await super().request(method, url, **more)
        self._at -= 1
        if self._at:
            return await super().request(method, url, **more)
        await asyncio.to_thread(self._master.kill)
        try:
            return await super().request(method, url, **more)
        finally:
            await asyncio.to_thread(self._master.start)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_master_that_restarts_in_the_middle_of_a_pass_is_brought_up_to_date_by_the_next(
    world: World, master: Master, at: int
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    for name in "abc":
        await world.binding(name, domain=name)
    async with operator(world, masters=Restarts(master, at)):

        async def ledger() -> dict[str, int]:
            try:
                return await requested(master)
            except MasterFailure:
                return {}

        await eventually(ledger, lambda seen: seen == dict.fromkeys("abc", 16 * MIB))
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))


async def test_masters_that_do_not_answer_keep_no_other_pool_from_its_turn(world: World, master: Master) -> None:
    waiting: list[asyncio.StreamWriter] = []
    hanging = await asyncio.start_server(lambda _, writer: waiting.append(writer), "127.0.0.1", 0)
    host, port = hanging.sockets[0].getsockname()[:2]
    sick = [f"sick-{number}" for number in range(8)]
    for name in sick:
        await world.backend(name, admin=f"{host}:{port}")
        await world.pool(name, backend=name)

    async def asked() -> int:
        return len(waiting)

    async with operator(world, masters=MooncakeClients(timeout=timedelta(hours=1))):
        await eventually(asked, lambda seen: seen >= len(sick))
        await world.backend("well", admin=master.admin)
        well = await world.pool("well", backend="well")
        await world.says(KVCachePool, well, QuotaLedgerAvailable=("True", "Available"))
        hanging.close()
        for writer in waiting:
            writer.close()


async def test_a_foreign_object_of_the_documents_name_is_left_alone_and_nothing_is_sent_to_the_master(
    world: World, master: Master
) -> None:
    backend = await world.backend(admin=master.admin)
    key = Key(world.namespace, policy_config_map(backend))
    metadata = {"name": key.name, "namespace": key.namespace}
    await world.client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "1"}})
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    masters = Masterly(only=master.admin)
    async with operator(world, masters=masters):
        refused = {"BackendResolved": ("True", "Resolved"), "QuotaPolicyWritable": ("False", "QuotaPolicyNotWritable")}
        await world.says(KVCachePool, pool, phase="Error", **refused)
        assert key.name in await world.message(KVCachePool, pool, "QuotaPolicyWritable")
        await world.says(KVCachePoolBinding, binding, phase="Error", QuotaObserved=("False", "MasterNotScraped"))
        assert key.name in await world.message(KVCachePoolBinding, binding, "QuotaObserved")
        assert masters.writes == []
        assert (await world.client.get(ConfigMap, key)).data == {"mine": "1"}
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)
        await world.gone(KVCachePoolBinding, binding)
        await world.gone(KVCachePool, pool)
        assert (await world.client.get(ConfigMap, key)).data == {"mine": "1"}


async def test_siblings_share_what_a_master_said_a_moment_ago(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pools = [await world.pool(f"p{number}") for number in range(8)]
    bindings = [await world.binding(f"b{number}", domain=f"d{number}", pool=f"p{number}") for number in range(8)]
    masters = Masterly(only=master.admin)
    with Store(master, segment=256 * MIB):
        async with operator(world, masters=masters, shared_for=timedelta(hours=1)):
            for pool in pools:
                await world.says(KVCachePool, pool, phase="Ready")
            for binding in bindings:
                await world.says(KVCachePoolBinding, binding, phase="Ready")
            asked = len(masters.asked)
            await world.ceiling(bindings[0], "8Mi")
            await eventually(holds(master, {f"d{n}": (16 if n else 8) * MIB for n in range(8)}), bool)

            async def requested_quota() -> str:
                return str((await world.status(KVCachePoolBinding, bindings[0]))["requestedQuota"])

            await eventually(requested_quota, lambda seen: seen == "8Mi")
            # One pass asked again, as the claims are others now: the ledger, one entry, the figures.
            assert [one.partition("?")[0] for one in masters.asked[asked:]] == [
                "GET /api/v1/tenant_quotas",
                "PUT /api/v1/tenant_quotas",
                "GET /metrics",
            ]


@pytest.mark.parametrize("tenants", [True, False], ids=["with a ledger", "without"])
async def test_a_pass_over_a_settled_world_asks_the_api_server_nothing(
    world: World, tmp_path: Path, tenants: bool
) -> None:
    with Master(tmp_path, tenants=tenants) as master:
        await world.backend(admin=master.admin)
        pool, contested = await world.pool(), await world.pool("contested")
        await world.binding("one", domain="alpha")
        for name in ("two", "three"):
            await world.binding(name, domain="beta", pool="contested")
        client, masters = Noted(world.client), Masterly()
        async with Driven(world, client, masters) as driven:

            async def asked() -> list[str]:
                client.asked.clear()
                masters.asked.clear()
                for each in (pool, contested):
                    await driven.reconciler.reconcile(each)
                return client.asked

            await eventually(asked, lambda seen: not seen)
        assert masters.asked == ["GET /api/v1/tenant_quotas", "GET /metrics"] * 2


async def test_a_held_deletion_that_is_as_it_was_costs_the_api_server_nothing(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
    master.kill()
    client = Noted(world.client)
    async with Driven(world, client, MooncakeClients()) as driven:
        await driven.reconciler.reconcile(pool)
        await world.delete(KVCachePoolBinding, binding)
        await world.delete(KVCachePool, pool)

        async def asked() -> list[str]:
            await driven.catch_up(await world.versions())
            client.asked.clear()
            await driven.reconciler.reconcile(pool)
            return client.asked

        await eventually(asked, lambda seen: not seen)
    assert (await world.conditions(KVCachePoolBinding, binding))["Releasable"] == ("False", "LedgerRequestFailed")
    assert (await world.conditions(KVCachePool, pool))["Releasable"] == ("False", "LedgerNotReleased")


async def test_many_entries_are_made_in_several_passes_and_statuses_are_told_meanwhile(
    world: World, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "ENTRIES_A_PASS", 2)
    await world.backend(admin=master.admin)
    pool = await world.pool()
    names = "abcde"
    bindings = {name: await world.binding(name, domain=name) for name in names}
    await by_hand(master, "e", 8 * MIB)
    async with Driven(world, world.client, masters := Masterly()) as driven:
        made: list[dict[str, int]] = []

        async def done() -> bool:
            result = await driven.reconciler.reconcile(pool)
            made.append(await requested(master))
            return result.requeue_after == timedelta(seconds=30)

        await eventually(done, bool)
    assert [len([name for name, quota in one.items() if quota == 16 * MIB]) for one in made][-3:] == [2, 4, 5]
    assert all("e" in one for one in made)
    assert await world.document() == dict.fromkeys(names, 16 * MIB)
    assert len(masters.writes) == len(names)
    assert (await world.conditions(KVCachePoolBinding, bindings["e"]))["QuotaObserved"] == ("True", "Observed")


async def test_a_lagging_cache_registers_no_quota_for_a_binding_that_is_gone(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    client, masters = world.client, Masterly()
    async with Driven(world, client, MooncakeClients()) as before:
        await eventually(lambda: passed(before, pool, master), lambda seen: seen == {"alpha": 16 * MIB})
    async with Driven(world, client, masters) as late:
        await late.stop_looking()
        await world.delete(KVCachePoolBinding, binding)
        async with operator(world):
            await world.gone(KVCachePoolBinding, binding)
        await late.reconciler.reconcile(pool)
    assert masters.writes == []
    assert await requested(master) == {}


async def test_a_lagging_cache_takes_no_quota_from_a_binding_that_it_does_not_show(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    binding = await world.binding("one", domain="alpha")
    async with Driven(world, world.client, MooncakeClients()) as before:
        await eventually(lambda: passed(before, pool, master), lambda seen: seen == {"alpha": 16 * MIB})
    await world.force_away(KVCachePoolBinding, binding)
    async with Driven(world, world.client, masters := Masterly()) as late:
        await late.stop_looking()
        await world.binding("one", domain="alpha")
        assert (await late.reconciler.reconcile(pool)).requeue_after == timedelta(seconds=1)
    assert masters.writes == []
    assert await requested(master) == {"alpha": 16 * MIB}


async def test_a_lagging_cache_lets_no_pool_go_that_a_binding_has_come_to(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    async with operator(world):
        await world.says(KVCachePool, pool, QuotaLedgerAvailable=("True", "Available"))
    await world.delete(KVCachePool, pool)
    async with Driven(world, world.client, MooncakeClients()) as late:
        await late.stop_looking()
        binding = await world.binding("one", domain="alpha")
        await late.reconciler.reconcile(pool)
    await world.says(KVCachePool, pool, Releasable=("False", "HeldByBindings"))
    assert str(binding) in await world.message(KVCachePool, pool, "Releasable")


async def test_a_leader_that_loses_its_lease_in_a_pass_writes_nothing_more_to_the_master(
    world: World, master: Master
) -> None:
    await world.backend(admin=master.admin)
    pool = await world.pool()
    await world.binding("one", domain="alpha")
    await world.binding("two", domain="beta")
    leads = True

    def check() -> None:
        if not leads:
            raise LeadershipLost("somebody else leads")

    class Sleeper(Masterly):
        async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
            nonlocal leads
            answer = await super().request(method, url, **more)
            leads = leads and method == "GET"
            return answer

    async with Driven(world, world.client.guarded(check), Sleeper()) as asleep:
        with pytest.raises(LeadershipLost):
            await asleep.reconciler.reconcile(pool)
        assert await requested(master) == {"alpha": 16 * MIB}
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB, "beta": 16 * MIB}), bool)


async def test_a_quota_that_somebody_changed_by_hand_is_put_right(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    await world.pool()
    await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        await by_hand(master, "alpha", 8 * MIB)
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)


async def test_a_document_that_somebody_edited_or_deleted_is_put_right(world: World, master: Master) -> None:
    backend = await world.backend(admin=master.admin)
    await world.pool()
    await world.binding("one", domain="alpha")
    key = Key(world.namespace, policy_config_map(backend))
    async with operator(world):
        await eventually(holds(master, {"alpha": 16 * MIB}), bool)
        before = await world.client.get_manifest(ConfigMap.resource, key)
        notes = before["metadata"]["annotations"]
        assert before["metadata"]["labels"] == {"resource.gpustack.ai/type": "kvcachebackends"}
        assert notes == {"note.gpustack.ai/backend": backend, "note.gpustack.ai/role": "tenant-quota-policy"}
        owner = before["metadata"]["ownerReferences"]
        assert [(one["kind"], one["name"], one["controller"]) for one in owner] == [("KVCacheBackend", backend, True)]
        assert "blockOwnerDeletion" not in owner[0]
        spoiled = {"data": {"tenant-quota-policy.yaml": "tenants: []", "more": "1"}, "metadata": {"labels": {"a": "b"}}}
        await world.client.patch(ConfigMap.resource, key, spoiled)

        async def data() -> dict[str, str]:
            return (await world.client.get(ConfigMap, key)).data

        await eventually(data, lambda seen: seen == before["data"])
        kept = await world.client.get(ConfigMap, key)
        assert kept.metadata.labels["a"] == "b"
        await world.client.delete(ConfigMap.resource, key)

        async def is_back() -> bool:
            found = await world.client.list(ConfigMap, namespace=world.namespace)
            return any(one.metadata.uid != kept.metadata.uid and one.data == before["data"] for one in found)

        await eventually(is_back, bool)


async def passed(driven: Driven, pool: Key, master: Master) -> dict[str, int]:
    """What a master's ledger has after a pass."""
    await driven.reconciler.reconcile(pool)
    return await requested(master)


@pytest.mark.parametrize("elsewhere", ["missing", "of-another-master"])
async def test_a_binding_made_anew_on_another_pool_leaves_its_old_entry_and_holds_up_nobody(
    world: World, master: Master, elsewhere: str
) -> None:
    await world.backend(admin=master.admin)
    await world.backend("other", admin=None)
    pool = await world.pool()
    await world.pool("of-another-master", backend="other")
    binding = await world.binding("one", domain="alpha")
    async with operator(world):
        await eventually(lambda: world.status(KVCachePool, pool), lambda seen: len(seen.get("domains", ())) == 1)
    await world.force_away(KVCachePoolBinding, binding)
    await world.binding("one", domain="alpha", pool=elsewhere)
    await world.binding("two", domain="beta")
    async with operator(world):
        await eventually(holds(master, {"beta": 16 * MIB}), bool)


async def test_a_binding_that_came_late_to_a_leaving_pool_holds_up_no_sibling(world: World, master: Master) -> None:
    await world.backend(admin=master.admin)
    leaving = await world.pool("leaving")
    await world.pool()
    binding = await world.binding("one", domain="alpha", pool="leaving")
    kept = await world.binding("kept", domain="kept", pool="leaving")
    async with operator(world):
        await eventually(lambda: world.status(KVCachePool, leaving), lambda seen: len(seen.get("domains", ())) == 2)
    await world.use(kept, "llm")
    await world.delete(KVCachePoolBinding, kept)
    await world.delete(KVCachePool, leaving)
    await world.force_away(KVCachePoolBinding, binding)
    await world.binding("one", domain="alpha", pool="leaving")
    await world.binding("two", domain="beta")
    async with operator(world):
        await eventually(holds(master, {"beta": 16 * MIB, "kept": 16 * MIB}), bool)
