"""Brings a backend's children in line with its plan, and tells what is there afterwards.

What is compared comes from the caches, or from our own last write where they are behind, so nothing is asked of the
API server while nothing differs. A child of a backend of which nothing was ever said is made unread: the write makes
it or leaves what is there alone. Before any other write the object is read live and the wanted state worked out once
more from that: an autoscaler's count must not be undone by a cache that is behind. Before the first write of a pass the
backend is read once more, too: its deletion may not have reached the cache when that of a child already has (decision
F2). What is told afterwards is what the write answered, never an older copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from inferencecache.adapters.registry import Workload
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.children import (
    AUTHORITATIVE,
    Children,
    children_for,
    endpoint_of,
    wanted_replicas,
    workload_kind,
)
from inferencecache.controllers.cachebackend.facts import Rollout, Trouble
from inferencecache.controllers.cachebackend.plan import Path, Plan
from inferencecache.kube.apply import ChildConflict, apply_child
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client, with_owner
from inferencecache.kube.drift import covers, stray
from inferencecache.kube.errors import AlreadyExists, KubeError, LeadershipLost, NotFound, TerminalError
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Deployment, HorizontalPodAutoscaler, Service, StatefulSet
from inferencecache.kube.own_writes import OwnWrites
from inferencecache.kube.owner import Staying
from inferencecache.kube.resource import Key, Kind, Manifest

CHILD_KINDS: tuple[type[Kind], ...] = (Deployment, StatefulSet, Service, HorizontalPodAutoscaler)
"""What a backend may own, in the order in which it is removed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The children after a pass.

    Attributes:
        workload: the one that is ours; None if there is none.
        rollout: how far it is.
        endpoint: of the Service that is ours; empty if there is none.
        trouble: what could not be done, for the status.
        error: the same, for the retry.
    """

    workload: Manifest | None = None
    rollout: Rollout | None = None
    endpoint: str = ""
    trouble: Trouble | None = None
    error: KubeError | None = None


def child_informers(cache: Cache) -> dict[type[Kind], Informer[Any]]:
    """The informers of children: only what this operator labelled, however much else the cluster holds."""
    return {kind: cache.informer(kind, labels={c.LABEL_MANAGED_BY: c.CHILD_MANAGED_BY}) for kind in CHILD_KINDS}


class Actor:
    """Writes and removes children."""

    def __init__(self, client: Client, informers: dict[type[Kind], Informer[Any]]) -> None:
        self._client = client
        self._known: dict[type[Kind], OwnWrites[Any]] = {
            kind: OwnWrites(informer) for kind, informer in informers.items()
        }
        self._in_line: dict[Key, tuple[str, ...]] = {}
        """The versions of backends and children that were compared and found in line."""

    async def act(self, backend: CacheBackend, plan: Plan) -> Outcome:
        """Carry out a plan.

        What fails on the managed path is told in the outcome, because the status must speak of it. Raises `KubeError`
        if something could not be removed on the other paths, and `OwnerIsLeaving`.
        """
        if plan.path is not Path.MANAGED:
            self.forget(Key.of(backend))
            for kind in CHILD_KINDS:
                await self._remove(kind, backend)
            return Outcome()
        if plan.store is None:
            trouble = Trouble(r.APPLY_FAILED, f"the cache server cannot be rendered: {plan.broken}")
            return Outcome(trouble=trouble, error=TerminalError(plan.broken))
        key, versions = Key.of(backend), self._versions(backend)
        if self._in_line.get(key) == versions:
            # Rendering and comparing is most of what a look costs, and most looks find what the last one left.
            return self._outcome(backend, plan.store, _Failures())
        outcome = await self._manage(backend, plan.store)
        if outcome.error is None and self._versions(backend) == versions:
            self._in_line[key] = versions
        return outcome

    def forget(self, key: Key) -> None:
        """The backend is gone, or runs no store any more."""
        self._in_line.pop(key, None)

    def _versions(self, backend: CacheBackend) -> tuple[str, ...]:
        key = Key.of(backend)
        children = (self._known[kind].get(key) for kind in CHILD_KINDS)
        seen = (child.metadata.resource_version if child is not None else "" for child in children)
        return backend.metadata.uid, backend.metadata.resource_version, *seen

    # ------------------------------------------------------------------------------------------------------ managing

    async def _manage(self, backend: CacheBackend, store: Workload) -> Outcome:
        kind = workload_kind(backend)
        failures, stays = _Failures(), Staying(self._client, backend)
        with failures.of(Deployment if kind is StatefulSet else StatefulSet, backend):
            await self._remove(Deployment if kind is StatefulSet else StatefulSet, backend)
        workload = service = None
        if not failures:
            with failures.of(kind, backend):
                workload = await self._ensure(kind, backend, store, lambda children: children.workload, stays)
        if failures:
            # A Service or an autoscaler must not point at a workload that may be somebody else's.
            return self._outcome(backend, store, failures)
        with failures.of(Service, backend):
            service = await self._ensure(Service, backend, store, lambda children: children.service, stays)
        with failures.of(HorizontalPodAutoscaler, backend):
            await self._autoscale(backend, store, stays)
        return _outcome(backend, store, failures, workload, service)

    def _outcome(self, backend: CacheBackend, store: Workload, failures: _Failures) -> Outcome:
        """What there is without a look at how it should be."""
        workload, service = self._owned(workload_kind(backend), backend), self._owned(Service, backend)
        return _outcome(backend, store, failures, workload, service)

    async def _autoscale(self, backend: CacheBackend, store: Workload, stays: Staying) -> None:
        if children_for(backend, store, None).autoscaler is None:
            await self._remove(HorizontalPodAutoscaler, backend)
        else:
            await self._ensure(HorizontalPodAutoscaler, backend, store, lambda children: children.autoscaler, stays)

    async def _ensure(
        self,
        kind: type[Kind],
        backend: CacheBackend,
        store: Workload,
        pick: Callable[[Children], Manifest | None],
        stays: Staying,
    ) -> Manifest:
        """The child as it is once it is as wanted."""

        def wanted(live: Manifest | None) -> Manifest:
            replicas = live["spec"].get("replicas", 1) if live is not None else None
            child = pick(children_for(backend, store, replicas))
            if child is None:
                raise ValueError(f"{kind.resource.kind} {Key.of(backend)} is not wanted")
            return child

        paths = AUTHORITATIVE[kind.resource.kind]
        cached = self._owned(kind, backend)
        if cached is not None:
            desired = wanted(cached)
            if covers(desired, cached) and not stray(desired, cached, paths):
                return cached
        await stays.check()
        if cached is None and not backend.status.conditions:
            with suppress(AlreadyExists):
                return self._wrote(kind, await self._client.apply_new(with_owner(wanted(None), backend)))
        live = await self._live(kind, Key.of(backend))
        if live is None:
            return self._wrote(kind, await self._client.apply_new(with_owner(wanted(None), backend)))
        written = await apply_child(self._client, wanted(live), live, backend, paths)
        return live if written is None else self._wrote(kind, written)

    # ------------------------------------------------------------------------------------------------------ removing

    async def _remove(self, kind: type[Kind], backend: CacheBackend) -> None:
        """Delete the child if it is ours. After a change of spec the cache may be behind, and live is asked.

        A backend of the first generation never wanted anything else, so there is nothing that could be left.
        """
        key = Key.of(backend)
        child = self._owned(kind, backend)
        generation = backend.metadata.generation
        if child is None and generation > 1 and backend.status.observed_generation != generation:
            child = await self._live(kind, key)
        if child is None or not _is_ours(child, backend) or child["metadata"].get("deletionTimestamp"):
            return
        with suppress(NotFound):
            await self._client.delete(kind.resource, key, uid=child["metadata"]["uid"])

    async def _live(self, kind: type[Kind], key: Key) -> Manifest | None:
        try:
            return await self._client.get_manifest(kind.resource, key)
        except NotFound:
            return None

    def _wrote(self, kind: type[Kind], child: Manifest) -> Manifest:
        self._known[kind].answered(msgspec.convert(child, kind))
        return child

    def _owned(self, kind: type[Kind], backend: CacheBackend) -> Manifest | None:
        """The child as the cache has it, or as we wrote it since, if it is ours."""
        found = self._known[kind].get(Key.of(backend))
        manifest: Manifest | None = msgspec.to_builtins(found) if found is not None else None
        return manifest if manifest is not None and _is_ours(manifest, backend) else None


class _Failures:
    """Remembers the first thing that went wrong, and lets the rest go on."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self.error: KubeError | None = None

    def __bool__(self) -> bool:
        return self.error is not None

    def of(self, kind: type[Kind], backend: CacheBackend) -> _Guard:
        """A context in which a failure is about this child."""
        return _Guard(self, f"{kind.resource.kind} {Key.of(backend)}")

    def add(self, child: str, error: KubeError) -> None:
        if self.error is None:
            conflict = isinstance(error, ChildConflict)
            text = str(error) if conflict else f"{child} could not be brought in line: {error}"
            self.trouble = Trouble(r.CHILD_CONFLICT if conflict else r.APPLY_FAILED, text)
            self.error = error


class _Guard:
    def __init__(self, failures: _Failures, child: str) -> None:
        self._failures = failures
        self._child = child

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, KubeError) and not isinstance(error, LeadershipLost):
            self._failures.add(self._child, error)
            return True
        return False


def _outcome(
    backend: CacheBackend, store: Workload, failures: _Failures, workload: Manifest | None, service: Manifest | None
) -> Outcome:
    return Outcome(
        workload=workload,
        rollout=_rollout(backend, store, workload),
        endpoint=endpoint_of(backend, service) if service else "",
        trouble=failures.trouble,
        error=failures.error,
    )


def _is_ours(child: Manifest, backend: CacheBackend) -> bool:
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == backend.metadata.uid for owner in owners)


def _rollout(backend: CacheBackend, store: Workload, workload: Manifest | None) -> Rollout | None:
    if workload is None:
        return None
    status = workload.get("status") or {}
    live = workload["spec"].get("replicas", 1)
    return Rollout(
        wanted=wanted_replicas(backend, store, live),
        updated=status.get("updatedReplicas", 0),
        available=status.get("availableReplicas", 0),
        fresh=status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0),
    )
