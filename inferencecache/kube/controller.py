"""A controller: workers that take keys from a queue and bring the world in line with each, one key at a time.

Reconciling is level-triggered. A key says *that* something about an object may have changed, never what; the
reconciler reads the present state and acts on that. So events may be merged, repeated or reordered without harm, and a
failure is simply tried again: after an exponential back-off per key, which an error may bound (`retry_within`), or not
before the key's next change if the error is a `TerminalError`.

Nothing a reconciler does can end its controller. Whatever it raises is counted, logged and retried; what runs past
the deadline is cancelled.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

import structlog

from inferencecache import tracing
from inferencecache.kube.errors import KubeError, TerminalError
from inferencecache.kube.handlers import Handler
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.metrics import ControllerMetrics
from inferencecache.kube.predicates import Predicate
from inferencecache.kube.resource import Key
from inferencecache.kube.workqueue import LOW_PRIORITY, NORMAL_PRIORITY, QueueShutDown, WorkQueue

DEFAULT_WORKERS: Final = 4
DEFAULT_TIMEOUT: Final = timedelta(minutes=2)
RESYNC_PERIOD: Final = timedelta(hours=10)

# What Go would panic with. Anything else is a failure of the outside world and gets no traceback.
_BUGS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
)

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """How a successful pass wants to be followed.

    `requeue_after`: look again after this time, unless something wakes the key earlier. Zero means soon, with the
    back-off of a failure, for waiting on something that gives no event. Without it the key rests until its next change.
    """

    requeue_after: timedelta | None = None


class Reconciler(Protocol):
    """What an operator is made of."""

    async def reconcile(self, key: Key) -> Result | None:
        """Bring the world in line with the object of this name, which may be gone.

        Is called again later if it raises. `TerminalError` says that trying again cannot help.
        """


class Controller:
    """Runs one reconciler over the keys that its watches name.

    Args:
        name: in logs and metrics; unique within a manager.
        reconciler: does the work.
        workers: how many keys are worked on at the same time; one key never twice at once.
        timeout: after this long a pass is cancelled and counts as failed.
        queue: where keys come from; by default one of the controller's name.
    """

    def __init__(
        self,
        name: str,
        reconciler: Reconciler,
        *,
        workers: int = DEFAULT_WORKERS,
        timeout: timedelta = DEFAULT_TIMEOUT,
        queue: WorkQueue[Key] | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name!r} has {workers} workers; it needs at least one")
        self.name = name
        self.queue: WorkQueue[Key] = queue or WorkQueue(name, controller=name)
        self._reconciler = reconciler
        self._workers = workers
        self._timeout = timeout.total_seconds()
        self._metrics = ControllerMetrics(name, workers, active=lambda: self.queue.in_progress)
        self._resync_from: list[Informer[Any]] = []

    # ---------------------------------------------------------------------------------------------------- what wakes

    def watch(
        self,
        informer: Informer[Any],
        handler: Handler,
        predicate: Predicate | None = None,
        *,
        resync: bool = False,
    ) -> None:
        """Enqueue what `handler` makes of each change that `predicate` lets pass.

        `resync`: the informer's objects are this controller's own, and all of them are looked at again every ten
        hours, at low priority, in case an event was missed by anybody's mistake.
        """

        def on_change(change: Change[Any]) -> None:
            if predicate is None or predicate(change):
                priority = LOW_PRIORITY if change.initial else NORMAL_PRIORITY
                for key in handler(change):
                    self.queue.add(key, priority=priority)

        informer.on_change(on_change)
        if resync:
            self._resync_from.append(informer)

    def enqueue(self, key: Key, *, priority: int = NORMAL_PRIORITY) -> None:
        """Have a key looked at soon, for reasons no watch can see."""
        self.queue.add(key, priority=priority)

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Work until `stop` is called and work in progress is finished. Cancelling ends work in progress as well."""
        async with asyncio.TaskGroup() as group:
            resync = group.create_task(self._resync(), name=f"{self.name}-resync")
            workers = [group.create_task(self._work(), name=f"{self.name}-{n}") for n in range(self._workers)]
            await asyncio.wait(workers)
            resync.cancel()

    def stop(self) -> None:
        """Start nothing new. Every key left behind is found again by the next run's first list."""
        self.queue.shut_down(discard=True)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_PERIOD.total_seconds() * random.uniform(0.9, 1.1))
            for informer in self._resync_from:
                for obj in informer.list():
                    self.queue.add(Key.of(obj), priority=LOW_PRIORITY)

    async def _work(self) -> None:
        # The context is this worker's own: what one pass binds, the next replaces, and nobody logs in between.
        structlog.contextvars.bind_contextvars(controller=self.name)
        while True:
            try:
                key, priority = await self.queue.get()
            except QueueShutDown:
                return
            started = time.monotonic()
            try:
                structlog.contextvars.bind_contextvars(namespace=key.namespace, name=key.name, reconcile_id=_new_id())
                await self._pass(key, priority)
            finally:
                self._metrics.seconds.observe(time.monotonic() - started)
                self.queue.done(key)

    async def _pass(self, key: Key, priority: int) -> None:
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                with tracing.span(
                    f"reconcile {self.name}", {"k8s.namespace.name": key.namespace, "k8s.object.name": key.name}
                ):
                    result = await _settled(self._reconciler.reconcile(key))
        except TerminalError as error:
            self._metrics.terminal.inc()
            self._count_failure()
            self.queue.forget(key)
            _log.error("reconcile failed for good; waiting for the next change", error=_told(error))
        except Exception as error:
            bug = isinstance(error, _BUGS)
            told = _told(error)
            if isinstance(error, TimeoutError) and deadline.expired():
                self._metrics.timeouts.inc()
                told = f"cancelled after {self._timeout:g} s"
            elif bug:
                self._metrics.panics.inc()
            self._count_failure()
            longest = error.retry_within if isinstance(error, KubeError) else None
            delay = self.queue.add_rate_limited(key, priority=priority, longest=longest)
            known = isinstance(error, (KubeError, OSError))
            _log.error("reconcile failed", error=told, retry_in=delay, exc_info=error if bug or not known else None)
        else:
            self._follow(key, priority, result or Result())

    def _follow(self, key: Key, priority: int, result: Result) -> None:
        if result.requeue_after is None:
            self.queue.forget(key)
            self._metrics.total["success"].inc()
        elif result.requeue_after > timedelta():
            self.queue.forget(key)
            self.queue.add_after(key, result.requeue_after, priority=priority)
            self._metrics.total["requeue_after"].inc()
        else:
            self.queue.add_rate_limited(key, priority=priority)
            self._metrics.total["requeue"].inc()

    def _count_failure(self) -> None:
        self._metrics.errors.inc()
        self._metrics.total["error"].inc()


async def _settled(work: Coroutine[Any, Any, Result | None]) -> Result | None:
    """The outcome of a pass; a cancellation that nobody asked for is a failure like any other."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise KubeError("the reconciler was cancelled from within") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _new_id() -> str:
    """A name to find the log lines of one pass by; it guards nothing, so the system's entropy is not asked."""
    return random.randbytes(8).hex()
