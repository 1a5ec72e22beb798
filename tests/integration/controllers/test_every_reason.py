"""Every reason of a CacheBackend's conditions and Events, brought about on a real API server.

A story is a short life of one backend. It yields what an onlooker must come to see, as `Type Status Reason` or
`Event Reason`, and goes on when it was seen. What is promised above each story is what its life must show, in that
order; all promises together must name every reason there is. The cache server is played, because a real one cannot be
made to fail a stage of its own test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from inferencecache.adapters.kernel_check import STRICT
from inferencecache.adapters.pods import KERNEL_CHECK
from inferencecache.adapters.registry import load_adapters
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers import CacheServer, register
from inferencecache.controllers.cachebackend import reasons
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import install_crds
from inferencecache.kube.events import EVENTS
from inferencecache.kube.kinds import Pod, Service
from inferencecache.kube.resource import Key, path_of
from tests.cases.cache_server import PlayedServer
from tests.integration.controllers.played import World, managed
from tests.integration.kube.waiting import eventually
from tests.integration.operating import operator_client, quiet_manager, running

SELECTED = {"engineSelector": {"matchLabels": {"app": "engine"}}}


class Life(World):
    """A backend named `kv`, its surroundings, and the answers of its cache server."""

    def __init__(self, client: Client, namespace: str, server: PlayedServer) -> None:
        super().__init__(client, namespace)
        self.server = server
        self.key = Key(namespace, "kv")

    async def born(self, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        manifest = managed(self.namespace, **spec)
        if annotations is not None:
            manifest["metadata"]["annotations"] = annotations
        await self.client.create(manifest)

    async def up(self) -> None:
        """Let the workload roll out, as soon as it is there."""

        async def endpoint() -> str:
            return (await self.client.get(CacheBackend, self.key)).status.endpoint or ""

        await eventually(endpoint, bool)
        await self.rolled_out("kv")

    async def taken_in(self, **participation: Any) -> None:
        """What the index poller would write."""
        body = {"indexParticipation": {"prefixCount": 1, **participation}}
        await self.client.patch_status(CacheBackend.resource, self.key, body)

    async def checked(self, finding: str | None, *, code: int = 0, strict: bool = False) -> None:
        """An engine Pod with a kernel check that ended with this finding, or has not ended."""
        live = await self.client.get(CacheBackend, self.key)
        marks = {
            c.ANNOTATION_INJECTED_BY: f"{self.namespace}/kv",
            c.ANNOTATION_INJECTED_BY_UID: live.metadata.uid,
        }
        check = {"name": KERNEL_CHECK, "image": "i", "env": [{"name": STRICT, "value": "1" if strict else "0"}]}
        await self.client.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "engine",
                    "namespace": self.namespace,
                    "labels": {"app": "engine"},
                    "annotations": marks,
                },
                "spec": {"initContainers": [check], "containers": [{"name": "vllm", "image": "i"}]},
            }
        )
        ended = {"terminated": {"exitCode": code, "message": finding, "reason": "Completed"}}
        state = {"running": {}} if finding is None else ended
        status = {"name": KERNEL_CHECK, "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": state}
        await self.client.patch_status(
            Pod.resource, Key(self.namespace, "engine"), {"phase": "Pending", "initContainerStatuses": [status]}
        )

    async def crash_loops(self) -> None:
        state = {"name": "vllm", "image": "i", "imageID": "i", "ready": False, "restartCount": 5}
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        await self.client.patch_status(
            Pod.resource,
            Key(self.namespace, "engine-0"),
            {"phase": "Running", "containerStatuses": [{**state, "state": waiting}]},
        )

    async def seen(self) -> set[str]:
        """All that can be seen now, in the words of the promises."""
        status = (await self.client.get(CacheBackend, self.key)).status
        found = json.loads(await self.client.request("GET", path_of(EVENTS, self.namespace)))["items"]
        told = {f"Event {one['reason']}" for one in found if one["regarding"]["kind"] == "CacheBackend"}
        return told | {f"{one.type} {one.status} {one.reason}" for one in status.conditions or ()}


Telling: TypeAlias = Callable[[Life], AsyncIterator[str]]


@dataclass(frozen=True)
class Story:
    tell: Telling
    promised: tuple[str, ...]


STORIES: dict[str, Story] = {}


def story(*promised: str) -> Callable[[Telling], Telling]:
    def keep(tell: Telling) -> Telling:
        STORIES[tell.__name__] = Story(tell, promised)
        return tell

    return keep


# --------------------------------------------------------------------------------------------------- managed servers


@story(
    "Ready False RolloutInProgress",
    "Degraded False NotDegraded",
    "Ready False ReplicasUnavailable",
    "Progressing False Degraded",
    "Event BackendDegraded",
    "Ready True BackendReady",
    "Progressing False Synced",
    "Event BackendRecovered",
)
async def a_rollout_that_gets_stuck_and_recovers(life: Life) -> AsyncIterator[str]:
    await life.born()
    yield "Ready False RolloutInProgress"
    yield "Degraded False NotDegraded"
    await life.rolled_out("kv", available=0)
    yield "Ready False ReplicasUnavailable"
    yield "Progressing False Degraded"
    yield "Event BackendDegraded"
    await life.rolled_out("kv")
    yield "Ready True BackendReady"
    yield "Progressing False Synced"
    yield "Event BackendRecovered"


@story(
    "Ready False AwaitingFirstKVEvent",
    "Event AwaitingFirstKVEvent",
    "Ready False NoKVEventsObserved",
    "Degraded True NoKVEventsObserved",
    "Event NoKVEventsObserved",
    "Ready True KVEventsObserved",
    "Event KVEventsObserved",
)
async def engines_that_are_silent_for_too_long(life: Life) -> AsyncIterator[str]:
    await life.born(annotations={}, observation={"firstEventTimeout": "1h"})
    await life.up()
    yield "Ready False AwaitingFirstKVEvent"
    yield "Event AwaitingFirstKVEvent"
    patch = {"spec": {"observation": {"firstEventTimeout": "1s"}}}
    await life.client.patch(CacheBackend.resource, life.key, patch)
    yield "Ready False NoKVEventsObserved"
    yield "Degraded True NoKVEventsObserved"
    yield "Event NoKVEventsObserved"
    await life.taken_in(lastEventAt="2026-01-02T03:04:05Z")
    yield "Ready True KVEventsObserved"
    yield "Event KVEventsObserved"


@story("Ready False ScaledToZero")
async def nothing_is_wanted(life: Life) -> AsyncIterator[str]:
    await life.born(replicas=0)
    yield "Ready False ScaledToZero"


@story("Ready False ChildConflict", "Event ChildConflict", "Ready False RolloutInProgress")
async def a_foreign_object_has_the_name_of_a_child(life: Life) -> AsyncIterator[str]:
    metadata = {"name": "kv", "namespace": life.namespace}
    spec = {"ports": [{"port": 80}], "selector": {"app": "other"}}
    await life.client.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    await life.born()
    yield "Ready False ChildConflict"
    yield "Event ChildConflict"
    await life.client.delete(Service.resource, life.key)
    yield "Ready False RolloutInProgress"


@story("Ready False ApplyFailed", "Event ApplyFailed", "Ready False RolloutInProgress")
async def a_child_that_the_api_server_refuses(life: Life) -> AsyncIterator[str]:
    too_little = {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}
    storage = {"provider": "LMCacheServer", "ownership": "Managed", "lmCacheServer": {"resources": too_little}}
    await life.born(remoteStorage=storage)
    yield "Ready False ApplyFailed"
    yield "Event ApplyFailed"
    enough = {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi"}}
    patch = {"spec": {"remoteStorage": {"lmCacheServer": {"resources": enough}}}}
    await life.client.patch(CacheBackend.resource, life.key, patch)
    yield "Ready False RolloutInProgress"


@story("Event FailClosedEnabled", "Event FailOpenRestored")
async def engines_must_have_the_cache_and_then_need_not(life: Life) -> AsyncIterator[str]:
    await life.born(integration={"failOpen": False})
    yield "Event FailClosedEnabled"
    await life.client.patch(CacheBackend.resource, life.key, {"spec": {"integration": {"failOpen": True}}})
    yield "Event FailOpenRestored"


# ---------------------------------------------------------------------------------------------- paths without a server


@story("Ready True HostOnlyActive")
async def engines_cache_in_host_memory(life: Life) -> AsyncIterator[str]:
    await life.born(remoteStorage=None)
    yield "Ready True HostOnlyActive"


@story("Ready True EventsOnlyActive")
async def engines_only_report(life: Life) -> AsyncIterator[str]:
    await life.born(remoteStorage=None, integration={"mode": "EventsOnly"})
    yield "Ready True EventsOnlyActive"


@story(
    "Ready False ExternalEndpointMissing", "Ready False ExternalEndpointInvalid", "Ready True ExternalEndpointAccepted"
)
async def a_server_of_somebody_else(life: Life) -> AsyncIterator[str]:
    await life.born(remoteStorage={"provider": "LMCacheServer", "ownership": "External"})
    yield "Ready False ExternalEndpointMissing"
    for endpoint, seen in (
        ("https://kv:1", "False ExternalEndpointInvalid"),
        ("kv:1", "True ExternalEndpointAccepted"),
    ):
        patch = {"spec": {"remoteStorage": {"endpoint": endpoint}}}
        await life.client.patch(CacheBackend.resource, life.key, patch)
        yield f"Ready {seen}"


@story(
    "Ready False PoolBindingNotFound",
    "Ready False PoolNotServed",
    "Ready False PoolTenantNotSent",
    "Ready False PoolBindingNotReady",
    "Ready True PoolBindingReady",
    "Ready False PoolBindingDeleting",
)
async def a_pool_comes_and_goes(life: Life) -> AsyncIterator[str]:
    pool, binding = Key("", f"{life.namespace}-pool"), Key(life.namespace, "team-a")
    on_pool = {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": binding.name}}
    await life.born(remoteStorage=on_pool)
    yield "Ready False PoolBindingNotFound"
    await life.client.create(
        {
            "apiVersion": KVCachePoolBinding.resource.api_version,
            "kind": "KVCachePoolBinding",
            "metadata": {"name": binding.name, "namespace": binding.namespace},
            "spec": {
                "poolRef": {"name": pool.name},
                "quota": {"ceiling": "1Gi"},
                "domain": {"name": "chat", "blockSize": 64, "dtype": "bfloat16"},
            },
        }
    )
    yield "Ready False PoolNotServed"
    await life.client.create(
        {
            "apiVersion": KVCachePool.resource.api_version,
            "kind": "KVCachePool",
            "metadata": {"name": pool.name},
            "spec": {"backends": ["store"], "quota": {"total": "1Gi"}},
        }
    )
    ledger = {"type": "QuotaLedgerAvailable", "lastTransitionTime": "2026-11-30T11:00:00Z", "message": ""}
    for status, reason, seen in (
        ("True", "Available", "PoolTenantNotSent"),
        ("False", "MultiTenancyDisabled", "PoolBindingNotReady"),
    ):
        conditions = [{**ledger, "status": status, "reason": reason}]
        served = {"clientEndpoint": "store:50051", "conditions": conditions}
        await life.client.patch_status(KVCachePool.resource, pool, served)
        yield f"Ready False {seen}"
    await life.client.patch_status(KVCachePoolBinding.resource, binding, {"phase": "Ready"})
    yield "Ready True PoolBindingReady"
    await life.client.patch(KVCachePoolBinding.resource, binding, {"metadata": {"finalizers": ["example.com/held"]}})
    await life.client.delete(KVCachePoolBinding.resource, binding)
    yield "Ready False PoolBindingDeleting"
    await life.client.patch(KVCachePoolBinding.resource, binding, {"metadata": {"finalizers": None}})
    await life.client.delete(KVCachePool.resource, pool)


# --------------------------------------------------------------------------------------------------------- the probe


@story("FunctionalProbeOK True ProbeOK", "Ready True BackendReady")
async def a_round_trip_works(life: Life) -> AsyncIterator[str]:
    await life.born()
    await life.up()
    yield "FunctionalProbeOK True ProbeOK"
    yield "Ready True BackendReady"


@story("FunctionalProbeOK True ProbeBypassed", "Ready True BackendReady")
async def nobody_wants_a_probe(life: Life) -> AsyncIterator[str]:
    life.server.probe = {"ingest": "failed"}
    skipped = {c.ANNOTATION_SKIP_FUNCTIONAL_PROBE: "true", c.ANNOTATION_REQUIRE_KV_EVENTS: "false"}
    await life.born(annotations=skipped)
    await life.up()
    yield "FunctionalProbeOK True ProbeBypassed"
    yield "Ready True BackendReady"


@story("FunctionalProbeOK Unknown ProbeError", "Ready True BackendReady")
async def the_cache_server_cannot_be_asked(life: Life) -> AsyncIterator[str]:
    life.server.probe = {"http": 500}
    await life.born()
    await life.up()
    yield "FunctionalProbeOK Unknown ProbeError"
    yield "Ready True BackendReady"


async def _fails(life: Life, stage: str, reason: str) -> AsyncIterator[str]:
    life.server.probe = {stage: "failed"}
    await life.born()
    await life.up()
    yield f"FunctionalProbeOK False {reason}"
    yield f"Ready False {reason}"


@story("FunctionalProbeOK False ProbeIngestFailed", "Ready False ProbeIngestFailed")
async def reports_are_not_taken_in(life: Life) -> AsyncIterator[str]:
    async for seen in _fails(life, "ingest", "ProbeIngestFailed"):
        yield seen


@story("FunctionalProbeOK False ProbeRoutingFailed", "Ready False ProbeRoutingFailed")
async def what_was_reported_is_not_found(life: Life) -> AsyncIterator[str]:
    async for seen in _fails(life, "routing", "ProbeRoutingFailed"):
        yield seen


@story("FunctionalProbeOK False ProbeT2Failed", "Ready False ProbeT2Failed")
async def the_store_gives_nothing_back(life: Life) -> AsyncIterator[str]:
    async for seen in _fails(life, "t2", "ProbeT2Failed"):
        yield seen


# ------------------------------------------------------------------------------------------ second tier and engines


@story("T2Degraded True T2ZeroHitRate", "T2Degraded False T2Serving")
async def a_second_tier_that_serves_nothing_and_then_something(life: Life) -> AsyncIterator[str]:
    await life.born()
    await life.up()
    await life.taken_in(t2HitRate="0")
    yield "T2Degraded True T2ZeroHitRate"
    await life.taken_in(t2HitRate="0.5")
    yield "T2Degraded False T2Serving"


@story("Event EngineSelectorUnmatched")
async def the_selector_finds_nothing(life: Life) -> AsyncIterator[str]:
    await life.born(**SELECTED)
    yield "Event EngineSelectorUnmatched"


@story("EngineCompatibility False InjectedEngineCrashLooping", "Event InjectedEngineCrashLooping")
async def a_wired_engine_does_not_get_up(life: Life) -> AsyncIterator[str]:
    await life.born()
    await life.engine("engine")
    await life.crash_loops()
    yield "EngineCompatibility False InjectedEngineCrashLooping"
    yield "Event InjectedEngineCrashLooping"


async def _checked(life: Life, seen: str, finding: str | None, **more: Any) -> AsyncIterator[str]:
    await life.born(**SELECTED)
    await life.checked(finding, **more)
    yield seen


@story("EngineKernelsHealthy True KernelsHealthy")
async def kernels_load(life: Life) -> AsyncIterator[str]:
    async for seen in _checked(life, "EngineKernelsHealthy True KernelsHealthy", "OK"):
        yield seen


@story("EngineKernelsHealthy Unknown KernelCheckPending")
async def a_kernel_check_is_still_to_report(life: Life) -> AsyncIterator[str]:
    async for seen in _checked(life, "EngineKernelsHealthy Unknown KernelCheckPending", None):
        yield seen


@story("EngineKernelsHealthy Unknown KernelCheckError")
async def a_kernel_check_ends_without_a_finding(life: Life) -> AsyncIterator[str]:
    async for seen in _checked(life, "EngineKernelsHealthy Unknown KernelCheckError", "Killed", code=137):
        yield seen


@story("EngineKernelsHealthy False KernelLoadFailed", "Ready False EngineKernelDegraded")
async def kernels_do_not_load_where_they_must(life: Life) -> AsyncIterator[str]:
    failed = "EngineKernelsHealthy False KernelLoadFailed"
    async for seen in _checked(life, failed, "FAIL: undefined symbol", code=1, strict=True):
        yield seen
    yield "Ready False EngineKernelDegraded"


# ------------------------------------------------------------------------------------------------------------- tests


@asynccontextmanager
async def _operator(client: Client, server: PlayedServer) -> AsyncIterator[None]:
    manager = quiet_manager(operator_client(client))
    seldom = timedelta(hours=1)
    calls = CacheServer(
        snapshot_url="",
        policy_url=f"{server.url}/policy",
        probe_url=f"{server.url}/probe",
        refresh_interval=seldom,
        push_interval=seldom,
    )
    register(manager, registries=load_adapters(), server=calls)
    async with running(manager):
        yield


@pytest.mark.parametrize("name", STORIES)
async def test_a_backend_shows_what_its_life_promises(client: Client, namespace: str, name: str) -> None:
    await install_crds(client, crds())
    told = STORIES[name]
    shown = []
    async with PlayedServer(namespace, [], {}).running() as server, _operator(client, server):
        life = Life(client, namespace, server)
        async for promise in told.tell(life):
            await eventually(life.seen, lambda seen, promise=promise: promise in seen)
            shown.append(promise)
    assert tuple(shown) == told.promised


def test_the_stories_leave_no_reason_out() -> None:
    every = {value for name, value in vars(reasons).items() if name.isupper()}
    assert {promise.split()[-1] for told in STORIES.values() for promise in told.promised} == every
