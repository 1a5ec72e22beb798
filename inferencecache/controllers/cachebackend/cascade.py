"""Rolls the engines of a backend once after its cache server was replaced (spec 05 §4.3, §4.4).

What a pass sees comes from informers. Before engines are touched everything is read live and judged once more: an
informer that lags must never roll a fleet. An engine's Deployment is rolled by an annotation of its Pod template that
names the new instances, so rolling it again for the same instances changes nothing: a process that dies half-way, or
right before it publishes the new baseline, leaves work to its successor and no second roll.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.children import selector_labels
from inferencecache.controllers.cachebackend.instances import Instances, Step, instances_of, judge
from inferencecache.controllers.cachebackend.metrics import count_cascade
from inferencecache.controllers.cachebackend.observe import Surroundings
from inferencecache.controllers.pods import is_stamped, store_pods
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, LeadershipLost, NotFound
from inferencecache.kube.kinds import Deployment, OwnerReference, Pod, ReplicaSet, StatefulSet, controller_of
from inferencecache.kube.resource import Key, Manifest

TRIGGER: Final = f"{c.GROUP}/cache-server-restart-trigger"
WINDOW: Final = timedelta(seconds=30)
"""Between two cascades of a backend, and before a failed one is tried again."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What `status.observedServerInstance` shall be, None for no change, and when to look again."""

    instance: str | None = None
    look_again: timedelta | None = None


@dataclass(slots=True)
class _State:
    uid: str
    last: float = float("-inf")
    done: str = ""


class Cascade:
    """Judges the instances of each managed backend and rolls its engines. `clock` gives monotonic seconds."""

    def __init__(
        self, client: Client, surroundings: Surroundings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._around = surroundings
        self._clock = clock
        self._states: dict[Key, _State] = {}

    def forget(self, key: Key) -> None:
        """The backend is gone, or runs no server any more."""
        self._states.pop(key, None)

    async def step(self, backend: CacheBackend, workload: Manifest | None) -> Baseline:
        """Compare the instances with the published baseline and do what follows.

        Trouble is logged and tried again a window later; it never fails a pass. Raises `LeadershipLost`.
        """
        if workload is None:
            return Baseline()
        try:
            return await self._step(backend, workload)
        except LeadershipLost:
            raise
        except KubeError as error:
            _log.warning("engines not rolled yet", error=str(error))
            return Baseline(look_again=WINDOW)

    async def _step(self, backend: CacheBackend, workload: Manifest) -> Baseline:
        before = backend.status.observed_server_instance or ""
        seen = await self._instances(backend, workload, store_pods(self._around.pods, backend), live=False)
        match judge(before, seen):
            case Step.KEEP:
                return Baseline()
            case Step.BASELINE:
                return Baseline(seen.identifier)
        key = Key.of(backend)
        state = self._states.get(key)
        if state is None or state.uid != backend.metadata.uid:
            state = self._states[key] = _State(backend.metadata.uid)
        if state.done == seen.identifier:  # rolled already; only the baseline has not been written yet
            return Baseline(seen.identifier)
        left = state.last + WINDOW.total_seconds() - self._clock()
        if left > 0:
            return Baseline(look_again=timedelta(seconds=left))
        live = await self._live(backend, workload)
        if live is None or judge(before, live) is not Step.CASCADE:
            return Baseline(look_again=WINDOW)
        state.last = self._clock()
        rolled = await self._roll(backend, live.identifier)
        state.done = live.identifier
        count_cascade(key)
        _log.info(
            "cache server was replaced; its engines are rolled", before=before, now=live.identifier, rolled=rolled
        )
        return Baseline(live.identifier)

    # ------------------------------------------------------------------------------------------------------- looking

    async def _live(self, backend: CacheBackend, workload: Manifest) -> Instances | None:
        """The instances as the API server has them; None if the workload is not what it was."""
        resource = StatefulSet.resource if backend.stateful else Deployment.resource
        try:
            now = await self._client.get_manifest(resource, Key.of(backend))
        except NotFound:
            return None
        if now["metadata"]["uid"] != workload["metadata"]["uid"]:
            return None
        pods = await self._client.list(Pod, namespace=backend.metadata.namespace, labels=selector_labels(backend))
        return await self._instances(backend, now, pods, live=True)

    async def _instances(self, backend: CacheBackend, workload: Manifest, pods: list[Pod], *, live: bool) -> Instances:
        owners = {owner.uid: owner for pod in pods if (owner := controller_of(pod)) is not None}
        uid = workload["metadata"]["uid"]
        owned = [
            owner.uid
            for owner in owners.values()
            if owner.kind == ReplicaSet.resource.kind
            and (above := await self._above(backend.metadata.namespace, owner, live=live)) is not None
            and above.uid == uid
        ]
        return instances_of(workload, pods, owned)

    async def _above(self, namespace: str, owner: OwnerReference, *, live: bool) -> OwnerReference | None:
        """Who controls this very ReplicaSet. One that the informer does not have is read live."""
        key = Key(namespace, owner.name)
        found = None if live else self._around.replica_sets.get(key)
        if found is None or found.metadata.uid != owner.uid:
            try:
                found = await self._client.get(ReplicaSet, key)
            except NotFound:
                return None
        return controller_of(found) if found.metadata.uid == owner.uid else None

    # ------------------------------------------------------------------------------------------------------- rolling

    async def _roll(self, backend: CacheBackend, identifier: str) -> list[str]:
        """Mark the Deployments of the engines, in the order of their names; those that were marked now.

        Engines that something else than a Deployment runs are left to their owner.
        """
        namespace = backend.metadata.namespace
        pods = await self._client.list(Pod, namespace=namespace)
        owners = {
            owner.uid: owner for pod in pods if is_stamped(pod, backend) and (owner := controller_of(pod)) is not None
        }
        targets: dict[str, str] = {}
        for owner in owners.values():
            if owner.kind == ReplicaSet.resource.kind:
                above = await self._above(namespace, owner, live=True)
                if above is not None and above.kind == Deployment.resource.kind:
                    targets.setdefault(above.name, above.uid)
        # The store's own Deployment must not roll itself for ever.
        targets.pop(backend.metadata.name, None)
        return [
            name for name, uid in sorted(targets.items()) if await self._mark(Key(namespace, name), uid, identifier)
        ]

    async def _mark(self, key: Key, uid: str, identifier: str) -> bool:
        try:
            live = await self._client.get_manifest(Deployment.resource, key)
        except NotFound:
            return False
        metadata = live["metadata"]
        marks = live["spec"]["template"].get("metadata", {}).get("annotations") or {}
        if metadata["uid"] != uid or marks.get(TRIGGER) == identifier:
            return False
        version = {"uid": uid, "resourceVersion": metadata["resourceVersion"]}
        patch = {
            "metadata": version,
            "spec": {"template": {"metadata": {"annotations": {TRIGGER: identifier}}}},
        }
        await self._client.patch(Deployment.resource, key, patch)
        return True
