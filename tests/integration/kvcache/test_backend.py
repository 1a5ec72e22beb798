"""Backends on a real API server, with a real master and a real store in the place of the ones in the cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.stored import StoredPool
from inferencecache.controllers.kvcachebackend.act import Actor, child_informers
from inferencecache.controllers.kvcachebackend.objects import Settings
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.reconciler import BY_BACKEND, KVCacheBackendReconciler
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.controllers.kvcachebackend.usage import without_dangling
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.drift import covers
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import DaemonSet, Deployment, Pod, Service
from inferencecache.kube.manager import Manager, Options
from inferencecache.kube.owner import OwnerIsLeaving
from inferencecache.kube.resource import Key, Manifest, path_of
from tests.integration.kube.waiting import eventually
from tests.integration.kvcache.backend_world import (
    IMAGE,
    BackendWorld,
    Counting,
    Dialled,
    counting,
    operating,
)
from tests.mooncake import MIB, Master, Store

NOWHERE = "127.0.0.1:9"


@pytest.fixture
async def backends(client: Client, namespace: str) -> AsyncIterator[BackendWorld]:
    await install_crds(client, crds())
    world = BackendWorld(client, namespace)
    yield world
    await world.clean()


@pytest.fixture
def us(client: Client) -> Counting:
    return counting(client)


@pytest.fixture
def masters() -> Dialled:
    return Dialled()


@pytest.fixture
async def operator(backends: BackendWorld, us: Counting, masters: Dialled) -> AsyncIterator[Dialled]:
    async with operating(us, backends.namespace, masters):
        yield masters


@pytest.fixture
def store(master: Master) -> Iterator[Store]:
    with Store(master, segment=16 * MIB) as mounted:
        yield mounted


async def steady(masters: Dialled, us: Counting, address: str) -> None:
    """Check that passes come to ask nothing of the API server: they first have to hear of what the last ones wrote."""

    async def asked_in_some_passes() -> list[str]:
        before = us.asked.copy()
        await passes(masters, address)
        return sorted(us.asked - before)

    await eventually(asked_in_some_passes, lambda asked: not asked)


async def passes(masters: Dialled, address: str, count: int = 4) -> None:
    """Wait for so many more passes that ask a master."""
    target = masters.asked[address] + count

    async def look() -> int:
        return masters.asked[address]

    await eventually(look, lambda asked: asked >= target)


def admin_of(backend: Key, namespace: str) -> str:
    return f"{backend.name}-leader.{namespace}.svc:9003"


# ----------------------------------------------------------------------------------------------------------- external


async def test_an_external_store_is_looked_at_and_nothing_is_rendered(
    backends: BackendWorld, us: Counting, operator: Dialled, master: Master, store: Store
) -> None:
    backend = await backends.external(admin=master.admin)
    status = await backends.says(backend, "Ready", MembersMounted=("True", "Mounted"))
    assert status["endpoints"] == [
        {"name": "Client", "address": "store.example:50051"},
        {"name": "Admin", "address": master.admin},
    ]
    assert status["capacity"] == {"total": "16Mi", "used": "0"}
    (row,) = status["members"]
    assert (row["protocol"], row["capacity"]) == ("tcp", "16Mi")
    assert row["segmentName"].startswith("127.0.0.1:")
    assert {"nodeName", "medium"} & set(row) == set()
    assert await backends.children(backend) == {}
    await steady(operator, us, master.admin)


@pytest.fixture
async def hangs() -> AsyncIterator[str]:
    """The address of something that takes connections and says nothing."""
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.close()


async def test_an_address_that_does_not_answer_is_an_error(
    backends: BackendWorld, operator: Dialled, hangs: str
) -> None:
    silent = await backends.external("silent", admin=NOWHERE)
    hanging = await backends.external("hangs", admin=hangs)
    await backends.says(silent, "Error", LeaderAvailable=("False", "LeaderUnreachable"))
    status = await backends.says(hanging, "Error", LeaderAvailable=("False", "LeaderUnreachable"))
    assert "no answer within 5 s" in status["phaseMessage"]


async def test_leaders_that_hang_cost_nobody_else_his_turn(
    backends: BackendWorld, us: Counting, master: Master, store: Store, hangs: str
) -> None:
    """Decision F3: a dozen that hang for as long as the test takes."""
    async with operating(us, backends.namespace, Dialled(timeout=timedelta(hours=1))):
        for number in range(12):
            await backends.external(f"hangs-{number}", admin=hangs)
        well = await backends.external(admin=master.admin)
        await backends.says(well, "Ready", MembersMounted=("True", "Mounted"))


async def test_what_a_store_says_follows_it(backends: BackendWorld, operator: Dialled, single_tenant: Master) -> None:
    backend = await backends.external(admin=single_tenant.admin)
    await backends.says(backend, "Degraded", MembersMounted=("False", "NoSegments"))
    with Store(single_tenant, segment=16 * MIB) as store:
        await backends.says(backend, "Ready", MembersMounted=("True", "Mounted"))
        assert store.put("key", MIB) == 0
        status = await eventually(lambda: backends.status(backend), lambda seen: seen["capacity"]["used"] != "0")
        assert status["capacity"] == {"total": "16Mi", "used": "1Mi"}
        single_tenant.kill()
        status = await backends.says(backend, "Error", CapacityObserved=("Unknown", "LeaderNotServing"))
        assert "capacity" not in status
        assert len(status["members"]) == 1, "who was a member is not forgotten over a silent leader"
        single_tenant.start()
        await backends.says(backend, "Ready", MembersMounted=("True", "Mounted"))  # the store mounts again by itself
        empty = {"total": "16Mi", "used": "0"}
        await eventually(lambda: backends.status(backend), lambda seen: seen.get("capacity") == empty)
        store.close()
        await backends.says(backend, "Degraded", MembersMounted=("False", "NoSegments"))


# ------------------------------------------------------------------------------------------------------------ managed


async def test_a_managed_store_is_rendered_and_becomes_ready_with_its_leader_and_members(
    backends: BackendWorld, us: Counting, operator: Dialled, master: Master
) -> None:
    backend = await backends.managed(leader={})
    operator.elsewhere[admin_of(backend, backends.namespace)] = master.admin
    status = await backends.says(backend, "Provisioning", LeaderAvailable=("False", "LeaderStarting"))
    assert [one["address"] for one in status["endpoints"]] == [
        f"{backend.name}-leader.{backends.namespace}.svc:50051",
        f"{backend.name}-leader.{backends.namespace}.svc:9003",
    ]
    children = await backends.children(backend)
    live = await backends.client.get(KVCacheBackend, backend)
    assert live.metadata.finalizers == ("gpustack.ai/controlled",)
    wanted = render(live, Settings(backends.namespace, IMAGE))
    assert sorted(children) == sorted(
        f"{one['kind']}{one['metadata']['name'].removeprefix(backend.name)}" for one in wanted
    )
    for one in wanted:
        found = children[f"{one['kind']}{one['metadata']['name'].removeprefix(backend.name)}"]
        assert covers(one, found)
        (owner,) = found["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "worker.gpustack.ai/v1",
            "kind": "KVCacheBackend",
            "name": backend.name,
            "uid": live.metadata.uid,
            "controller": True,
        }
    await backends.leader_ready(backend)
    await backends.members_scheduled(backend)
    await backends.pod_of(Deployment, f"{backend.name}-leader", "leader", node="n0")
    await backends.says(backend, "Degraded", MembersMounted=("False", "NoMembers"))
    await backends.member(backend, "m", node="n1")
    await backends.says(backend, "Degraded", MembersMounted=("False", "MembersNotListed"))
    with Store(master, segment=16 * MIB):
        status = await backends.says(
            backend,
            "Ready",
            RolloutComplete=("True", "RolledOut"),
            ElectionObserved=("False", "NoLeaderElected"),
        )
        (row,) = status["members"]
        assert (row["nodeName"], row["medium"], row["capacity"]) == ("n1", "DRAM", "16Mi")
        label = {"metadata": {"labels": {"mooncake.io/store-role": "leader"}}}
        await backends.client.patch(Pod.resource, Key(backends.namespace, "leader"), label)
        await backends.says(backend, "Ready", ElectionObserved=("True", "LeaderElected"))
        before = await backends.versions(backend)
        await steady(operator, us, admin_of(backend, backends.namespace))
        assert await backends.versions(backend) == before


async def test_a_member_that_cannot_start_is_told_in_its_own_words(
    backends: BackendWorld, operator: Dialled, master: Master
) -> None:
    backend = await backends.managed()
    operator.elsewhere[admin_of(backend, backends.namespace)] = master.admin
    await backends.says(backend, "Provisioning")
    await backends.leader_ready(backend)
    reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no such device"}
    await backends.pod_of(DaemonSet, f"{backend.name}-member-0", "m", phase="Pending", conditions=[reason])
    status = await backends.says(backend, "Degraded", MembersMounted=("False", "MemberNotStarting"))
    assert status["phaseMessage"] == "a member cannot start: Pod m: Unschedulable: no such device"


async def test_a_foreign_object_is_named_and_left_alone(backends: BackendWorld, operator: Dialled) -> None:
    """Decisions F1 and F16."""
    foreign = Key(backends.namespace, f"{backends.namespace}-store-leader")
    spec = {"ports": [{"port": 80}], "selector": {"app": "other"}}
    metadata = {"name": foreign.name, "namespace": foreign.namespace}
    await backends.client.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    backend = await backends.managed()
    status = await backends.says(backend, "Error", RolloutComplete=("False", "ChildConflict"))
    assert str(foreign) in status["phaseMessage"]
    assert "endpoints" not in status, "the address leads to somebody else"
    assert (await backends.client.get(Service, foreign)).spec["selector"] == {"app": "other"}
    assert sorted(await backends.children(backend)) == ["DaemonSet-member-0", "Deployment-leader"]
    await backends.client.delete(Service.resource, foreign)
    await backends.says(backend, "Provisioning", RolloutComplete=("False", "LeaderRollingOut"))


async def test_what_others_change_is_put_right_and_what_they_add_beside_it_stays(
    backends: BackendWorld, operator: Dialled
) -> None:
    backend = await backends.managed()
    await backends.says(backend, "Provisioning")
    before = await backends.children(backend)
    key = Key(backends.namespace, f"{backend.name}-leader")
    await backends.client.patch(Service.resource, key, {"spec": {"selector": {"app": "other"}}})
    patch = {"metadata": {"labels": {"team": "x"}}, "spec": {"template": {"spec": {"hostNetwork": True}}}}
    await backends.client.patch(DaemonSet.resource, Key(key.namespace, f"{backend.name}-member-0"), patch)

    def put_right(children: dict[str, Manifest]) -> bool:
        member = children["DaemonSet-member-0"]
        return (
            children["Service-leader"]["spec"]["selector"] == before["Service-leader"]["spec"]["selector"]
            and "hostNetwork" not in member["spec"]["template"]["spec"]
            and member["metadata"]["labels"]["team"] == "x"
        )

    await eventually(lambda: backends.children(backend), put_right)


async def test_what_is_not_wanted_any_more_goes(backends: BackendWorld, operator: Dialled) -> None:
    group = {"nodeSelector": {"lends": "memory"}, "medium": "DRAM", "capacityPerMember": "16Mi"}
    backend = await backends.managed("store", {}, {}, leader={})
    await backends.says(backend, "Provisioning")
    assert {"DaemonSet-member-1", "Role-leader", "ServiceAccount-member"} <= set(await backends.children(backend))
    await backends.edit(backend, members=[group], leader={"electionBackend": "None"})

    async def left() -> list[str]:
        await backends.collect()
        return sorted(await backends.children(backend))

    wanted = ["DaemonSet-member-0", "Deployment-leader", "Service-leader"]
    await eventually(left, lambda found: found == wanted)
    args = (await backends.children(backend))["Deployment-leader"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "-enable_ha=true" not in args


async def test_more_nodes_restart_no_member_and_another_image_restarts_one_after_the_other(
    backends: BackendWorld, operator: Dialled
) -> None:
    backend = await backends.managed()
    group = {"nodeSelector": {"lends": "much"}, "medium": "DRAM", "capacityPerMember": "16Mi"}
    await backends.says(backend, "Provisioning")
    await backends.member(backend, "a", node="n1", ip="10.0.0.1")
    await backends.member(backend, "b", node="n2", ip="10.0.0.2")
    await backends.leader_ready(backend)
    await backends.members_scheduled(backend, nodes=2)
    rolled_out = ("True", "RolledOut")
    await backends.says(backend, "Error", RolloutComplete=rolled_out)

    async def selector() -> Manifest:
        children = await backends.children(backend)
        found: Manifest = children["DaemonSet-member-0"]["spec"]["template"]["spec"]["nodeSelector"]
        return found

    await backends.edit(backend, members=[group])
    await eventually(selector, lambda found: found == {"lends": "much"})
    await backends.members_scheduled(backend, nodes=2)
    await backends.says(backend, "Error", RolloutComplete=rolled_out)
    assert await backends.pods(backend) == {"a": IMAGE, "b": IMAGE}

    await backends.edit(backend, members=[{**group, "image": "store:2"}])
    await eventually(lambda: backends.pods(backend), lambda found: found == {"b": IMAGE})
    await backends.ended("a")
    await backends.members_scheduled(backend, nodes=2)
    await backends.says(backend, "Error", RolloutComplete=("False", "MembersRollingOut"))
    assert await backends.pods(backend) == {"b": IMAGE}, "nobody else goes before the first has a successor"
    await backends.member(backend, "c", node="n1", ip="10.0.0.1")
    await eventually(lambda: backends.pods(backend), lambda found: found == {"c": "store:2"})
    await backends.ended("b")
    await backends.member(backend, "d", node="n2", ip="10.0.0.2")
    await backends.says(backend, "Error", RolloutComplete=rolled_out)
    assert await backends.pods(backend) == {"c": "store:2", "d": "store:2"}


async def test_spares_are_added_once_the_elected_leader_has_taken_its_place(
    backends: BackendWorld, operator: Dialled
) -> None:
    backend = await backends.managed()
    await backends.says(backend, "Provisioning")
    await backends.leader_ready(backend)
    await backends.edit(backend, leader={"electionBackend": "Kubernetes", "replicas": 3})

    async def deployment() -> Manifest:
        spec: Manifest = (await backends.children(backend))["Deployment-leader"]["spec"]
        return spec

    def elects(spec: Manifest) -> bool:
        return "-enable_ha=true" in spec["template"]["spec"]["containers"][0]["args"]

    spec = await eventually(deployment, elects)
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    await backends.leader_ready(backend)
    spec = await eventually(deployment, lambda seen: seen["replicas"] == 3)
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 3}
    await backends.edit(backend, leader={"replicas": 1})
    spec = await eventually(deployment, lambda seen: seen["replicas"] == 1)
    assert (spec["strategy"], spec["progressDeadlineSeconds"]) == ({"type": "Recreate"}, 600)


# ----------------------------------------------------------------------------------------------------------- deletion


async def test_a_backend_in_use_is_kept_and_goes_after_its_last_pool(
    backends: BackendWorld, us: Counting, operator: Dialled
) -> None:
    backend = await backends.managed()
    await backends.says(backend, "Provisioning")
    pool = await backends.pool("pool", backend)
    await backends.says(backend, "Provisioning", Deletable=("False", "InUse"))
    await backends.client.delete(KVCacheBackend.resource, backend)
    status = await backends.says(backend, "Deleting", Deletable=("False", "InUse"))
    assert status["phaseMessage"] == f"in use by KVCachePool/{pool.name}; delete them first"
    children = await backends.children(backend)
    await backends.leader_ready(backend)
    await steady(operator, us, admin_of(backend, backends.namespace))
    assert children.keys() == (await backends.children(backend)).keys()
    await backends.claim(backend)
    status = await backends.says(backend, "Deleting", Deletable=("True", "NotInUse"))
    assert f"DaemonSet {backends.namespace}/{backend.name}-member-0" in status["phaseMessage"]
    assert sorted(await backends.children(backend)) == ["DaemonSet-member-0", "Deployment-leader"], (
        "the Service is gone"
    )
    assert len(await backends.collect()) == 2
    await backends.gone(backend)


async def test_the_claim_of_a_pool_that_is_gone_holds_nobody(backends: BackendWorld, operator: Dialled) -> None:
    backend = await backends.external(admin=NOWHERE)
    pool = await backends.pool("pool", backend)
    await backends.claim(backend, "never-was", pool.name)

    async def users() -> list[str]:
        return [one["name"] for one in (await backends.status(backend)).get("usedBy", ())]

    await eventually(users, lambda found: found == [pool.name])
    await backends.client.delete(KVCacheBackend.resource, backend)
    await backends.says(backend, "Deleting", Deletable=("False", "InUse"))
    await backends.client.delete(KVCachePool.resource, pool)
    await backends.gone(backend)


async def test_a_workload_that_does_not_end_is_given_up_in_the_end(
    backends: BackendWorld, client: Client, namespace: str, operator: Dialled
) -> None:
    backend = await backends.managed()
    await backends.says(backend, "Provisioning")
    await backends.client.delete(KVCacheBackend.resource, backend)
    await backends.says(backend, "Deleting")
    live = await client.get(KVCacheBackend, backend)
    cache = Cache(client)
    actor = Actor(client, child_informers(cache, namespace), Settings(namespace, IMAGE))
    both = [f"DaemonSet {namespace}/{backend.name}-member-0", f"Deployment {namespace}/{backend.name}-leader"]
    left = (await backends.children(backend)).values()
    begun = [datetime.fromisoformat(one["metadata"]["deletionTimestamp"]) for one in left]
    assert await actor.remove(live, min(begun) + timedelta(seconds=149)) == (both, [])
    assert await actor.remove(live, max(begun) + timedelta(seconds=151)) == ([], both)


async def test_a_workload_that_never_ends_does_not_hold_its_backend_for_ever(
    backends: BackendWorld, client: Client, namespace: str
) -> None:
    backend = await backends.managed()
    async with operating(client, namespace, Dialled()):
        await backends.says(backend, "Provisioning")
        await backends.client.delete(KVCacheBackend.resource, backend)
        await backends.says(backend, "Deleting")
    later = Manager(client, options=Options(metrics_address="0", health_address="0", handle_signals=False))
    reconciler = KVCacheBackendReconciler(
        client=client,
        backends=later.cache.informer(KVCacheBackend),
        pools=later.cache.informer(StoredPool),
        pods=later.cache.informer(StorePod, indexes={BY_BACKEND: lambda pod: (pod.backend,)}),
        actor=Actor(client, child_informers(later.cache, namespace), Settings(namespace, IMAGE)),
        masters=Dialled(),
        recorder=later.recorder("test"),
        namespace=namespace,
        now=lambda: datetime.now(UTC) + timedelta(hours=1),
    )
    running = asyncio.create_task(later.run())
    await later.wait_started()
    await reconciler.reconcile(backend)
    await backends.gone(backend)

    async def told() -> list[str]:
        found = json.loads(await client.request("GET", path_of(EVENTS, "default")))["items"]
        return [one["note"] for one in found if one["regarding"]["name"] == backend.name]

    later.stop()
    await running
    (note,) = await eventually(told, bool)
    assert f"Deployment {namespace}/{backend.name}-leader" in note
    left = ["DaemonSet-member-0", "Deployment-leader"]
    assert sorted(await backends.children(backend)) == left, "the garbage collector has them, as their owner is gone"


async def test_the_claim_of_a_pool_that_the_cache_does_not_know_yet_stays(
    backends: BackendWorld, client: Client
) -> None:
    backend = await backends.external(admin=NOWHERE)
    pool = await backends.pool("pool", backend)
    live = await client.get(KVCacheBackend, backend)
    kept = await without_dangling(client, live, lambda name: False)
    assert [one.name for one in kept.status.used_by] == [pool.name]


async def test_a_claim_that_is_made_while_an_old_one_is_looked_into_stays(
    backends: BackendWorld, client: Client
) -> None:
    """A pool may be made anew, and claim the backend, between the question whether it is there and the write."""
    backend = await backends.external(admin=NOWHERE)
    claims = [{"kind": "KVCachePool", "namespace": "", "name": name} for name in ("anew", "other")]

    class Slow(Client):
        async def request(self, method: str, path: str, **more: Any) -> bytes:
            if method == "PATCH":
                await client.patch_status(KVCacheBackend.resource, backend, {"usedBy": claims})
            return await super().request(method, path, **more)

    await client.patch_status(KVCacheBackend.resource, backend, {"usedBy": claims[:1]})
    seen = await client.get(KVCacheBackend, backend)
    await without_dangling(Slow(client.connection, field_manager="test"), seen, lambda name: False)
    live = await client.get(KVCacheBackend, backend)
    assert [one.name for one in live.status.used_by] == ["anew", "other"]


async def test_nothing_is_written_for_a_backend_whose_deletion_the_cache_has_not_seen(
    backends: BackendWorld, client: Client, namespace: str
) -> None:
    """Decision F2."""
    backend = await backends.managed()
    seen = await client.get(KVCacheBackend, backend)
    await client.patch(KVCacheBackend.resource, backend, {"metadata": {"finalizers": ["example.com/hold"]}})
    await client.delete(KVCacheBackend.resource, backend)
    actor = Actor(client, child_informers(Cache(client), namespace), Settings(namespace, IMAGE))
    with pytest.raises(OwnerIsLeaving):
        await actor.act(seen, ())
    assert await backends.children(backend) == {}


# ---------------------------------------------------------------------------------------------------------- API server


async def test_the_api_server_stores_every_shape_as_it_is_rendered(
    backends: BackendWorld, client: Client, namespace: str, us: Counting, operator: Dialled
) -> None:
    """What it adds or spells otherwise is not taken for a change: nothing is written twice."""
    groups: list[Manifest] = [
        {},
        {"medium": "VRAM", "transport": {"protocol": "RDMA"}, "fabricInterfaceCount": 2},
        {"transport": {"protocol": "EFA"}, "extraArgs": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
        {"localDisks": [{"path": "/cache", "capacity": "1Ti"}], "extraEnv": [{"name": "A", "value": ""}]},
    ]
    leader = {
        "replicas": 3,
        "memberAddressing": "Lease",
        "resources": {"limits": {"memory": "1024Mi", "cpu": 1}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "nodeSelector": {"a": "b"},
    }
    backend = await backends.managed("store", *groups, leader=leader, scaleIn={"gracePeriodSeconds": 30})
    await backends.says(backend, "Provisioning", RolloutComplete=("False", "LeaderRollingOut"))
    live, children = await client.get(KVCacheBackend, backend), await backends.children(backend)
    for one in render(live, Settings(namespace, IMAGE), children["Deployment-leader"]):
        assert covers(one, children[f"{one['kind']}{one['metadata']['name'].removeprefix(backend.name)}"])
    await backends.leader_ready(backend)
    await backends.says(backend, "Error", LeaderAvailable=("False", "LeaderUnreachable"))
    await steady(operator, us, admin_of(backend, namespace))
