"""The manager: everything one operator process runs, started in order and stopped in reverse.

    listeners → caches → services → (election) → leader's work

*Listeners* are health and metrics, so that a slow start can be watched. *Caches* are all informers; nothing reads them
before each has its first complete content. *Services* run on every replica: admission webhooks, certificates.
*Leader's work*, which is every controller unless it says otherwise, waits until this replica holds the Lease.

Stopping lets work in progress finish, within one grace period for everything, and gives the Lease up only after the
last of the leader's work has ended. Losing the Lease is different: another may act soon, so the leader's work is
cancelled at once, and `run` raises `LeadershipLost` for the process to end and start afresh. The same happens when any
part fails: an operator that runs in part looks alive and is not.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import structlog

from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.controller import DEFAULT_TIMEOUT, DEFAULT_WORKERS, Controller, Reconciler
from inferencecache.kube.errors import LeadershipLost
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.handlers import Mapper, for_controller, for_mapped, for_self
from inferencecache.kube.health import Check, Health, listening_in_a_thread
from inferencecache.kube.informer import Informer
from inferencecache.kube.leader import LeaderElection, LeaderElector
from inferencecache.kube.predicates import Predicate
from inferencecache.kube.resource import Key, Kind
from inferencecache.kube.serving import Address, listening, metrics_app, self_signed_context

_LAST_WORDS: Final = 1.0  # seconds for a cancelled task to clean up after the grace period
_log = structlog.stdlib.get_logger(__name__)

Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a manager behaves; the defaults are controller-runtime's.

    `metrics_address` and `health_address` are `host:port`, `:port` or `0` for none. `stale_after` is how long the API
    server may be silent before `/readyz` calls a cache stale; bookmarks come every minute. `handle_signals` stops the
    manager on SIGTERM and SIGINT; a second signal ends the process at once.
    """

    metrics_address: str = ":8080"
    metrics_secure: bool = False
    health_address: str = ":8081"
    leader_election: LeaderElection | None = None
    cache_sync_timeout: timedelta = timedelta(minutes=2)
    graceful_timeout: timedelta = timedelta(seconds=30)
    stale_after: timedelta = timedelta(minutes=2)
    handle_signals: bool = True


class Manager:
    """Holds what the parts of an operator share, and runs them.

    Attributes:
        client: for reconcilers; each write first checks that this process still leads (decision F14).
        unguarded_client: for services, which every replica runs.
        cache: shared informers, for everybody.
    """

    def __init__(self, client: Client, *, options: Options | None = None) -> None:
        self._options = options or Options()
        # Wrong addresses are better told before anything runs.
        self._metrics_address = Address.parse(self._options.metrics_address)
        self._health_address = Address.parse(self._options.health_address)
        election = self._options.leader_election
        self._elector = LeaderElector(client, election) if election is not None else None
        self.unguarded_client = client
        self.client = client if self._elector is None else client.guarded(self._elector.check)
        self.cache = Cache(client)
        self._services: list[_Part] = []
        self._leaders_work: list[_Part] = []
        self._recorders: dict[tuple[str, bool], EventRecorder] = {}
        self._controllers: set[str] = set()
        self._health = Health()
        self._health.add_ready_check("start", lambda: None if self._started.is_set() else "still starting")
        self._health.add_ready_check("caches", self._caches_complaint)
        self._phases: list[_Phase] = []
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._listening: dict[str, Address] = {}

    # -------------------------------------------------------------------------------------------------------- building

    def controller(
        self,
        name: str,
        reconciler: Reconciler,
        *,
        workers: int = DEFAULT_WORKERS,
        timeout: timedelta = DEFAULT_TIMEOUT,
        leader_only: bool = True,
    ) -> ControllerBuilder:
        """Add a controller; say on the answer what wakes it. `name` is unique within a manager."""
        if name in self._controllers:
            raise ValueError(f"there is a controller {name!r} already; its metrics and logs need a name of their own")
        self._controllers.add(name)
        controller = Controller(name, reconciler, workers=workers, timeout=timeout)
        self._parts(leader_only).append(_Part(name, controller.run, controller.stop))
        return ControllerBuilder(self.cache, controller)

    def add(self, run: Run, *, name: str = "", leader_only: bool = False) -> None:
        """Run something beside the controllers. It is cancelled to stop; if it raises, the manager ends with that."""
        self._parts(leader_only).append(_Part(name or getattr(run, "__qualname__", repr(run)), run))

    def add_ready_check(self, name: str, check: Check) -> None:
        """Let `/readyz` fail while `check` says why not. Raises `ValueError` if the name is taken."""
        self._health.add_ready_check(name, check)

    def recorder(self, name: str, *, leader_only: bool = True) -> EventRecorder:
        """The event recorder of a controller, or of a service that every replica runs (`leader_only=False`)."""
        recorder = self._recorders.get((name, leader_only))
        if recorder is None:
            recorder = EventRecorder(self.client if leader_only else self.unguarded_client, name)
            self._recorders[name, leader_only] = recorder
        return recorder

    def _parts(self, leader_only: bool) -> list[_Part]:
        return self._leaders_work if leader_only else self._services

    # --------------------------------------------------------------------------------------------------------- running

    @property
    def is_leader(self) -> bool:
        """Whether this process may do the leader's work; always, without an election."""
        return self._elector is None or self._elector.is_leader

    @property
    def listening(self) -> dict[str, Address]:
        """Where `health` and `metrics` are served, with the ports that were taken."""
        return dict(self._listening)

    async def wait_started(self) -> None:
        """Wait until the caches are synced and the services run; leadership may come later."""
        await self._started.wait()

    def stop(self) -> None:
        """Have `run` stop everything and return."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`, a signal or cancellation; then everything has ended. A manager runs once.

        Raises `CacheNotSynced` if the first lists take too long, `LeadershipLost`, `OSError` if a listener cannot
        listen, and whatever a part raised.
        """
        if self._phases:
            raise RuntimeError("a manager runs once; make a new one")
        async with AsyncExitStack() as listeners:
            if self._options.handle_signals:
                listeners.enter_context(_signals(self.stop))
            starting = asyncio.create_task(self._start(listeners), name="manager-start")
            starting.add_done_callback(functools.partial(self._ended, "start"))
            try:
                await self._stop.wait()
            finally:
                await self._wind_down(starting)
        if self._failure is not None:
            raise self._failure

    async def _start(self, listeners: AsyncExitStack) -> None:
        self._phase("health").start(_Part("heartbeat", self._health.keep_beating))
        if self._health_address is not None:
            self._listening["health"] = await listeners.enter_async_context(
                listening_in_a_thread(self._health.app, self._health_address)
            )
        if self._metrics_address is not None:
            tls = self_signed_context() if self._options.metrics_secure else None
            self._listening["metrics"] = await listeners.enter_async_context(
                listening(metrics_app(), self._metrics_address, tls)
            )
        self._phase("caches").start(_Part("cache", self.cache.run))
        await self.cache.wait_synced(self._options.cache_sync_timeout)
        self._start_phase("services", self._services, leader_only=False)
        self._started.set()
        _log.info("started", **{name: str(address) for name, address in self._listening.items()})
        if self._elector is not None:
            await self._elector.acquire()
            self._phase("election").start(_Part("election", self._elector.hold))
        self._start_phase("leader's work", self._leaders_work, leader_only=True)

    def _start_phase(self, name: str, parts: list[_Part], *, leader_only: bool) -> None:
        # Recorders stop after those who use them, to write the last Events.
        recorders = self._phase(f"events of {name}")
        for (controller, leaders), recorder in self._recorders.items():
            if leaders == leader_only:
                recorders.start(_Part(f"events-{controller}", recorder.run))
        phase = self._phase(name)
        for part in parts:
            phase.start(part)

    def _phase(self, name: str) -> _Phase:
        phase = _Phase(name, self._ended)
        self._phases.append(phase)
        return phase

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, LeadershipLost):
            _log.error("leadership lost", error=str(error))
        else:
            _log.error("a part of the manager failed; stopping", part=name, exc_info=error)
        if name == "election":
            self._cancel_leaders_work()
        self._failure = self._failure or error
        self._stop.set()

    def _cancel_leaders_work(self) -> None:
        names = [phase.name for phase in self._phases]
        if "election" in names:
            for phase in self._phases[names.index("election") + 1 :]:
                phase.cancel()

    async def _wind_down(self, starting: asyncio.Task[None]) -> None:
        _log.info("stopping")
        deadline = time.monotonic() + self._options.graceful_timeout.total_seconds()
        starting.cancel()
        await asyncio.wait([starting])
        all_ended = True
        for phase in reversed(self._phases):
            all_ended = await phase.stop(deadline) and all_ended
            if phase.name == "election" and self._elector is not None and all_ended:
                await self._elector.release()

    def _caches_complaint(self) -> str | None:
        now = time.monotonic()
        limit = self._options.stale_after.total_seconds()
        return "; ".join(filter(None, (_complaint(one, now, limit) for one in self.cache.informers))) or None


class ControllerBuilder:
    """Says what wakes a controller; every method returns the builder.

    `informer` stands for one with selectors or a transform, made with `manager.cache.informer(...)`; by default the
    kind's shared informer over everything.
    """

    def __init__(self, cache: Cache, controller: Controller) -> None:
        self._cache = cache
        self._primary: type[Kind] | None = None
        self.controller = controller

    def watches_primary(
        self, kind: type[Kind], predicate: Predicate | None = None, *, informer: Informer[Any] | None = None
    ) -> ControllerBuilder:
        """Reconcile each object of this kind by its own name, and all of them again every ten hours."""
        if self._primary is not None:
            raise ValueError(
                f"controller {self.controller.name!r} has a primary kind already, {self._primary.__name__}"
            )
        self._primary = kind
        self.controller.watch(self._informer(kind, informer), for_self, predicate, resync=True)
        return self

    def owns(
        self, kind: type[Kind], predicate: Predicate | None = None, *, informer: Informer[Any] | None = None
    ) -> ControllerBuilder:
        """Reconcile the primary object that controls a changed object of this kind."""
        if self._primary is None:
            raise ValueError(f"controller {self.controller.name!r}: say watches_primary before owns")
        handler = for_controller(self._primary)
        self.controller.watch(self._informer(kind, informer), handler, predicate)
        return self

    def watches(
        self,
        kind: type[Kind],
        mapper: Mapper[Any],
        predicate: Predicate | None = None,
        *,
        informer: Informer[Any] | None = None,
    ) -> ControllerBuilder:
        """Reconcile the keys that `mapper` names for a changed object of this kind, for its old and its new state."""
        self.controller.watch(self._informer(kind, informer), for_mapped(mapper), predicate)
        return self

    def _informer(self, kind: type[Kind], given: Informer[Any] | None) -> Informer[Any]:
        # An informer without objects is falsy.
        return self._cache.informer(kind) if given is None else given

    def enqueue(self, key: Key) -> None:
        """Have a key reconciled soon, for reasons no watch can see."""
        self.controller.enqueue(key)


class _Part(NamedTuple):
    """Something that runs; without a `stop` of its own it is cancelled."""

    name: str
    run: Run
    stop: Callable[[], None] | None = None


class _Phase:
    """Parts that start and stop together. `ended` hears of each that ends."""

    def __init__(self, name: str, ended: Callable[[str, asyncio.Task[None]], None]) -> None:
        self.name = name
        self._ended = ended
        self._tasks: dict[asyncio.Task[None], _Part] = {}

    def start(self, part: _Part) -> None:
        async def run() -> None:
            await part.run()

        task = asyncio.create_task(run(), name=part.name)
        task.add_done_callback(functools.partial(self._ended, part.name))
        self._tasks[task] = part

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self, deadline: float) -> bool:
        """Stop all parts, gently until `deadline`; true if all have ended."""
        running = {task for task in self._tasks if not task.done()}
        for task in running:
            stop = self._tasks[task].stop
            if stop is None:
                task.cancel()
            else:
                stop()
        running = await _wait(running, deadline - time.monotonic())
        if running:
            names = sorted(task.get_name() for task in running)
            _log.warning("not stopped within the grace period; cancelled", phase=self.name, parts=names)
            for task in running:
                task.cancel()
            running = await _wait(running, _LAST_WORDS)
        return not running


async def _wait(tasks: set[asyncio.Task[None]], seconds: float) -> set[asyncio.Task[None]]:
    if not tasks:
        return tasks
    _, pending = await asyncio.wait(tasks, timeout=max(0.0, seconds))
    return pending


def _complaint(informer: Informer[Any], now: float, limit: float) -> str | None:
    name = informer.kind.__name__
    why = f": {informer.failure}" if informer.failure is not None else ""
    if informer.missing:
        return None
    if not informer.synced:
        return f"{name} has no complete list yet{why}"
    silent = informer.silent_for(now)
    return f"{name} is stale, no word from the API server for {silent:.0f} s{why}" if silent > limit else None


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT; the next one acts as it does by default."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)

    def on_signal(number: signal.Signals) -> None:
        _log.info("signal received", signal=number.name)
        restore()
        stop()

    def restore() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        restore()
