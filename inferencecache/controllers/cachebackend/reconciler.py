"""One pass over a CacheBackend: act, observe, decide, write the status once, and only then tell (spec 05 §2.1).

A backend that is being deleted is left alone: its children go with it (decision F2). Only its claim on a KV cache pool
is on an object of somebody else, and is taken off. Trouble with a child does not
freeze the status; it is published, and then the pass fails so that it is tried again with back-off (decision F16).

Before a backend is called ready for the first time its functional probe must have had its say: until there is an
outcome, or a deadline has passed without one, the pass publishes nothing and the outcome wakes the next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend import metrics
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.act import Actor, Outcome
from inferencecache.controllers.cachebackend.cascade import Baseline, Cascade
from inferencecache.controllers.cachebackend.decide import decide
from inferencecache.controllers.cachebackend.engines import match
from inferencecache.controllers.cachebackend.facts import Facts, Trouble, condition, sooner
from inferencecache.controllers.cachebackend.narrate import narrate
from inferencecache.controllers.cachebackend.observe import Surroundings
from inferencecache.controllers.cachebackend.plan import Path, Plan, plan_for
from inferencecache.controllers.cachebackend.pool import offer
from inferencecache.controllers.cachebackend.pool_claims import Pools
from inferencecache.controllers.cachebackend.probing import WINDOW, Prober
from inferencecache.controllers.cachebackend.status import next_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import Conflict, KubeError, LeadershipLost, NotFound
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.kinds import Pod
from inferencecache.kube.own_writes import OwnWrites
from inferencecache.kube.owner import OwnerIsLeaving
from inferencecache.kube.resource import Key
from inferencecache.kube.status import status_patch

SOON: Final = timedelta(seconds=1)
"""After a status that was decided on a version that is not the present one; what changed wakes a pass as well."""


class CacheBackendReconciler:
    """Reconciles CacheBackends. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        surroundings: Surroundings,
        actor: Actor,
        cascade: Cascade,
        prober: Prober,
        pools: Pools,
        recorder: EventRecorder,
        runtimes: RuntimeRegistry,
        storage: StorageRegistry,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._around = surroundings
        self._actor = actor
        self._cascade = cascade
        self._prober = prober
        self._pools = pools
        self._recorder = recorder
        self._runtimes = runtimes
        self._storage = storage
        self._now = now
        # Else the pass that our own status write wakes could stamp conditions anew, and tell the same Event twice.
        self._written = OwnWrites(surroundings.backends)

    async def reconcile(self, key: Key) -> Result:
        """Bring one backend in line. Raises what kept a child from being so, after saying it in the status."""
        # We make no backends, so one that is not in the cache is gone.
        backend = self._written.get(key) if self._around.backends.get(key) is not None else None
        if backend is None or backend.metadata.deletion_timestamp is not None:
            self._forget(key)
            if backend is not None:
                await self._pools.let_go(backend)
            return Result()
        plan = plan_for(backend, self._runtimes, self._storage)
        try:
            outcome = await self._claimed(backend, plan, await self._actor.act(backend, plan))
        except OwnerIsLeaving:
            return Result()
        seen = self._around.observe(backend, self._now())
        facts = self._facts(plan, outcome, backend, seen.injected, seen.now)
        verdict, matched = decide(facts), match(seen)
        next_call = self._prober.ask(backend) if verdict.probe else None
        if verdict.probe and next_call is None and _never_probed(facts):
            return Result(WINDOW)
        baseline = await self._compared(backend, plan, outcome)
        before = backend.status.manifest()
        after = next_status(
            facts, verdict, matched, service_endpoint=outcome.endpoint, server_instance=baseline.instance
        )
        published = await self._publish(key, backend, status_patch(before, after))
        if published:
            for told in narrate(before, after, newly_unmatched=matched.newly_unmatched):
                self._recorder.event(backend, told.type, told.reason, told.note)
        if outcome.error is not None:
            raise outcome.error
        if published is None:
            return Result(SOON)
        return Result(sooner(verdict.look_again, matched.look_again, baseline.look_again, next_call))

    async def _claimed(self, backend: CacheBackend, plan: Plan, outcome: Outcome) -> Outcome:
        """The outcome after the claim on a pool's Binding was made, or given up. Raises `OwnerIsLeaving`."""
        if plan.path is not Path.POOL:
            await self._pools.let_go(backend)
            return outcome
        try:
            await self._pools.hold(backend)
        except LeadershipLost:
            raise
        except KubeError as error:
            told = f"the claim on KVCachePoolBinding {backend.pool_binding} could not be written: {error}"
            return replace(outcome, trouble=Trouble(r.APPLY_FAILED, told), error=error)
        return outcome

    def _facts(
        self, plan: Plan, outcome: Outcome, backend: CacheBackend, injected: tuple[Pod, ...], now: datetime
    ) -> Facts:
        return Facts(
            backend,
            plan.path,
            now,
            outcome.rollout,
            outcome.trouble,
            pool=offer(self._pools.chain(backend)) if plan.path is Path.POOL else None,
            injected=injected,
            engine_container=plan.engine_container,
            probing=self._prober.on,
            probed=self._prober.outcome(backend),
        )

    async def _compared(self, backend: CacheBackend, plan: Plan, outcome: Outcome) -> Baseline:
        """The step of the restart cascade; off the managed path all that was remembered is dropped."""
        if plan.path is Path.MANAGED:
            return await self._cascade.step(backend, outcome.workload)
        self._cascade.forget(Key.of(backend))
        self._prober.forget(Key.of(backend))
        return Baseline()

    def _forget(self, key: Key) -> None:
        self._actor.forget(key)
        self._cascade.forget(key)
        self._prober.forget(key)
        metrics.forget(key)

    async def _publish(self, key: Key, backend: CacheBackend, patch: dict[str, object]) -> bool | None:
        """Write the difference, if there is one; whether something was written, None if the backend has moved on.

        A list is replaced whole. Decided on what is not the present status, it would take back what was said since.
        """
        if not patch:
            return False
        version = {"uid": backend.metadata.uid, "resourceVersion": backend.metadata.resource_version}
        try:
            written = await self._client.patch(
                CacheBackend.resource, key, {"metadata": version, "status": patch}, subresource="status"
            )
        except NotFound:
            return False
        except Conflict:
            # Else the next pass would run into the same for as long as a dead watch goes unnoticed.
            with suppress(NotFound):
                self._written.answered(await self._client.get(CacheBackend, key))
            return None
        self._written.answered(CacheBackend.decode(written))
        return True


def _never_probed(facts: Facts) -> bool:
    return facts.probed is None and condition(facts.backend, c.FUNCTIONAL_PROBE_OK) is None
