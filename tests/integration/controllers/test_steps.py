"""Steps of a CacheBackend's life that the contract leaves alone on purpose (spec 05 §12.6, §12.7).

A recovery is told of the step from degraded to ready, and of no longer way. The clock of the first event starts anew
where a server is left, and goes on where one is taken up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import register
from inferencecache.kube.client import Client
from inferencecache.kube.conditions import timestamp
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.events import EVENTS
from inferencecache.kube.resource import Key, path_of
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running

LONG_AGO = "2026-01-02T03:04:05Z"
STORE = {"provider": "LMCacheServer", "ownership": "Managed"}


class Steps(World):
    """The backend `kv` and what is said of it."""

    async def status(self) -> dict[str, Any]:
        return (await self.client.get(CacheBackend, Key(self.namespace, "kv"))).status.manifest()

    async def change(self, **spec: Any) -> None:
        await self.client.patch(CacheBackend.resource, Key(self.namespace, "kv"), {"spec": spec})

    async def says(self, reason: str) -> dict[str, Any]:
        """The status once it is of the present spec and Ready has this reason."""

        async def look() -> tuple[str, dict[str, Any]]:
            live = await self.client.get(CacheBackend, Key(self.namespace, "kv"))
            told = {one.type: one.reason for one in live.status.conditions or ()}
            fresh = live.status.observed_generation == live.metadata.generation
            return told.get("Ready", "") if fresh else "", live.status.manifest()

        return (await eventually(look, lambda seen: seen[0] == reason))[1]

    async def told(self) -> Counter[str]:
        """How often each Event was told."""
        found = json.loads(await self.client.request("GET", path_of(EVENTS, self.namespace)))["items"]
        told: Counter[str] = Counter()
        for one in found:
            if one["regarding"]["kind"] == "CacheBackend":
                told[one["reason"]] += (one.get("series") or {}).get("count", 1)
        return told


@pytest.fixture
async def steps(client: Client, namespace: str) -> AsyncIterator[Steps]:
    await install_crds(client, crds())
    manager = quiet_manager(operator_client(client))
    register(manager, registries=load_adapters())
    async with running(manager):
        yield Steps(client, namespace)


async def test_a_recovery_by_way_of_a_rollout_is_not_told_and_one_without_is(steps: Steps) -> None:
    await steps.client.create(managed(steps.namespace))
    await steps.says("RolloutInProgress")
    await steps.rolled_out("kv", available=0)
    await steps.says("ReplicasUnavailable")
    await steps.change(replicas=2)
    await steps.says("RolloutInProgress")
    await steps.rolled_out("kv", 2)
    await steps.says("BackendReady")
    await steps.rolled_out("kv", 2, available=1)
    await steps.says("ReplicasUnavailable")
    await steps.rolled_out("kv", 2)
    await steps.says("BackendReady")
    # Events about one object are written in the order in which they happened: nothing is still to come.
    told = await eventually(steps.told, lambda seen: seen["BackendRecovered"] > 0)
    assert (told["BackendDegraded"], told["BackendRecovered"]) == (2, 1)


async def test_a_server_that_is_taken_up_inherits_the_clock_and_one_that_is_left_starts_it_anew(steps: Steps) -> None:
    begun = timestamp(datetime.now(UTC))
    waiting = managed(steps.namespace, remoteStorage=None)
    del waiting["metadata"]["annotations"]
    await steps.client.create(waiting)
    await steps.says("AwaitingFirstKVEvent")
    await steps.client.patch_status(CacheBackend.resource, Key(steps.namespace, "kv"), {"firstAvailableAt": LONG_AGO})
    assert (await steps.says("NoKVEventsObserved"))["firstAvailableAt"] == LONG_AGO
    await steps.change(remoteStorage=STORE)
    await steps.says("RolloutInProgress")
    await steps.rolled_out("kv")
    breached = await steps.says("NoKVEventsObserved")
    assert (breached["firstAvailableAt"], bool(breached["endpoint"])) == (LONG_AGO, True)
    await steps.change(remoteStorage=None)
    anew = await steps.says("AwaitingFirstKVEvent")
    assert anew["firstAvailableAt"] >= begun
    assert "endpoint" not in anew
