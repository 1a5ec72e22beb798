"""Brings the objects of a backend in line with its spec, and takes them away again.

What is compared comes from the caches, so a pass over a steady backend asks nothing of the API server. Each object
stands for itself: one that cannot be written is told, and the others are written all the same. Before the first write
of a pass the backend is read live, as its deletion may not have reached the cache yet (decision F2).

On leaving, workloads are deleted in the foreground: they are gone when their Pods are, and the backend is only let go
after that, so that no leader goes on serving at an address that nobody accounts for. Each gets the time that its Pods
have to end, and a margin; a node that does not answer does not hold up the backend for ever. The owner reference is the
safety net below all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend import reasons as r
from inferencecache.controllers.kvcachebackend.decide import Trouble
from inferencecache.controllers.kvcachebackend.objects import Settings, leader_name
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.render import AUTHORITATIVE, render
from inferencecache.controllers.kvcachebackend.replacing import fingerprint_of, next_to_replace
from inferencecache.kube.apply import ChildConflict, apply_child
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client, with_owner
from inferencecache.kube.drift import abandoned, covers, stray
from inferencecache.kube.errors import KubeError, LeadershipLost, NotFound
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import DaemonSet, Deployment, Role, RoleBinding, Service, ServiceAccount, controller_of
from inferencecache.kube.owner import Staying
from inferencecache.kube.resource import Key, Kind, Manifest

CHILD_KINDS: Final[tuple[type[Kind], ...]] = (DaemonSet, Deployment, Service, RoleBinding, Role, ServiceAccount)
"""What a backend may own, in the order in which it is removed."""

MARKS: Final = {k.LABEL_TYPE: k.TYPE_BACKENDS}
END_MARGIN: Final = timedelta(minutes=2)
"""How much longer than its Pods may take a workload is waited for."""

_WORKLOADS: Final[tuple[type[Kind], ...]] = (DaemonSet, Deployment)
_DEFAULT_GRACE: Final = 30

Informers = dict[type[Kind], Informer[Any]]


class ChildrenNotInLine(KubeError):
    """Some object of a backend is not as wanted. What is observed of the backend is due again soon in any case."""

    retry_within = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The objects of a backend after a pass.

    Attributes:
        children: those that are the backend's, by kind and name.
        trouble: the first that could not be brought in line, for the status.
        error: the same, for the retry.
    """

    children: dict[tuple[str, str], Manifest]
    trouble: Trouble | None = None
    error: ChildrenNotInLine | None = None

    def find(self, kind: type[Kind], name: str) -> Manifest | None:
        """An object of the backend, or None."""
        return self.children.get((kind.resource.kind, name))


def child_informers(cache: Cache, namespace: str) -> Informers:
    """The informers of all that was rendered for backends."""
    return {kind: cache.informer(kind, namespace=namespace, labels=MARKS) for kind in CHILD_KINDS}


class Actor:
    """Writes and removes the objects of backends."""

    def __init__(self, client: Client, informers: Informers, settings: Settings) -> None:
        self._client = client
        self._informers = informers
        self._settings = settings

    def look(self, backend: KVCacheBackend) -> Outcome:
        """The objects as the caches have them."""
        return Outcome(self._owned(backend))

    async def act(self, backend: KVCacheBackend, pods: Collection[StorePod]) -> Outcome:
        """Bring the objects in line, and members with them. Raises `OwnerIsLeaving`."""
        before = self._owned(backend)
        wanted = {_named(one): one for one in self._rendered(backend, before)}
        children, stays, failures = {}, Staying(self._client, backend), _Failures()
        for named, desired in wanted.items():
            try:
                children[named] = await self._ensure(backend, desired, before.get(named), stays)
            except KubeError as error:
                failures.add(named, error)
                if named in before:
                    children[named] = before[named]
        for kind in CHILD_KINDS:
            for named, surplus in before.items():
                if named not in wanted and named[0] == kind.resource.kind:
                    try:
                        await self._delete(kind, surplus, stays)
                    except KubeError as error:
                        failures.add(named, error)
        for named, one in children.items():
            if named[0] == DaemonSet.resource.kind:
                try:
                    await self._replace(one, pods, stays)
                except KubeError as error:
                    failures.add(named, error)
        return Outcome(children, failures.trouble, failures.error)

    async def remove(self, backend: KVCacheBackend, now: datetime) -> tuple[list[str], list[str]]:
        """Remove everything; what is still going, and what has been given up on, by kind and name.

        The caches say when to ask; that nothing is left is only believed of the API server itself.
        """
        left = self._owned(backend) or await self._owned_live(backend)
        waiting: list[str] = []
        given_up: list[str] = []
        for kind in CHILD_KINDS:
            for (kind_name, name), child in left.items():
                if kind_name != kind.resource.kind:
                    continue
                await self._delete(kind, child, None)
                late = _is_overdue(child, now)
                (given_up if late else waiting).append(f"{kind_name} {self._settings.namespace}/{name}")
        return waiting, given_up

    def _rendered(self, backend: KVCacheBackend, before: dict[tuple[str, str], Manifest]) -> list[Manifest]:
        leader = before.get((Deployment.resource.kind, leader_name(backend.metadata.name)))
        return render(backend, self._settings, leader)

    async def _ensure(
        self, backend: KVCacheBackend, desired: Manifest, cached: Manifest | None, stays: Staying
    ) -> Manifest:
        """The object as it is once it is as wanted."""
        paths = AUTHORITATIVE.get(desired["kind"], ())
        if cached is not None and not self._differs(backend, desired, cached, paths):
            return cached
        await stays.check()
        written = await apply_child(self._client, desired, None, backend, paths, blocks_deletion=False)
        if written is not None:
            return written
        resource, key = await self._client.locate(desired)
        return await self._client.get_manifest(resource, key)

    def _differs(self, backend: KVCacheBackend, desired: Manifest, cached: Manifest, paths: Iterable[Any]) -> bool:
        owned = with_owner(desired, backend, blocks_deletion=False)
        return (
            not covers(owned, cached)
            or bool(stray(owned, cached, paths))
            or abandoned(owned, cached, self._client.field_manager)
        )

    async def _delete(self, kind: type[Kind], child: Manifest, stays: Staying | None) -> None:
        metadata = child["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        if stays is not None:
            await stays.check()
        key = Key(metadata["namespace"], metadata["name"])
        propagation: Literal["Foreground", "Background"] = "Foreground" if kind in _WORKLOADS else "Background"
        with suppress(NotFound):
            await self._client.delete(kind.resource, key, uid=metadata["uid"], propagation=propagation)

    async def _replace(self, daemon_set: Manifest, pods: Iterable[StorePod], stays: Staying) -> None:
        metadata = daemon_set["metadata"]
        members = [pod for pod in pods if pod.workload == metadata["uid"]]
        nodes = (daemon_set.get("status") or {}).get("desiredNumberScheduled", 0)
        pod = next_to_replace(members, fingerprint_of(daemon_set), nodes)
        if pod is not None:
            await stays.check()
            with suppress(NotFound):
                await self._client.delete(StorePod.resource, Key.of(pod), uid=pod.metadata.uid)

    def _owned(self, backend: KVCacheBackend) -> dict[tuple[str, str], Manifest]:
        return _of(backend, ((kind, self._informers[kind].list(self._settings.namespace)) for kind in CHILD_KINDS))

    async def _owned_live(self, backend: KVCacheBackend) -> dict[tuple[str, str], Manifest]:
        namespace = self._settings.namespace
        found = [(kind, await self._client.list(kind, namespace=namespace, labels=MARKS)) for kind in CHILD_KINDS]
        return _of(backend, found)


class _Failures:
    """Remembers the first thing that went wrong."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self.error: ChildrenNotInLine | None = None

    def add(self, named: tuple[str, str], error: KubeError) -> None:
        if isinstance(error, LeadershipLost):
            raise error
        if self.error is None:
            conflict = isinstance(error, ChildConflict)
            text = str(error) if conflict else f"{named[0]} {named[1]} could not be brought in line: {error}"
            self.trouble = Trouble(r.CHILD_CONFLICT if conflict else r.APPLY_FAILED, text)
            self.error = ChildrenNotInLine(text)


def _of(backend: KVCacheBackend, found: Iterable[tuple[type[Kind], Iterable[Kind]]]) -> dict[tuple[str, str], Manifest]:
    """Those that the backend controls, as manifests."""
    return {
        (kind.resource.kind, one.metadata.name): _manifest(one)
        for kind, objects in found
        for one in objects
        if (owner := controller_of(one)) is not None and owner.uid == backend.metadata.uid
    }


def _manifest(one: Kind) -> Manifest:
    # Through JSON, as only that makes lists of tuples, which are no lists to who compares.
    found: Manifest = msgspec.json.decode(msgspec.json.encode(one))
    return found


def _named(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _is_overdue(child: Manifest, now: datetime) -> bool:
    since = child["metadata"].get("deletionTimestamp")
    if not since:
        return False
    template = (child.get("spec") or {}).get("template") or {}
    grace = (template.get("spec") or {}).get("terminationGracePeriodSeconds") or _DEFAULT_GRACE
    begun = datetime.fromisoformat(since).astimezone(UTC)
    return now > begun + timedelta(seconds=grace) + END_MARGIN
