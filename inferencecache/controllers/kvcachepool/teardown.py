"""The way of a pool out of a cluster (spec 10 §11): what it still owes, step by step, until nothing is left.

| step                                                              | held by                              |
|-------------------------------------------------------------------|--------------------------------------|
| 1. entries of Bindings that are releasing, then these Bindings    | a master that does not let them go   |
| 2. no other Binding, nor one that may be, as it cannot be read    | HeldByBindings, until a Binding moves |
| 3. entries whose Bindings were taken away by force                | a master that does not let them go   |
| 4. the policy document without the pool's tenants                 | a ledger that cannot be read         |
| 5. the claim on the backend                                       |                                      |
| 6. the finalizer                                                  |                                      |

A Binding that came after the pool's deletion is never served, and says so.

Each step leaves the world so that the next pass can begin at the first: an entry goes before what records it goes, on
the ledger before in the document, and in the document before the Binding. A backend that is gone has taken its ledger
along, and one that is declared to keep none has nothing to ask for. Any other may hold entries of the pool, so as long
as it does not answer, the pool stays: released over an entry, it would leave capacity that nobody can reclaim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from inferencecache.api import kvcache as k
from inferencecache.api.kvcache import listed
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import StoredBinding
from inferencecache.controllers.kvcachepool import reasons as r
from inferencecache.controllers.kvcachepool.act import Writer
from inferencecache.controllers.kvcachepool.binding_status import (
    Release,
    Sight,
    binding_status,
    held_status,
    used_status,
)
from inferencecache.controllers.kvcachepool.documents import after_removal
from inferencecache.controllers.kvcachepool.masters import Master
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles, PolicyRefused
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import (
    AdminClient,
    LedgerEntry,
    MasterError,
    MultiTenancyOff,
    TenantNotEmpty,
)
from inferencecache.kube.apply import ChildConflict
from inferencecache.kube.errors import DecodeError
from inferencecache.kube.finalizers import has_finalizer
from inferencecache.kube.resource import Key


class Held(Exception):
    """The deletion cannot go on. `wakes`: a change of a Binding will wake it, so it need not be tried by the clock."""

    def __init__(self, reason: str, message: str, *, wakes: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.wakes = wakes


@dataclass(frozen=True, slots=True)
class Debtor:
    """Whom the pool owes: its backend as far as it is known.

    Attributes:
        backend: None if it is gone, or if the pool does not name one.
        admin: how to reach the master; None if it cannot be, or need not be.
        unreachable: why it cannot be; empty if it can, or need not be.
    """

    backend: KVCacheBackend | None = None
    admin: AdminClient | None = None
    unreachable: str = ""


@dataclass(slots=True)
class Teardown:
    """One pass over a pool that is being deleted, with its master to itself.

    `look` tells every Binding there is, live: what a cache does not show lets nobody go.
    """

    writer: Writer
    policies: PolicyFiles
    look: Callable[[], Awaitable[Iterable[StoredBinding]]]
    pool: KVCachePool
    debtor: Debtor
    snapshot: Snapshot
    master: Master | None
    now: datetime
    _ledger: dict[str, LedgerEntry] | None = field(default=None, init=False)

    async def run(self) -> None:
        """Take all steps that can be taken. Raises `Held`, `Conflict` and `NotFound`."""
        if self.master is not None:
            self.master.forget()
        own = self.snapshot.bindings.get(self.pool.metadata.name, ())
        if self.debtor.backend is None and not self.debtor.unreachable:
            # With the backend went everything that could be in use.
            leaving = [one for one in own if one.metadata.deletion_timestamp is not None]
            await self._let_go(leaving)
        else:
            leaving = [one for one in own if one.releasing]
            await self._release(leaving)
        await self._no_others([one for one in own if one not in leaving])
        await self._look_again({Key.of(one) for one in leaving})
        await self._forced_away()
        await self._rewrite(self._unclaimed(self._names(own)))
        if self.debtor.backend is not None:
            await self.writer.give_up(self.debtor.backend, self.pool.metadata.name)
        await self.writer.release(self.pool)

    async def _release(self, bindings: list[KVCachePoolBinding]) -> None:
        if not bindings:
            return
        names = self._unclaimed(one.spec.domain.name for one in bindings)
        try:
            kept = await self._delete(names)
        except Held as held:
            why = held.message
            await self._tell(bindings, lambda one: held_status(one, Release.UNKNOWN, why, self.now))
            raise
        await self._rewrite(names - kept.keys())
        await self._let_go(one for one in bindings if one.spec.domain.name not in kept)
        held_back = [one for one in bindings if one.spec.domain.name in kept]
        await self._tell(held_back, lambda one: _kept(one, kept[one.spec.domain.name], self.now))
        _hold_if(kept)

    async def _let_go(self, bindings: Iterable[KVCachePoolBinding]) -> None:
        failure = await self.writer.release_all(bindings)
        if failure is not None:
            raise failure

    async def _no_others(self, others: list[KVCachePoolBinding]) -> None:
        if not others:
            return
        used = [one for one in others if one.metadata.deletion_timestamp is not None and one.pool]
        untold = await self.writer.tell_bindings(used, lambda one: used_status(one, self.now))
        # The quota of none of these was ever written, and while the pool goes none is.
        late = [one for one in others if one.pool and one not in used and not has_finalizer(one, k.FINALIZER)]
        untold = await self.writer.tell_bindings(late, self._too_late) or untold
        # The pool says so, whatever a Binding takes; who could not be told is told by the clock.
        wakes = untold is None and all(one.pool for one in others)
        raise Held(r.HELD_BY_BINDINGS, _still_bound(others), wakes=wakes)

    def _too_late(self, binding: KVCachePoolBinding) -> dict[str, Any]:
        why = (
            f"KVCachePool {binding.pool} is being deleted and takes no new Binding; delete this one, and bind another "
            "pool"
        )
        return binding_status(binding, Sight(rivals=self.snapshot.rivals(binding), blind=why), self.now)

    async def _look_again(self, left: Collection[Key]) -> None:
        """Believe the API server alone that nobody else is there; those that have `left` may be."""
        await self._read()  # as long as the master does not answer, nothing is decided
        try:
            live = [one for one in await self.look() if Key.of(one) not in left]
        except DecodeError as unreadable:
            raise Held(r.HELD_BY_BINDINGS, f"nobody knows whose it is: {unreadable}; mend or delete it") from None
        self.snapshot = Snapshot.of(self.snapshot.pools.values(), live)
        anybodys = [one for one in live if one.anybodys]
        await self._no_others([*self.snapshot.bindings.get(self.pool.metadata.name, ()), *anybodys])

    async def _forced_away(self) -> None:
        names = self._unclaimed(domain.name for domain in self.pool.status.domains)
        if names and not self._owes_nothing:
            _hold_if(await self._delete(names))

    async def _rewrite(self, removed: frozenset[str]) -> None:
        if self.debtor.backend is None and not self.debtor.unreachable:
            return
        tenants = after_removal(self.snapshot, await self._read(), removed)
        assert self.debtor.backend is not None, "a backend that could be read is there"
        try:
            await self.policies.write(self.debtor.backend, tenants)
        except PolicyRefused as refused:
            # What somebody else holds under the document's name has nothing of ours in it.
            if not isinstance(refused.__cause__, ChildConflict):
                raise Held(r.LEDGER_NOT_RELEASED, f"the pool's tenants are still listed in {refused}") from refused

    async def _delete(self, names: frozenset[str]) -> Mapping[str, MasterError]:
        """Take entries off the ledger; those that could not be, with the reason. Raises `Held`."""
        ledger = await self._read()
        entries = sorted(name for name in names if name in ledger and ledger[name].has_explicit_policy)
        kept: dict[str, MasterError] = {}
        for name in entries:
            assert self.debtor.admin is not None, "a ledger with entries was read from a master"
            try:
                await self.debtor.admin.delete_quota(name)
                del ledger[name]
            except MultiTenancyOff:
                return {}
            except TenantNotEmpty as error:
                kept[name] = error
            except MasterError as error:
                return kept | {rest: error for rest in entries if rest >= name}
        return kept

    async def _read(self) -> dict[str, LedgerEntry]:
        """The ledger, read once in a pass, without what this pass has taken out. Raises `Held`."""
        if self._ledger is None:
            self._ledger = dict(await self._asked())
        return self._ledger

    async def _asked(self) -> Mapping[str, LedgerEntry]:
        if self.debtor.unreachable:
            raise Held(r.LEDGER_NOT_RELEASED, _not_released(self.debtor.unreachable))
        if self.debtor.admin is None or self.master is None:
            return {}
        reading = await self.master.read(self.debtor.admin)
        if reading.failure is None:
            return reading.entries
        if isinstance(reading.failure, MultiTenancyOff):
            return {}
        raise Held(r.LEDGER_NOT_RELEASED, _not_released(str(reading.failure)))

    @property
    def _owes_nothing(self) -> bool:
        return self.debtor.admin is None and not self.debtor.unreachable

    def _names(self, own: Iterable[KVCachePoolBinding]) -> set[str]:
        written = (domain.name for domain in self.pool.status.domains)
        return {*written, *(one.spec.domain.name for one in own)}

    def _unclaimed(self, names: Iterable[str]) -> frozenset[str]:
        """Those that no Binding claims: a domain may have moved to a sibling pool."""
        return frozenset(names) - self.snapshot.claims.keys()

    async def _tell(
        self, bindings: Iterable[KVCachePoolBinding], decide: Callable[[KVCachePoolBinding], dict[str, Any]]
    ) -> None:
        failure = await self.writer.tell_bindings(bindings, decide)
        if failure is not None:
            raise failure


def _still_bound(bindings: Collection[KVCachePoolBinding]) -> str:
    told = f"still bound by {listed(Key.of(one) for one in bindings)}; delete these KVCachePoolBindings"
    unreadable = [f"{Key.of(one)} ({one.flaw})" for one in bindings if one.flaw]
    return f"{told}; of these cannot be read, mend or delete them: {listed(unreadable)}" if unreadable else told


def _kept(binding: KVCachePoolBinding, error: MasterError, now: datetime) -> dict[str, Any]:
    why = Release.NOT_EMPTY if isinstance(error, TenantNotEmpty) else Release.UNKNOWN
    return held_status(binding, why, str(error), now)


def _hold_if(kept: Mapping[str, MasterError]) -> None:
    if not kept:
        return
    full = [name for name, error in kept.items() if isinstance(error, TenantNotEmpty)]
    failed = [str(error) for error in kept.values() if not isinstance(error, TenantNotEmpty)]
    parts = [f"the master keeps tenants whose domains hold objects: {listed(full)}; drain them"] if full else []
    parts += [_not_released(failed[0])] if failed else []
    raise Held(r.LEDGER_NOT_RELEASED, "; ".join(parts))


def _not_released(why: str) -> str:
    return (
        f"entries of this pool may still be on the master, which cannot be asked: {why}. Restore it, or give the "
        "entries up by removing the pool's finalizer"
    )
