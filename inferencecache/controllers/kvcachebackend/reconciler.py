"""One pass over a KVCacheBackend: act, observe, decide, write the status once; every 15 seconds (spec 10 §3).

A store whose content moves changes no object that could be watched, so the clock wakes the next pass. Own status writes
do not: they are what a pass ends with, and their figures move all the time.

A backend that is deleted while pools use it is kept, and looked at, but nothing is written for it any more (decision
F2). Once the last claim is gone its objects are removed, and it is let go when they are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inferencecache.api.kvcache import FINALIZER, listed
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.stored import StoredPool
from inferencecache.controllers.kvcachebackend import reasons as r
from inferencecache.controllers.kvcachebackend.act import Actor
from inferencecache.controllers.kvcachebackend.observe import endpoints, observe
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.reading import Masters
from inferencecache.controllers.kvcachebackend.status import leaving, observed
from inferencecache.controllers.kvcachebackend.usage import without_dangling
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import NotFound
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.finalizers import add_finalizer, has_finalizer, is_being_deleted, remove_finalizer
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.owner import OwnerIsLeaving
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status

OBSERVE_AGAIN: Final = timedelta(seconds=15)
BY_BACKEND: Final = "backend"
"""Index of Pods: the name of the backend they run."""


class KVCacheBackendReconciler:
    """Reconciles KVCacheBackends. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        backends: Informer[KVCacheBackend],
        pools: Informer[StoredPool],
        pods: Informer[StorePod],
        actor: Actor,
        masters: Masters,
        recorder: EventRecorder,
        namespace: str,
        interval: timedelta = OBSERVE_AGAIN,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._backends = backends
        self._pools = pools
        self._pods = pods
        self._actor = actor
        self._masters = masters
        self._recorder = recorder
        self._namespace = namespace
        self._interval = interval
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        """Bring one backend in line. Raises what kept an object from being so, after saying it in the status."""
        backend = self._backends.get(key)
        if backend is None:
            return Result()
        try:
            return await self._pass(backend)
        except (NotFound, OwnerIsLeaving):
            return Result()  # the event of that is on its way

    async def _pass(self, backend: KVCacheBackend) -> Result:
        backend = await without_dangling(self._client, backend, self._has_pool)
        deleted = is_being_deleted(backend)
        if deleted and not has_finalizer(backend, FINALIZER):
            return Result()
        if deleted and not backend.status.used_by:
            return await self._leave(backend)
        await add_finalizer(self._client, backend, FINALIZER)
        pods = self._pods.by_index(BY_BACKEND, backend.metadata.name)
        outcome = self._actor.look(backend) if deleted else await self._actor.act(backend, pods)
        published = endpoints(backend, outcome, self._namespace)
        facts = await observe(backend, outcome, published, pods, self._masters)
        now = self._now()

        def status(live: KVCacheBackend) -> dict[str, Any] | None:
            return observed(live, facts, published, now)

        await write_status(self._client, backend, status)
        if outcome.error is not None:
            raise outcome.error
        return Result(self._interval)

    async def _leave(self, backend: KVCacheBackend) -> Result:
        now = self._now()
        waiting, given_up = await self._actor.remove(backend, now)

        def status(live: KVCacheBackend) -> dict[str, Any] | None:
            return leaving(live, listed(waiting), now)

        if waiting:
            await write_status(self._client, backend, status)
            return Result(self._interval)
        if given_up:
            note = f"no longer waiting for {listed(given_up)}; look at the nodes of their Pods"
            self._recorder.event(backend, "Warning", r.TEARDOWN_INCOMPLETE, note)
        await remove_finalizer(self._client, backend, FINALIZER)
        return Result()

    def _has_pool(self, name: str) -> bool:
        return self._pools.get(Key("", name)) is not None


def matters(change: Change[KVCacheBackend]) -> bool:
    """Whether there is something to do: a new spec, a deletion, another user. Our own writes are nothing new."""
    old, new = change.old, change.new
    return (
        old is None
        or new is None
        or old.metadata.generation != new.metadata.generation
        or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or old.status.used_by != new.status.used_by
    )
