"""What a serving pass does at a master: document, ledger, figures, document (spec 10 §5 steps 9-11, §6.2).

The ledger is read first and written last. In between goes the policy document, with everything that is, or is about
to be, on the ledger; after the ledger is written, what is gone from there leaves the document as well. Killed at any
point, a pass leaves a document that lists at least what the ledger holds of ours, and a ledger in which each entry
belongs to a Binding that carries the finalizer.

A cache that lags, as after a change of leaders, decides nothing here. Before an entry is made, its Binding is looked at
live: one that is gone, its entry taken out with it, would leave the new one for ever. Before an entry is taken out that
no Binding seems to claim, the one that had it is looked for live: it may be there and only not be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.stored import StoredBinding, StoredPool
from inferencecache.controllers.kvcachepool.documents import to_start_from
from inferencecache.controllers.kvcachepool.masters import Answer, Master, Question
from inferencecache.controllers.kvcachepool.policy_file import PolicyFiles
from inferencecache.controllers.kvcachepool.pool_status import Findings
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import AdminClient, LedgerEntry, MasterError, MultiTenancyOff
from inferencecache.controllers.mooncake.exposition import ScrapeError, parse
from inferencecache.controllers.mooncake.ledger import DECLARED_OFF, Outcome, Plan, Reading, Verdict, plan, settle
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.finalizers import has_finalizer
from inferencecache.kube.resource import Key

AT_ONCE: Final = 16
ENTRIES_A_PASS: Final = 100
"""A master rewrites its whole policy for each entry, which takes it a fifth of a second with a thousand tenants: a pass
that made thousands would keep its siblings, and whoever wants to see a status, waiting for minutes."""

_SCRAPED: Final = {Verdict.NO_LEDGER, Verdict.RETAINED, Verdict.CONVERGED}


class MovedOn(Exception):
    """What the pass works on has changed since it looked; it must look again."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Visits masters."""

    client: Client
    policies: PolicyFiles

    async def visit(
        self, master: Master, admin: AdminClient, backend: KVCacheBackend, snapshot: Snapshot, checked: Iterable[Key]
    ) -> Findings:
        """Converge a master to what is claimed on it.

        `checked` are Bindings that were just seen live. Raises `PolicyRefused`, before anything is written to the
        ledger, and `MovedOn`. What the master does wrong is told.
        """
        keeps_ledger = backend.multi_tenant is not False
        question = Question.about(snapshot, admin.address, keeps_ledger=keeps_ledger)
        answer = master.answer(question)
        if answer is not None:
            await self.policies.write(backend, answer.listed)
            return answer.findings
        master.forget()
        if keeps_ledger:
            answer = await self._with_ledger(master, admin, backend, snapshot, frozenset(checked))
            if answer.findings.more:
                return answer.findings
        else:
            await self.policies.write(backend, snapshot.desired)
            findings = await _scraped(admin, Findings(outcome=DECLARED_OFF, gone=frozenset(snapshot.leaving)))
            answer = Answer(findings, snapshot.desired)
        master.remember(question, answer)
        return answer.findings

    async def _with_ledger(
        self,
        master: Master,
        admin: AdminClient,
        backend: KVCacheBackend,
        snapshot: Snapshot,
        checked: frozenset[Key],
    ) -> Answer:
        reading = await master.read(admin)
        entries = _readable(reading)
        listed = await self.policies.tenants(backend.metadata.name) if entries is None else {}
        tenants = to_start_from(snapshot, entries, listed)
        await self.policies.write(backend, tenants)
        whole = Plan()
        if reading.failure is None:
            whole = plan(reading.entries, snapshot.desired, snapshot.registered)
        todo = replace(whole, puts=whole.puts[:ENTRIES_A_PASS])
        more = todo != whole
        await self._look_at([snapshot.claims[domain][0] for domain, _ in todo.puts], checked)
        missing = {name: snapshot.missing[name] for name in todo.deletes if name in snapshot.missing}
        await self._look_for(missing, snapshot, backend.metadata.name)
        outcome = await settle(admin, reading, todo)
        gone = _gone(snapshot, reading, outcome)
        findings = Findings(outcome=outcome, gone=gone, more=more)
        if outcome.verdict in _SCRAPED:
            findings = await _scraped(admin, findings)
        else:
            findings = replace(findings, blind=str(outcome.failure))
        left = {name: quota for name, quota in tenants.items() if name not in gone}
        if left != tenants:
            await self.policies.write(backend, left)
        return Answer(findings, left)

    async def _look_at(self, bindings: Iterable[KVCachePoolBinding], checked: frozenset[Key]) -> None:
        """Raises `MovedOn` unless each Binding is there, is the same, and keeps its entry from being orphaned."""
        doubtful = {Key.of(binding): binding for binding in bindings if Key.of(binding) not in checked}
        for key, live in (await self._live(doubtful)).items():
            same = live is not None and live.metadata.uid == doubtful[key].metadata.uid
            if live is None or not same or live.releasing or not has_finalizer(live, k.FINALIZER):
                raise MovedOn

    async def _look_for(self, missing: Mapping[str, Key], snapshot: Snapshot, backend: str) -> None:
        """Raises `MovedOn` if a Binding that was not seen is there after all, and claims its domain on this master.

        Another one of its name may have been seen: on a pool that takes it no more, or that is of no concern here.
        """
        seen = {one.metadata.uid for one in snapshot.all_bindings}
        found = await self._live(missing.values())
        for domain, key in missing.items():
            live = found[key]
            if live is None or live.spec.domain.name != domain or live.metadata.uid in seen:
                continue
            if live.pool in snapshot.pools or await self._publishes(live.pool, backend):
                raise MovedOn

    async def _publishes(self, pool: str, backend: str) -> bool:
        try:
            live = await self.client.get(StoredPool, Key("", pool))
        except NotFound:
            return False
        return backend in live.spec.backends

    async def _live(self, keys: Iterable[Key]) -> Mapping[Key, KVCachePoolBinding | None]:
        """Bindings as the API server has them."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def look(key: Key) -> KVCachePoolBinding | None:
            async with turns:
                try:
                    return await self.client.get(StoredBinding, key)
                except NotFound:
                    return None

        try:
            async with asyncio.TaskGroup() as group:
                looks = {key: group.create_task(look(key)) for key in keys}
        except* KubeError as failed:
            raise failed.exceptions[0] from None
        return {key: task.result() for key, task in looks.items()}


def _readable(reading: Reading) -> Mapping[str, LedgerEntry] | None:
    """The entries; none for a master that keeps no ledger, None if nobody knows."""
    return None if reading.failure is not None and not isinstance(reading.failure, MultiTenancyOff) else reading.entries


def _gone(snapshot: Snapshot, reading: Reading, outcome: Outcome) -> frozenset[str]:
    """The leaving domains of which no entry of ours is left.

    A master that says that it keeps no ledger may have been started without tenants for a while, and have its entries
    again afterwards. So a domain that leaves meanwhile is remembered, if it may have one.
    """
    if isinstance(reading.failure, MultiTenancyOff):
        return snapshot.never_registered
    if reading.failure is not None:
        return frozenset()
    entries = reading.entries
    never = {name for name in snapshot.leaving if name not in entries or not entries[name].has_explicit_policy}
    return frozenset(never | {*outcome.deleted})


async def _scraped(admin: AdminClient, findings: Findings) -> Findings:
    try:
        # Many tenants take a while to read, and Pods are admitted on this loop.
        scrape = await asyncio.to_thread(parse, await admin.metrics())
    except (MasterError, ScrapeError) as error:
        return replace(findings, scrape_tried=True, blind=str(error))
    return replace(findings, scrape_tried=True, scrape=scrape)
