"""One pass over a pool: what its Bindings ask for goes to the master, what the master says goes to their statuses.

The order of a serving pass is what makes it safe to be killed anywhere (spec 10 §5):

1. The finalizer goes on every live pool of the master, and they all enter their backend's users. From here on none of
   them, nor the backend, can vanish with something of theirs left behind.
2. The finalizer goes on every live Binding of these pools. From here on no Binding whose quota is about to be written
   can vanish without a pass that takes the quota back.
3. The policy document lists what the ledger is about to hold. From here on a master that restarts knows it.
4. The ledger is written. What is not to be there any more leaves it, and after that the document.
5. The statuses tell what was found, and Bindings of which nothing is left are let go.

A pass that dies before a step has promised less than it holds, never more; the next one starts at the first step, finds
what is done, and writes only the rest. A settled world is written nothing at all.

What goes wrong at the master becomes a condition and is no error. What goes wrong at the API server is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool import pool_status
from inferencecache.controllers.kvcachepool.act import Writer, users_of
from inferencecache.controllers.kvcachepool.binding_status import (
    Release,
    Sight,
    binding_status,
    held_status,
    release,
)
from inferencecache.controllers.kvcachepool.claims import Claim
from inferencecache.controllers.kvcachepool.masters import Master, MasterBusy, Masters
from inferencecache.controllers.kvcachepool.observe import Surroundings
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles, PolicyRefused
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.kvcachepool.teardown import Debtor, Held, Teardown
from inferencecache.controllers.kvcachepool.visit import MovedOn, Visitor
from inferencecache.controllers.mooncake.ledger import DECLARED_OFF, Outcome
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import Conflict, KubeError, NotFound
from inferencecache.kube.finalizers import has_finalizer, is_being_deleted
from inferencecache.kube.resource import Key

REOBSERVED: Final = timedelta(seconds=30)
"""After a serving pass, after one that could not resolve its backend, and while a deletion is held (spec 10 §3)."""
SOON: Final = timedelta(seconds=1)
"""After a conflict, and where a pass left something to the next (spec 10 §3)."""


class KVCachePoolReconciler:
    """Reconciles KVCachePools and their Bindings. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        surroundings: Surroundings,
        policies: PolicyFiles,
        masters: Masters,
        reobserved: timedelta = REOBSERVED,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._around = surroundings
        self._before_write = client.check_write
        self._policies = policies
        self._masters = masters
        self._writer = Writer(client)
        self._visitor = Visitor(client, policies)
        self._reobserved = reobserved
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        """Serve a pool, or take it down. Raises what the API server refused."""
        pool = self._around.pools.get(key)
        try:
            if pool is None:
                return await self._absent(key)
            if is_being_deleted(pool):
                return await self._take_down(pool)
            return await self._serve(pool)
        except MasterBusy:
            return Result(self._reobserved)  # at the latest
        except (MovedOn, Conflict):
            return Result(SOON)

    async def _absent(self, key: Key) -> Result:
        """Let go of Bindings that outlived their pool; live ones wait for it, and say so (spec 10 §5 step 1)."""
        left = self._around.bindings_of(key.name)
        if not left:
            return Result()
        if not await self._around.pool_is_gone(key):
            return Result(SOON)
        kept = await self._writer.release_all(one for one in left if is_being_deleted(one))
        sight = Sight(rivals=None, blind=f"there is no KVCachePool {key.name}; create it, or delete this Binding")
        now = self._now()
        trouble = await self._writer.tell_bindings(
            (one for one in left if not is_being_deleted(one)), lambda live: binding_status(live, sight, now)
        )
        self._raise(kept or trouble)
        return Result()

    # --------------------------------------------------------------------------------------------------------- serving

    async def _serve(self, pool: KVCachePool) -> Result:
        if not has_finalizer(pool, k.FINALIZER):
            _, refused = await self._writer.hold([pool])
            self._raise(refused.get(Key.of(pool)))
        if pool.backend is None:
            return await self._unserved(pool, None, pool_status.not_singular(pool))
        with self._masters.turn(pool.backend, Key.of(pool)) as master:
            return await self._serve_on(pool, pool.backend, master)

    async def _serve_on(self, pool: KVCachePool, name: str, master: Master) -> Result:
        snapshot = self._around.snapshot(name)
        backend = await self._around.backend(name)
        if backend is None:
            self._masters.forget(name)
            # The ledger went with the master.
            own = snapshot.bindings.get(pool.metadata.name, ())
            leaving = [one for one in own if is_being_deleted(one)]
            kept = await self._writer.release_all(leaving)
            left = snapshot.without(leaving)
            told = await self._unserved(pool, left, pool_status.not_found(name), gone=left.registered)
            self._raise(kept)
            return told
        if is_being_deleted(backend):
            if pool.metadata.name not in users_of(backend):
                return await self._unserved(pool, snapshot, pool_status.leaving(name))
            snapshot = snapshot.only(users_of(backend))
        # A sibling that has not had a pass of its own yet: its Bindings' quotas are written in this one.
        siblings = [one for one in snapshot.bare_publishers if one.metadata.name != pool.metadata.name]
        new = {one.metadata.name for one in siblings}
        if not has_finalizer(pool, k.FINALIZER):
            new.add(pool.metadata.name)
        try:
            _, unheld = await self._writer.hold(siblings)
            snapshot = snapshot.but(_bindings_of(snapshot, unheld))
            await self._writer.claim(backend, snapshot.publishers, new=new)
        except NotFound:
            return Result(SOON)
        client_endpoint = backend.address(k.ENDPOINT_CLIENT) or ""
        address = backend.address(k.ENDPOINT_ADMIN)
        if address is None:
            outcome = DECLARED_OFF if backend.multi_tenant is False else None
            claim = pool_status.not_published(name)
            return await self._unserved(pool, snapshot, claim, client_endpoint=client_endpoint, outcome=outcome)
        held, refusals = await self._writer.hold(snapshot.bare_bindings)
        snapshot = snapshot.but({key: _unheld(error) for key, error in refusals.items()})
        try:
            admin = self._masters.admin(address, self._before_write)
            findings = await self._visitor.visit(master, admin, backend, snapshot, held)
        except PolicyRefused as refused:
            claim = pool_status.policy_refused(str(refused))
            await self._tell_bindings(pool, snapshot, _blind(snapshot, claim.message), None, claim.message)
            await self._tell_unserved(pool, snapshot, [pool_status.RESOLVED, claim], client_endpoint)
            raise
        told = await self._told(pool, snapshot, findings, client_endpoint)
        self._raise(next(iter([*refusals.values(), *unheld.values()]), None))
        return told

    async def _told(
        self, pool: KVCachePool, snapshot: Snapshot, findings: pool_status.Findings, client_endpoint: str
    ) -> Result:
        now = self._now()

        def sight(binding: KVCachePoolBinding) -> Sight:
            trouble = snapshot.trouble(binding)
            if trouble:
                return Sight(rivals=snapshot.rivals(binding), blind=trouble)
            return Sight(
                rivals=snapshot.rivals(binding),
                no_ledger=findings.no_ledger,
                tenants=findings.scrape.tenants if findings.scrape is not None else None,
                blind=findings.blind,
            )

        failure = str(findings.outcome.failure)
        trouble = await self._tell_bindings(pool, snapshot, sight, findings.outcome, failure)
        await self._writer.tell_pool(
            pool, lambda live: pool_status.served_status(live, snapshot, findings, client_endpoint, now)
        )
        self._raise(trouble)
        return Result(SOON if findings.more else self._reobserved)

    async def _unserved(
        self,
        pool: KVCachePool,
        snapshot: Snapshot | None,
        claim: Claim,
        *,
        client_endpoint: str = "",
        outcome: Outcome | None = None,
        gone: frozenset[str] = frozenset(),
    ) -> Result:
        """End a pass that cannot reach a master; its Bindings must not look as if it could (decision O4)."""

        seen = snapshot or Snapshot.of([pool], self._around.bindings_of(pool.metadata.name))
        trouble = await self._tell_bindings(pool, seen, _blind(snapshot, claim.message), outcome, claim.message)
        await self._tell_unserved(pool, snapshot, [claim], client_endpoint, gone)
        self._raise(trouble)
        return Result(self._reobserved)

    async def _tell_unserved(
        self,
        pool: KVCachePool,
        snapshot: Snapshot | None,
        claims: list[Claim],
        client_endpoint: str,
        gone: frozenset[str] = frozenset(),
    ) -> None:
        now = self._now()

        def decide(live: KVCachePool) -> dict[str, Any]:
            return pool_status.unserved_status(live, snapshot, claims, now, client_endpoint=client_endpoint, gone=gone)

        await self._writer.tell_pool(pool, decide)

    async def _tell_bindings(
        self,
        pool: KVCachePool,
        snapshot: Snapshot,
        sight: Callable[[KVCachePoolBinding], Sight],
        outcome: Outcome | None,
        failure: str,
    ) -> KubeError | None:
        """Write the statuses of a pool's Bindings, and let go of those of which nothing is left; the first failure.

        One Binding that takes no status, or stays held, keeps neither the others nor the pool from being told.
        """
        now = self._now()
        own = snapshot.bindings.get(pool.metadata.name, ())
        releasing = [one for one in own if one.releasing and has_finalizer(one, k.FINALIZER)]
        verdicts = {Key.of(one): release(one.spec.domain.name, outcome) for one in releasing}

        def decide(live: KVCachePoolBinding) -> dict[str, Any]:
            why = verdicts.get(Key.of(live))
            if why is not None:
                return held_status(live, why, failure, now)
            # One that began to release meanwhile was not released by this pass; the next one describes it.
            return {} if live.releasing else binding_status(live, sight(live), now)

        kept = await self._writer.release_all(one for one in releasing if verdicts[Key.of(one)] is Release.FREE)
        staying = [Key.of(one) for one in own if verdicts.get(Key.of(one)) is not Release.FREE]
        # The snapshot knows their claims, not what their statuses say by now.
        told = [live for key in staying if (live := self._around.bindings.get(key)) is not None]
        untold = await self._writer.tell_bindings(told, decide)
        return kept or untold

    def _raise(self, trouble: KubeError | None) -> None:
        """Have a pass that did all it could tried again for the rest, no later than the next one is due."""
        if trouble is not None:
            trouble.retry_within = self._reobserved
            raise trouble

    # ----------------------------------------------------------------------------------------------------- taking down

    async def _take_down(self, pool: KVCachePool) -> Result:
        if not has_finalizer(pool, k.FINALIZER):
            return Result()
        if pool.backend is None:
            unreachable = pool_status.not_singular(pool).message
            alone = Snapshot.of([pool], self._around.bindings_of(pool.metadata.name))
            return await self._teardown(pool, Debtor(unreachable=unreachable), alone, None)
        with self._masters.turn(pool.backend, Key.of(pool)) as master:
            # What is told of a hold is compared with what its objects say by now.
            snapshot = self._around.present_snapshot(pool.backend)
            backend = await self._around.backend(pool.backend)
            if backend is not None and is_being_deleted(backend):
                snapshot = snapshot.only({*users_of(backend), pool.metadata.name})
            return await self._teardown(pool, self._debtor(pool.backend, backend), snapshot, master)

    def _debtor(self, name: str, backend: KVCacheBackend | None) -> Debtor:
        if backend is None:
            self._masters.forget(name)
            return Debtor()
        if backend.multi_tenant is False:
            return Debtor(backend)
        address = backend.address(k.ENDPOINT_ADMIN)
        if address is None:
            return Debtor(backend, unreachable=pool_status.not_published(name).message)
        return Debtor(backend, self._masters.admin(address, self._before_write))

    async def _teardown(self, pool: KVCachePool, debtor: Debtor, snapshot: Snapshot, master: Master | None) -> Result:
        now = self._now()
        try:
            look = self._around.bindings_live
            await Teardown(self._writer, self._policies, look, pool, debtor, snapshot, master, now).run()
        except Held as held:
            reason, message = held.reason, held.message
            await self._writer.tell_pool(pool, lambda live: pool_status.held_status(live, reason, message, now))
            return Result() if held.wakes else Result(self._reobserved)
        except NotFound:
            return Result(SOON)
        return Result()


def _unheld(error: KubeError) -> str:
    return f"the finalizer cannot be put on this Binding, so no quota is registered for it: {error}"


def _bindings_of(snapshot: Snapshot, pools: Mapping[Key, KubeError]) -> dict[Key, str]:
    """The Bindings of pools that cannot be held: when such a pool vanishes, nobody takes their quotas back."""
    return {
        Key.of(binding): f"the finalizer cannot be put on KVCachePool {pool.name}: {error}"
        for pool, error in pools.items()
        for binding in snapshot.bindings.get(pool.name, ())
    }


def _blind(snapshot: Snapshot | None, why: str) -> Callable[[KVCachePoolBinding], Sight]:
    """What a pass saw of the master that did not get there; without a snapshot it cannot tell of rivals either."""
    return lambda binding: Sight(rivals=snapshot.rivals(binding) if snapshot is not None else None, blind=why)
