"""What goes wrong in a cluster, done to a running `inferencecache controller` on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.cli.install import webhook_configurations
from inferencecache.cli.processes import Child
from inferencecache.cli.trial import Ports, wait_serving
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import NotFound
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Deployment, Lease, Pod, Service
from inferencecache.kube.leader import LeaderElection
from inferencecache.kube.resource import Key, Manifest, path_of
from tests.integration.kube.waiting import eventually
from tests.integration.operator_process import (
    LEASE_KEY,
    Operator,
    condition,
    find,
    lease_removed,
    managed,
    operator,
    patient_webhooks,
    prepare,
    stays,
    there,
    writes_by_resource,
)


@pytest.fixture
async def kubeconfig(control_plane: ControlPlane, client: Client, namespace: str) -> AsyncIterator[Path]:
    path = await prepare(control_plane, client)
    async with lease_removed(client):
        yield path
    # Nobody empties namespaces here, and the next operator shall have nothing left to do.
    await client.request("DELETE", path_of(CacheBackend.resource, namespace))


def tracebacks(log: str) -> list[str]:
    """Lines with a traceback."""
    return [line for line in log.splitlines() if "Traceback" in line]


async def test_a_foreign_deployment_is_named_and_untouched_until_it_goes(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decisions F1 and F16."""
    key = Key(namespace, "kv")
    labels = {"app": "somebody-else"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    foreign = await client.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kv", "namespace": namespace},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    async with operator(kubeconfig, tmp_path, elect=False) as running:
        await running.wait_ready()
        await client.create(managed(namespace, "kv"))
        status, _, message = await eventually(lambda: condition(client, key), lambda seen: seen[1] == "ChildConflict")
        assert status == "False"
        assert f"Deployment {key}" in message
        # It tries again and again meanwhile.
        tries = await running.total("controller_runtime_reconcile_errors_total")
        await eventually(
            lambda: running.total("controller_runtime_reconcile_errors_total"), lambda now: now >= tries + 3
        )
        assert await find(client, Deployment, key) == foreign
        assert await find(client, Service, key) is None
        await client.delete(Deployment.resource, key)
        await eventually(lambda: condition(client, key), lambda seen: seen[1] == "RolloutInProgress")
        child = await there(client, Deployment, key)
        assert child["metadata"]["uid"] != foreign["metadata"]["uid"]
        await there(client, Service, key)


async def test_nothing_is_recreated_for_a_backend_that_is_being_deleted(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decision F2, with the deletion of a child right behind that of its owner, and with one in the midst of a pass."""
    names = [f"kv-{number}" for number in range(20)]
    keys = [Key(namespace, name) for name in names]

    async def children() -> list[str]:
        return [
            f"{kind.resource.kind} {key.name}"
            for key in keys
            for kind in (Deployment, Service)
            if await find(client, kind, key) is not None
        ]

    async def barrier(name: str) -> None:
        """A later backend has its children: whatever was queued before it has been looked at."""
        await client.create(managed(namespace, name))
        await there(client, Service, Key(namespace, name))

    async with operator(kubeconfig, tmp_path, elect=False) as running:
        await running.wait_ready()
        for name in names:
            backend = managed(namespace, name)
            backend["metadata"]["finalizers"] = ["example.io/hold"]
            await client.create(backend)
        for key in keys:
            await there(client, Service, key)
        for key in keys:
            # Once the server has the owner's deletion nothing may be made, though that of a child be heard of first.
            await client.delete(CacheBackend.resource, key)
            await asyncio.gather(*(client.delete(kind.resource, key) for kind in (Deployment, Service)))
        await barrier("later")
        await eventually(running.idle, bool)
        assert await children() == []
        await stays(children, seconds=1)

        for number in range(8):
            torn = managed(namespace, f"torn-{number}")
            torn["metadata"]["finalizers"] = ["example.io/hold"]
            keys.append(Key(namespace, f"torn-{number}"))
            await client.create(torn)
            await client.delete(CacheBackend.resource, keys[-1])
        await barrier("last")
        await eventually(running.idle, bool)  # there are several workers, and the last need not be done last
        await stays(children, seconds=1)
        assert running.process.poll() is None
        for key in keys:
            await client.patch(CacheBackend.resource, key, {"metadata": {"finalizers": None}})


async def test_the_operator_outlives_its_api_server(
    control_plane: ControlPlane, client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """What was changed and deleted while it could see nothing is put right, and new backends are served."""
    known, gone, fresh = (Key(namespace, name) for name in ("known", "gone", "fresh"))

    async def failures() -> float:
        return await running.total("reflector_failures_total")

    async with operator(kubeconfig, tmp_path, elect=False) as running:
        await running.wait_ready()
        for key in (known, gone):
            await client.create(managed(namespace, key.name))
            await there(client, Service, key)
        before = await failures()
        try:
            control_plane.stop_apiserver()
            await eventually(failures, lambda now: now > before)
            # Asleep, it cannot see what happens between the server's return and its own.
            running.send(signal.SIGSTOP)
        finally:
            await asyncio.to_thread(control_plane.start_apiserver)
        await client.patch(CacheBackend.resource, known, {"spec": {"replicas": 3}})
        await client.delete(Service.resource, known)
        await client.delete(CacheBackend.resource, gone)
        await client.delete(Deployment.resource, gone)
        await client.create(managed(namespace, fresh.name))
        running.send(signal.SIGCONT)

        await there(client, Service, fresh)
        await there(client, Service, known)
        await eventually(lambda: there(client, Deployment, known), lambda one: one["spec"]["replicas"] == 3)
        assert await find(client, Deployment, gone) is None
        assert running.process.poll() is None
        await running.wait_ready()


async def test_an_outage_past_the_renew_deadline_ends_the_leader_and_its_successor_puts_things_right(
    control_plane: ControlPlane, client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decision F8. What is started anew by the kubelet in a cluster, is started anew here."""
    key = Key(namespace, "kv")
    async with operator(kubeconfig, tmp_path, name="before") as running:
        await eventually(running.leads, bool, seconds=200)
        await client.create(managed(namespace, "kv"))
        await there(client, Service, key)
        lease = (await client.get(Lease, LEASE_KEY)).spec
        holder, renewed = lease.holder_identity, lease.renew_time
        try:
            control_plane.stop_apiserver()
            assert await running.wait_ended(seconds=60) == 1
            # From the last renewal that anybody saw; it may have renewed once more.
            kept = datetime.now(UTC) - datetime.fromisoformat(renewed or "")
            assert kept > LeaderElection.renew_deadline - timedelta(seconds=1)
            said = running.log.read_text()
            assert not tracebacks(said)
            assert "lease" in said.lower()
        finally:
            await asyncio.to_thread(control_plane.start_apiserver)
    await client.delete(Service.resource, key)
    async with operator(kubeconfig, tmp_path, name="after") as successor:
        await there(client, Service, key, seconds=200)
        assert await successor.leads()
        lease = await client.get(Lease, LEASE_KEY)
        assert lease.spec.holder_identity not in ("", holder)
        assert lease.spec.lease_transitions == 1


async def test_a_killed_leader_is_replaced_within_its_lease(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    async with (
        operator(kubeconfig, tmp_path, name="first") as first,
        operator(kubeconfig, tmp_path, name="second") as second,
    ):
        await first.wait_ready()
        await second.wait_ready()
        leader, other = await leader_of(first, second)
        holder = (await client.get(Lease, LEASE_KEY)).spec.holder_identity
        other.send(signal.SIGSTOP)  # or it might lead before we have looked
        leader.send(signal.SIGKILL)
        assert await leader.wait_ended(seconds=60) == -signal.SIGKILL
        await client.create(managed(namespace, "orphan"))  # while nobody leads
        assert await find(client, Deployment, Key(namespace, "orphan")) is None
        killed = time.monotonic()
        other.send(signal.SIGCONT)
        await there(client, Service, Key(namespace, "orphan"))
        # The Lease's 15 s after its last renewal, and a try every 2.4 s at most; the rest is for a busy machine.
        assert time.monotonic() - killed < 15 + 2.4 + 30
        lease = await client.get(Lease, LEASE_KEY)
        assert lease.spec.holder_identity not in ("", holder)
        assert lease.spec.lease_transitions == 1
        assert await other.leads()


async def test_a_leader_that_slept_past_its_lease_writes_nothing_on_waking(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """Decision F14: there is work in sight when it wakes, and it leaves it alone."""
    key = Key(namespace, "kv")

    async def versions() -> list[str]:
        found = [await find(client, kind, key) for kind in (CacheBackend, Deployment, Service)]
        return [one["metadata"]["resourceVersion"] if one else "" for one in found]

    async with (
        operator(kubeconfig, tmp_path, name="first") as first,
        operator(kubeconfig, tmp_path, name="second") as second,
    ):
        await first.wait_ready()
        await second.wait_ready()
        sleeper, other = await leader_of(first, second)
        await client.create(managed(namespace, "kv"))
        await there(client, Service, key)
        sleeper.send(signal.SIGSTOP)
        await eventually(other.leads, bool)
        holder = (await client.get(Lease, LEASE_KEY)).spec.holder_identity
        # The new leader sleeps as well, so that whatever is written now was written by the old one.
        other.send(signal.SIGSTOP)
        await client.delete(Service.resource, key)
        await client.patch(CacheBackend.resource, key, {"spec": {"replicas": 2}})
        await client.create(managed(namespace, "new"))
        before = await versions()
        sleeper.send(signal.SIGCONT)
        status = await sleeper.wait_ended(seconds=60)
        assert status == 1, sleeper.log.read_text()
        assert await versions() == before
        assert await find(client, Deployment, Key(namespace, "new")) is None
        assert (await client.get(Lease, LEASE_KEY)).spec.holder_identity == holder
        assert not tracebacks(sleeper.log.read_text())


async def test_sigterm_ends_it_cleanly_and_frees_the_lease(
    client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    async with operator(kubeconfig, tmp_path) as running:
        await running.wait_ready()
        await eventually(running.leads, bool, seconds=200)
        assert (await client.get(Lease, LEASE_KEY)).spec.holder_identity
        for number in range(5):  # it has something to do
            await client.create(managed(namespace, f"kv-{number}"))
        running.send(signal.SIGTERM)
        assert await running.wait_ended(seconds=60) == 0, running.log.read_text()
        assert (await client.get(Lease, LEASE_KEY)).spec.holder_identity == ""
        assert not tracebacks(running.log.read_text())


async def leader_of(first: Operator, second: Operator) -> tuple[Operator, Operator]:
    """The one that leads, and the other."""

    async def leading() -> list[bool]:
        return [await first.leads(), await second.leads()]

    return (first, second) if (await eventually(leading, any))[0] else (second, first)


@pytest.fixture
async def webhooks(client: Client, kubeconfig: Path) -> AsyncIterator[Ports]:
    """Webhook configurations that call an operator on these ports."""
    ports = Ports.free()
    configurations = webhook_configurations({"url": f"https://127.0.0.1:{ports.webhook}"})
    try:
        for configuration in configurations:
            await client.apply(configuration)
        await patient_webhooks(client)
        yield ports
    finally:
        for configuration in configurations:
            resource, key = await client.locate(configuration)
            with contextlib.suppress(NotFound):
                await client.delete(resource, key)


async def test_events_tell_which_engines_were_wired_and_which_were_not(
    client: Client, namespace: str, kubeconfig: Path, webhooks: Ports, tmp_path: Path
) -> None:
    """Decision A12. One backend has an endpoint; the other has none, as its Service's name is taken."""

    def engine(name: str) -> Manifest:
        container = {"name": "vllm", "image": "vllm/vllm-openai:latest", "args": ["--model", "Qwen/Qwen3-0.6B"]}
        metadata = {"name": f"{name}-engine", "namespace": namespace, "labels": {"app": name}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    async def told(name: str) -> list[tuple[str, str, str]]:
        body = await client.request("GET", path_of(EVENTS, namespace))
        return [
            (event["type"], event["reason"], event["note"])
            for event in msgspec.json.decode(body)["items"]
            if event["regarding"]["kind"] == "Pod" and event["regarding"]["name"] == f"{name}-engine"
        ]

    async with operator(kubeconfig, tmp_path, ports=webhooks, elect=False) as running:
        await wait_serving(Child("operator", running.process, running.log), client, webhooks)
        service = {"ports": [{"port": 80}], "selector": {"app": "somebody-else"}}
        metadata = {"name": "poor", "namespace": namespace}
        await client.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
        for name in ("rich", "poor"):
            await client.create(managed(namespace, name, engineSelector={"matchLabels": {"app": name}}))
        await eventually(
            lambda: client.get(CacheBackend, Key(namespace, "rich")), lambda one: bool(one.status.endpoint)
        )
        await eventually(lambda: condition(client, Key(namespace, "poor")), lambda seen: seen[1] == "ChildConflict")

        for name in ("rich", "poor"):
            await client.create(engine(name))
        wired, unwired = [
            await client.get_manifest(Pod.resource, Key(namespace, f"{name}-engine")) for name in ("rich", "poor")
        ]
        assert "--kv-transfer-config" in wired["spec"]["containers"][0]["args"]
        assert unwired["spec"]["containers"][0]["args"] == ["--model", "Qwen/Qwen3-0.6B"]
        ((kind, reason, note),) = await eventually(lambda: told("rich"), bool)
        assert (kind, reason) == ("Normal", "InjectedByCacheBackend")
        assert f"{namespace}/rich" in note
        ((kind, reason, note),) = await eventually(lambda: told("poor"), bool)
        assert (kind, reason) == ("Warning", "NotInjected")
        assert f"{namespace}/poor" in note


async def test_a_steady_operator_writes_nothing(
    control_plane: ControlPlane, client: Client, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    """The API server counts: not one write but Leases in five seconds, nor when all backends are looked at again."""
    keys = [Key(namespace, f"kv-{number:02}") for number in range(20)]

    async def writes() -> Counter[str]:
        return writes_by_resource((await client.request("GET", "/metrics")).decode())

    async def settled() -> bool:
        before = await writes()
        await asyncio.sleep(1.5)
        return await running.idle() and await writes() == before

    # Backends that other tests left have deadlines of their own, at which they are written.
    for left in await client.list(CacheBackend):
        await client.delete(CacheBackend.resource, Key(left.metadata.namespace, left.metadata.name))
    async with operator(kubeconfig, tmp_path) as running:
        await running.wait_ready()
        before = await writes()
        for key in keys:
            await client.create(managed(namespace, key.name, engineSelector={"matchLabels": {"app": key.name}}))
        for key in keys:
            await eventually(functools.partial(condition, client, key), lambda seen: seen[1] == "RolloutInProgress")
        await eventually(settled, bool)
        assert (await writes() - before).total() >= 20 * 4  # a backend, its two children, its status: they are counted
        await stays(writes, seconds=5)

        passes, before = await running.total("controller_runtime_reconcile_total"), await writes()
        for key in keys:
            await client.patch(CacheBackend.resource, key, {"metadata": {"labels": {"looked": "at"}}})
        await eventually(
            lambda: running.total("controller_runtime_reconcile_total"), lambda now: now >= passes + len(keys)
        )
        await stays(writes, seconds=1)
        assert await writes() - before == {"PATCH cachebackends": len(keys)}  # ours
