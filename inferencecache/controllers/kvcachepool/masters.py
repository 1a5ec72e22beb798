"""One pass at a time per master, and one look at it for several passes.

Passes over sibling pools write the same ledger and the same document. If two of them went side by side, the one with
the older view could write again what the other has just released, and nobody would ever take it out. So a master is at
one pass's disposal at a time. Another pass does not wait for its turn, as it would take a worker from pools whose
masters are well. It leaves its name, and is woken when it is next: coming back by the clock, the passes of a hundred
pools would come at the same instants, and all but one of each instant in vain.

Each pass asks its master the same question: bring the ledger to what is claimed, and tell the figures. As long as the
claims are the same, the answer to a sibling is an answer to all, for as long as a slow master may take to give one.
That covers failures: a master that does not answer costs one pass a timeout, not every sibling's pass (decision F3).
Nothing is written to a master on a shared answer: whatever it called for, its own pass has written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from inferencecache.controllers.kvcachepool.pool_status import Findings
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import TIMEOUT, AdminClient, MooncakeClients, MultiTenancyOff
from inferencecache.controllers.mooncake.ledger import Reading, read
from inferencecache.kube.resource import Key

SHARED_FOR: Final = TIMEOUT
"""How long an answer serves others. With a timeout as long, what is told may be as old without any sharing."""


class MasterBusy(Exception):
    """Another pass is at this master."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that the answer of a master depends on; two equal ones have one answer."""

    address: str
    keeps_ledger: bool
    desired: Mapping[str, int]
    leaving: Mapping[str, int | None]
    contested: frozenset[str]

    @classmethod
    def about(cls, snapshot: Snapshot, address: str, *, keeps_ledger: bool) -> Question:
        """What a pass asks."""
        return cls(address, keeps_ledger, snapshot.desired, snapshot.leaving, snapshot.contested)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it, and the tenants that the policy document lists since."""

    findings: Findings
    listed: Mapping[str, int]


@dataclass(slots=True)
class Master:
    """What is remembered of one master between passes. All times are monotonic seconds."""

    clock: Callable[[], float]
    window: float
    busy: bool = False
    waiting: dict[Key, None] = field(default_factory=dict)
    """Pools whose passes came in vain, the first first."""
    _said: tuple[float, Question, Answer] | None = None
    _silent: tuple[float, str, Reading] | None = None

    def answer(self, question: Question) -> Answer | None:
        """The answer to an equal question, if it is fresh."""
        if self._said is None:
            return None
        when, asked, answer = self._said
        return answer if self._fresh(when) and asked == question else None

    def remember(self, question: Question, answer: Answer) -> None:
        """Let others have an answer."""
        self._said = self.clock(), question, answer

    def forget(self) -> None:
        """Something was written since: no answer holds any more."""
        self._said = None

    async def read(self, admin: AdminClient) -> Reading:
        """The ledger; a failure that somebody met a moment ago is not met again."""
        if self._silent is not None:
            when, address, reading = self._silent
            if self._fresh(when) and address == admin.address:
                return reading
        reading = await read(admin)
        failed = reading.failure is not None and not isinstance(reading.failure, MultiTenancyOff)
        self._silent = (self.clock(), admin.address, reading) if failed else None
        return reading

    def _fresh(self, when: float) -> bool:
        return self.clock() - when < self.window


@dataclass(slots=True)
class Masters:
    """The masters of all backends, by the backend's name: addresses are never compared (decision O8)."""

    clients: MooncakeClients
    wake: Callable[[Key], None]
    """Has a pool looked at soon."""
    clock: Callable[[], float] = time.monotonic
    window: float = SHARED_FOR.total_seconds()
    _by_backend: dict[str, Master] = field(default_factory=dict)

    @contextmanager
    def turn(self, backend: str, pool: Key) -> Iterator[Master]:
        """Have a master to oneself. Raises `MasterBusy`; the pool is then woken when it is its turn."""
        master = self._by_backend.setdefault(backend, Master(self.clock, self.window))
        if master.busy:
            master.waiting.setdefault(pool)
            raise MasterBusy
        master.busy = True
        master.waiting.pop(pool, None)
        try:
            yield master
        finally:
            master.busy = False
            if master.waiting:
                following = next(iter(master.waiting))
                del master.waiting[following]
                self.wake(following)

    def forget(self, backend: str) -> None:
        """A backend is gone; whoever has its turn keeps it."""
        self._by_backend.pop(backend, None)

    def admin(self, address: str, before_write: Callable[[], None]) -> AdminClient:
        """The admin interface at an address; `before_write` may raise to hold a write back."""
        return self.clients.at(address, before_write)
