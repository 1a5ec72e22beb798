"""The work queue between watches and workers: which key to look at next.

An item is in at most one of three places, besides being worked on:

* **waiting**: to become ready at a later time; the earliest wish wins, and an `add` ends the wait.
* **ready**: to be handed out, highest priority first, first come first served within a priority. Adding it again
  changes nothing, except that a higher priority raises it.
* **dirty**: added, or due, while a worker has it. It becomes ready when that worker is `done`, so that one item is
  never worked on twice at once and no wish is lost.

Initial lists and resyncs come at `LOW_PRIORITY`, so that a change a user just made is not stuck behind ten thousand
objects in which nothing happened. Failures come back after an exponential delay per item.

The queue belongs to one event loop and is not thread-safe. Decisions take their time from `clock`, a monotonic one; the
loop's timers only wake whoever waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, NamedTuple, TypeVar

from inferencecache.kube.metrics import QueueMetrics

T = TypeVar("T", bound=Hashable)

NORMAL_PRIORITY: Final = 0
LOW_PRIORITY: Final = -100
_SLACK: Final = 64  # outlived entries of the waiting heap, beyond one per waiting item, before it is rebuilt


class QueueShutDown(Exception):
    """The queue was shut down and has nothing more to hand out."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay by number of failures in a row: `first`, twice that, … up to `longest`."""

    first: timedelta = timedelta(milliseconds=5)
    longest: timedelta = timedelta(seconds=1000)

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` earlier failures (0 for the first failure)."""
        # Far past any sensible bound, 2**n would overflow a float.
        return min(self.first.total_seconds() * 2.0 ** min(failures, 64), self.longest.total_seconds())


class Entry(NamedTuple, Generic[T]):
    """What `get` hands out; the priority is worth keeping when the item is put back."""

    item: T
    priority: int


@dataclass(slots=True)
class _Ready:
    priority: int
    order: int
    since: float


@dataclass(slots=True)
class _Waiting:
    due: float
    priority: int


class WorkQueue(Generic[T]):
    """A deduplicating, delaying, prioritised queue with per-item back-off.

    Every item taken with `get` or `get_nowait` must be given back with `done`.
    """

    def __init__(
        self,
        name: str,
        *,
        controller: str = "",
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._order = itertools.count()
        self._ready: dict[T, _Ready] = {}
        self._ready_heap: list[tuple[int, int, T]] = []
        self._waiting: dict[T, _Waiting] = {}
        self._waiting_heap: list[tuple[float, int, T]] = []
        self._dirty: dict[T, int] = {}
        self._working: dict[T, float] = {}
        self._failures: dict[T, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idlers: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._shut_down = False
        self._metrics = QueueMetrics(name, controller)
        self._metrics.measure_work(
            lambda: sum(self._clock() - since for since in self._working.values()),
            lambda: max((self._clock() - since for since in self._working.values()), default=0.0),
        )

    def __len__(self) -> int:
        """How many items are ready to be handed out."""
        self._promote_due()
        return len(self._ready)

    @property
    def in_progress(self) -> int:
        """How many items are being worked on."""
        return len(self._working)

    # ---------------------------------------------------------------------------------------------------- putting in

    def add(self, item: T, *, priority: int = NORMAL_PRIORITY) -> None:
        """Make an item ready now. Ignored once the queue is shut down."""
        if self._shut_down:
            return
        waiting = self._waiting.pop(item, None)
        if waiting is not None:
            priority = max(priority, waiting.priority)
        self._make_ready(item, priority)

    def add_after(self, item: T, delay: timedelta | float, *, priority: int = NORMAL_PRIORITY) -> None:
        """Make an item ready in `delay` (seconds, or a timedelta), unless something makes it ready earlier."""
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if self._shut_down:
            return
        if seconds <= 0:
            self.add(item, priority=priority)
            return
        self._metrics.retries.inc()
        due = self._clock() + seconds
        known = self._ready.get(item)
        if known is not None or item in self._dirty:  # ready is earlier than any delay
            self._make_ready(item, priority)
            return
        waiting = self._waiting.get(item)
        if waiting is not None:
            waiting.priority = max(waiting.priority, priority)
            if due >= waiting.due:
                return
            waiting.due = due
        else:
            self._waiting[item] = _Waiting(due, priority)
        heapq.heappush(self._waiting_heap, (due, next(self._order), item))
        if len(self._waiting_heap) > 2 * len(self._waiting) + _SLACK:
            self._waiting_heap = [(wait.due, next(self._order), item) for item, wait in self._waiting.items()]
            heapq.heapify(self._waiting_heap)
        self._arm()

    def add_rate_limited(self, item: T, *, priority: int = NORMAL_PRIORITY, longest: timedelta | None = None) -> float:
        """Put a failed item back after its back-off, at most `longest`; returns the delay in seconds."""
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        delay = self._backoff.delay(failures)
        if longest is not None:
            delay = min(delay, longest.total_seconds())
        self.add_after(item, delay, priority=priority)
        return delay

    def forget(self, item: T) -> None:
        """The item succeeded: its next failure waits the first delay again."""
        self._failures.pop(item, None)

    def failures(self, item: T) -> int:
        """How often the item was put back by `add_rate_limited` since it was last forgotten."""
        return self._failures.get(item, 0)

    # ---------------------------------------------------------------------------------------------------- taking out

    def get_nowait(self) -> Entry[T] | None:
        """Take the next item, or None if none is ready."""
        self._promote_due()
        while self._ready_heap:
            _, order, item = heapq.heappop(self._ready_heap)
            ready = self._ready.get(item)
            if ready is None or ready.order != order:
                continue  # an older place of an item that was handed out since
            del self._ready[item]
            now = self._clock()
            self._working[item] = now
            self._metrics.depth[ready.priority] -= 1
            self._metrics.waited.observe(now - ready.since)
            return Entry(item, ready.priority)
        return None

    async def get(self) -> Entry[T]:
        """Take the next item, waiting for one. Raises `QueueShutDown` when there will be none."""
        while True:
            entry = self.get_nowait()
            if entry is not None:
                return entry
            if self._shut_down and not self._dirty:
                raise QueueShutDown(self.name)
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            self._arm()
            try:
                await getter
            except asyncio.CancelledError:
                if getter.cancelled():
                    with contextlib.suppress(ValueError):  # a wake-up may have passed it over already
                        self._getters.remove(getter)
                else:
                    self._wake_one()  # the wake-up was for an item that somebody must take
                raise

    def done(self, item: T) -> None:
        """The worker that took the item is through with it."""
        self._metrics.worked.observe(self._clock() - self._working.pop(item))
        priority = self._dirty.pop(item, None)
        if priority is not None:
            self._make_ready(item, priority, counted=True)
        if self._shut_down:
            self._end_waits()

    # ------------------------------------------------------------------------------------------------------ shutdown

    def shut_down(self, *, discard: bool = False) -> None:
        """Take no more items. What is ready or dirty is still handed out, unless `discard`; what waits is dropped.

        Whoever is in `get` when nothing is left gets `QueueShutDown`. `discard` suits a process that ends: its
        successor lists everything anyway, and only work in progress is worth waiting for.
        """
        self._promote_due()
        self._shut_down = True
        self._waiting.clear()
        self._waiting_heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if discard:
            for ready in self._ready.values():
                self._metrics.depth[ready.priority] -= 1
            self._ready.clear()
            self._ready_heap.clear()
            self._dirty.clear()
        self._end_waits()

    async def drained(self) -> None:
        """Wait until the queue is shut down, nothing is ready and nothing is being worked on."""
        if self._shut_down and not self._ready and not self._working:
            return
        idler = asyncio.get_running_loop().create_future()
        self._idlers.append(idler)
        try:
            await idler
        finally:
            if idler in self._idlers:
                self._idlers.remove(idler)

    # ----------------------------------------------------------------------------------------------------- internals

    def _make_ready(self, item: T, priority: int, *, counted: bool = False) -> None:
        if item in self._working:
            if item not in self._dirty:
                self._metrics.adds.inc()
            self._dirty[item] = max(priority, self._dirty.get(item, priority))
            return
        ready = self._ready.get(item)
        if ready is not None:
            if priority > ready.priority:
                self._metrics.depth[ready.priority] -= 1
                self._metrics.depth[priority] += 1
                ready.priority = priority
                heapq.heappush(self._ready_heap, (-priority, ready.order, item))
            return
        if not counted:
            self._metrics.adds.inc()
        order = next(self._order)
        self._ready[item] = _Ready(priority, order, self._clock())
        heapq.heappush(self._ready_heap, (-priority, order, item))
        self._metrics.depth[priority] += 1
        self._wake_one()

    def _promote_due(self) -> None:
        if not self._waiting_heap:
            return
        now = self._clock()
        while self._waiting_heap and self._waiting_heap[0][0] <= now:
            due, _, item = heapq.heappop(self._waiting_heap)
            waiting = self._waiting.get(item)
            if waiting is not None and waiting.due == due:
                del self._waiting[item]
                self._make_ready(item, waiting.priority)

    def _arm(self) -> None:
        """Have the loop wake us when the earliest waiting item is due, if anybody waits for it."""
        if not self._getters or not self._waiting_heap:
            return
        due = self._waiting_heap[0][0]
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._promote_due()
        self._arm()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _end_waits(self) -> None:
        if not self._dirty:
            while self._getters:
                self._wake_one()
        if not self._ready and not self._working:
            for idler in self._idlers:
                if not idler.done():
                    idler.set_result(None)
            self._idlers.clear()
