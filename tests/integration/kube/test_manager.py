"""A manager starts in order, says what is wrong, and stops at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import ClassVar

import aiohttp
import pytest

from examples.echo import Echo, Widget
from inferencecache.kube import (
    CacheNotSynced,
    Client,
    ConfigMap,
    Key,
    Manager,
    ObjectMeta,
    Resource,
    ResourceType,
    Result,
    View,
)
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.health import Health, listening_in_a_thread
from inferencecache.kube.serving import Address
from tests.integration.kube.partition import partition
from tests.integration.kube.widgets import eventually, install_widgets, options, running, widget

PROBE = """
import sys, time, urllib.error, urllib.request
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        said = urllib.request.urlopen(sys.argv[1]).read().decode()
    except urllib.error.HTTPError as error:
        said = f"{error.code} {error.read().decode()}"
        break
    time.sleep(0.1)
print(said)
"""


class Nowhere(View, frozen=True):
    resource: ClassVar[Resource] = ResourceType("nowhere.example.io", "v1", "Nowhere", "nowheres")
    metadata: ObjectMeta = ObjectMeta()


class Idle:
    async def reconcile(self, key: Key) -> Result | None:
        return None


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def read(http: aiohttp.ClientSession, address: Address, path: str, scheme: str = "http") -> tuple[int, str]:
    async with http.get(f"{scheme}://{address.host}:{address.port}{path}", ssl=False) as answer:
        return answer.status, await answer.text()


async def test_a_kind_that_never_syncs_is_named_and_readyz_says_so_meanwhile(
    client: Client, http: aiohttp.ClientSession
) -> None:
    def watching_nowhere(name: str, patience: timedelta) -> Manager:
        manager = Manager(client, options=options(cache_sync_timeout=patience))
        manager.controller(name, Idle()).watches_primary(Nowhere)
        return manager

    manager = watching_nowhere("patient", timedelta(minutes=5))

    async def complaint() -> bool:
        status, text = await read(http, manager.listening["health"], "/readyz")
        return status == 500 and "[-]caches failed: Nowhere has no complete list yet" in text

    async with running(manager):
        await eventually("the complaint", complaint)
        assert (await read(http, manager.listening["health"], "/healthz"))[0] == 200
    with pytest.raises(CacheNotSynced, match="Nowhere"):
        await asyncio.wait_for(watching_nowhere("impatient", timedelta(seconds=1)).run(), 60)


async def test_probes_and_metrics_of_a_running_operator(
    client: Client, namespace: str, http: aiohttp.ClientSession
) -> None:
    await install_widgets(client)
    manager = Manager(client, options=options(metrics_secure=True))
    manager.controller("probed", Echo(manager)).watches_primary(Widget).owns(ConfigMap)
    unwell: list[str] = ["no certificate"]
    manager.add_ready_check("webhooks", lambda: unwell[0] if unwell else None)
    await client.apply(widget(Key(namespace, "w"), "hi"))
    async with running(manager):
        await asyncio.wait_for(manager.wait_started(), 60)

        async def complains() -> bool:
            status, text = await read(http, manager.listening["health"], "/readyz")
            return status == 500 and "[-]webhooks failed: no certificate" in text and "[+]caches ok" in text

        async def ready() -> bool:
            return (await read(http, manager.listening["health"], "/readyz"))[0] == 200

        await eventually("the complaint", complains)
        unwell.clear()
        await eventually("ready", ready)

        async def counted() -> bool:
            _, text = await read(http, manager.listening["metrics"], "/metrics", "https")
            return (
                'controller_runtime_reconcile_total{controller="probed",result="success"}' in text
                and 'workqueue_depth{controller="probed",name="probed",priority="-100"} 0.0' in text
                and "_created" not in text
            )

        await eventually("the series", counted)


async def test_readyz_fails_while_a_cache_is_stale_and_names_the_reason(
    control_plane: ControlPlane, client: Client, namespace: str, http: aiohttp.ClientSession
) -> None:
    await install_widgets(client)
    async with partition(control_plane) as (proxied, proxy):
        manager = Manager(proxied, options=options(stale_after=timedelta(seconds=1.5)))
        manager.controller("blind", Echo(manager)).watches_primary(Widget).owns(ConfigMap)

        async def told_something() -> tuple[int, str]:
            """What `/readyz` says while there is always something to hear of."""
            await client.apply(widget(Key(namespace, "w"), str(time.monotonic())))
            return await read(http, manager.listening["health"], "/readyz")

        async def well() -> bool:
            return (await told_something())[0] == 200

        async def stale() -> bool:
            status, text = await told_something()
            return status == 500 and "[-]caches failed: Widget is stale, no word from the API server for" in text

        async with running(manager):
            await asyncio.wait_for(manager.wait_started(), 60)
            await eventually("ready", well)
            proxy.freeze()  # the connections look alive
            await eventually("stale in spite of changes", stale)
            await proxy.cut()

            async def reason() -> bool:
                _, text = await told_something()
                return "Widget is stale" in text and "ConfigMap is stale" in text and "watch /api" in text

            await eventually("stale, and why", reason)
            assert (await read(http, manager.listening["health"], "/healthz"))[0] == 200
            await proxy.mend()
            await eventually("ready again", well)


async def test_a_stuck_event_loop_fails_healthz_from_its_own_thread() -> None:
    health = Health(stuck_after=timedelta(seconds=0.2))
    beating = asyncio.create_task(health.keep_beating())
    async with listening_in_a_thread(health.app, Address("127.0.0.1", 0)) as address:
        # The loop is stuck for as long as the probe takes.
        command = [sys.executable, "-c", PROBE, f"http://{address}/healthz"]
        probed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)  # noqa: ASYNC221
    assert "500 [-]event-loop failed: the event loop has not come round for" in probed.stdout
    beating.cancel()


async def test_a_failing_part_ends_the_manager_with_its_error(client: Client) -> None:
    manager = Manager(client, options=options())

    async def fail() -> None:
        raise ValueError("broken part")

    manager.add(fail)
    with pytest.raises(ValueError, match="broken part"):
        await asyncio.wait_for(manager.run(), 60)


async def test_parts_stop_in_reverse_and_one_that_will_not_is_cut_at_the_grace_period(client: Client) -> None:
    manager = Manager(client, options=options(graceful_timeout=timedelta(seconds=0.5)))
    ended: list[str] = []
    started = asyncio.Event()

    def part(name: str) -> None:
        async def run() -> None:
            if name == "leader":
                started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        manager.add(run, name=name, leader_only=name == "leader")

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3600)

    part("service")
    part("leader")
    manager.add(stubborn, leader_only=True)
    task = asyncio.create_task(manager.run())
    await asyncio.wait_for(started.wait(), 60)
    manager.stop()
    await asyncio.wait_for(task, 60)
    assert ended == ["leader", "service"]


async def test_sigterm_at_any_moment_ends_everything(client: Client) -> None:
    await install_widgets(client)
    chance = random.Random(3)
    for moment in [0.0, *(chance.random() * 0.25 for _ in range(7))]:
        before = asyncio.all_tasks()
        manager = Manager(client, options=options(handle_signals=True))
        manager.controller("mortal", Echo(manager)).watches_primary(Widget).owns(ConfigMap)
        manager.recorder("mortal")
        task = asyncio.create_task(manager.run())
        await asyncio.sleep(moment)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 60)
        left = {one for one in asyncio.all_tasks() - before if not one.done()}
        assert not left


async def test_a_second_controller_of_a_name_and_a_wrong_address_are_refused(client: Client) -> None:
    manager = Manager(client)
    manager.controller("one", Idle())
    with pytest.raises(ValueError, match="'one' already"):
        manager.controller("one", Idle())
    with pytest.raises(ValueError, match="watches_primary before owns"):
        manager.controller("two", Idle()).owns(ConfigMap)
    with pytest.raises(ValueError, match="no address"):
        Manager(client, options=options(metrics_address="8080"))
