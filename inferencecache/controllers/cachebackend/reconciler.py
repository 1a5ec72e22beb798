"""One pass over a CacheBackend: act, observe, decide, write the status once, and only then tell (spec 05 §2.1).

A backend that is being deleted is left alone: its children go with it (decision F2). Trouble with a child does not
freeze the status; it is published, and then the pass fails so that it is tried again with back-off (decision F16).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.act import Actor, BackendIsLeaving
from inferencecache.controllers.cachebackend.decide import Facts, decide, sooner
from inferencecache.controllers.cachebackend.engines import match
from inferencecache.controllers.cachebackend.narrate import narrate
from inferencecache.controllers.cachebackend.observe import Freshest, observe
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.controllers.cachebackend.status import next_status, patch_between
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import NotFound
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.resource import Key


class CacheBackendReconciler:
    """Reconciles CacheBackends. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        actor: Actor,
        recorder: EventRecorder,
        runtimes: RuntimeRegistry,
        storage: StorageRegistry,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._actor = actor
        self._recorder = recorder
        self._runtimes = runtimes
        self._storage = storage
        self._now = now
        self._freshest = Freshest()

    async def reconcile(self, key: Key) -> Result:
        """Bring one backend in line. Raises what kept a child from being so, after saying it in the status."""
        backend = self._freshest.of(key, self._cache.get(CacheBackend, key))
        if backend is None or backend.metadata.deletion_timestamp is not None:
            return Result()
        plan = plan_for(backend, self._runtimes, self._storage)
        try:
            outcome = await self._actor.act(backend, plan)
        except BackendIsLeaving:
            return Result()
        siblings = self._cache.list(CacheBackend, key.namespace)
        seen = await observe(self._client, backend, siblings, self._now())
        facts = Facts(backend, plan.path, seen.now, outcome.rollout, outcome.trouble)
        verdict, matched = decide(facts), match(seen)
        before = backend.status.manifest()
        after = next_status(facts, verdict, matched, service_endpoint=outcome.endpoint)
        if await self._publish(key, backend, patch_between(before, after)):
            for told in narrate(before, after, newly_unmatched=matched.newly_unmatched):
                self._recorder.event(backend, told.type, told.reason, told.note)
        if outcome.error is not None:
            raise outcome.error
        return Result(sooner(verdict.look_again, matched.look_again))

    async def _publish(self, key: Key, backend: CacheBackend, patch: dict[str, object]) -> bool:
        """Write the difference, if there is one; true if something was written."""
        if not patch:
            return False
        # With the uid, a namesake that was created meanwhile cannot get this backend's status.
        body = {"metadata": {"uid": backend.metadata.uid}, "status": patch}
        try:
            written = await self._client.patch(CacheBackend.resource, key, body, subresource="status")
        except NotFound:
            return False
        self._freshest.wrote(key, CacheBackend.decode(written))
        return True
