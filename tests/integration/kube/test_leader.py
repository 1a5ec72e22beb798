"""Two replicas, one Lease, a real API server."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from inferencecache.kube import Client, ConfigMap, Key, LeaderElection, LeadershipLost, Lease, Manager
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.leader import LeaderElector
from tests.integration.kube.widgets import connected, eventually, options, running

LONG = timedelta(minutes=10)
"""A lease that does not run out while a test runs."""
SHORT = timedelta(seconds=20)
"""One that does. What stands still for less than the deadline, which is a little shorter, goes on leading."""


def election(namespace: str, identity: str, lease: timedelta = LONG) -> LeaderElection:
    return LeaderElection(
        namespace=namespace,
        name="lock",
        identity=identity,
        lease_duration=lease,
        renew_deadline=lease * 0.9,
        retry_period=timedelta(seconds=0.3),
    )


def replica(client: Client, namespace: str, name: str, acting: list[str], lease: timedelta = LONG) -> Manager:
    settings = options(leader_election=election(namespace, name, lease), metrics_address="0", health_address="0")
    manager = Manager(client, options=settings)

    async def act() -> None:
        assert not acting, f"{acting} act already"
        acting.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            acting.remove(name)

    manager.add(act, leader_only=True)
    return manager


async def renewed(client: Client, namespace: str) -> None:
    async def time_() -> str | None:
        return (await client.get(Lease, Key(namespace, "lock"))).spec.renew_time

    before = await time_()

    async def later() -> bool:
        return await time_() != before

    await eventually("the Lease renewed", later)


async def test_a_clean_stop_hands_over_at_once_and_a_killed_leader_after_its_lease(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    acting: list[str] = []

    async def leads(name: str) -> bool:
        return acting == [name]

    async with connected(control_plane) as own:
        first = replica(client, namespace, "first", acting)
        second = replica(client, namespace, "second", acting)
        third = replica(own, namespace, "third", acting, SHORT)
        async with running(first):
            await eventually("the first leads", lambda: leads("first"))
            async with running(second):
                for _ in range(3):  # long enough for the second to have tried
                    await renewed(client, namespace)
                assert acting == ["first"]
                first.stop()
                await eventually("the second leads, before the Lease has run out", lambda: leads("second"))
                async with running(third) as task:
                    second.stop()
                    await eventually("the third leads", lambda: leads("third"))
                    # Cut off from the server: as good as killed, and it must notice by itself.
                    before = time.monotonic()
                    await own.connection.close()
                    fourth = replica(client, namespace, "fourth", acting)
                    async with running(fourth):
                        await eventually("the fourth leads", lambda: leads("fourth"))
                        assert time.monotonic() - before > 0.9 * SHORT.total_seconds(), "the Lease had not run out"
                        with pytest.raises(LeadershipLost):
                            await asyncio.wait_for(task, 60)
                    lease = await client.get(Lease, Key(namespace, "lock"))
                    assert lease.spec.lease_transitions == 3
                    assert lease.spec.holder_identity == ""


async def test_a_leader_that_was_suspended_writes_nothing_on_waking(client: Client, namespace: str) -> None:
    asleep = 0.0
    elector = LeaderElector(client, election(namespace, "sleeper"), clock=lambda: time.monotonic() + asleep)
    await elector.acquire()
    guarded = client.guarded(elector.check)
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "written"}}
    await guarded.apply(manifest)
    version = (await client.get(ConfigMap, Key(namespace, "written"))).metadata.resource_version
    asleep = LONG.total_seconds()
    with pytest.raises(LeadershipLost):
        await guarded.apply({**manifest, "data": {"late": "yes"}})
    with pytest.raises(LeadershipLost):
        await guarded.delete(ConfigMap.resource, Key(namespace, "written"))
    assert (await guarded.get(ConfigMap, Key(namespace, "written"))).metadata.resource_version == version
