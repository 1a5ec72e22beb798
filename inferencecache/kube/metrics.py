"""The framework's own series, under controller-runtime's names and labels, so that existing dashboards work.

All of them live in prometheus-client's default registry and are told apart by their labels; a process with two
managers, as tests have, shares them. Products add their own metrics to the same registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

# Go clients expose no `_created` series; here they would double what a scrape carries.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_QUEUE_SECONDS: Final = tuple(10.0**exponent for exponent in range(-8, 4))
_RECONCILE_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9),
    *(1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0),
    *(40.0, 50.0, 60.0),
)

_QUEUE: Final = ("name", "controller")
_DEPTH = Gauge("workqueue_depth", "Current depth of the work queue.", (*_QUEUE, "priority"))
_ADDS = Counter("workqueue_adds_total", "Total number of adds handled by the work queue.", _QUEUE)
_WAITED = Histogram(
    "workqueue_queue_duration_seconds",
    "How long an item stays in the work queue before being requested.",
    _QUEUE,
    buckets=_QUEUE_SECONDS,
)
_WORKED = Histogram(
    "workqueue_work_duration_seconds",
    "How long processing an item from the work queue takes.",
    _QUEUE,
    buckets=_QUEUE_SECONDS,
)
_UNFINISHED = Gauge(
    "workqueue_unfinished_work_seconds",
    "Seconds of work in progress that work_duration has not observed yet.",
    _QUEUE,
)
_LONGEST = Gauge(
    "workqueue_longest_running_processor_seconds", "Seconds the longest running processor has been running.", _QUEUE
)
_RETRIES = Counter("workqueue_retries_total", "Total number of retries handled by the work queue.", _QUEUE)

_RECONCILES = Counter(
    "controller_runtime_reconcile_total", "Total number of reconciliations per controller.", ("controller", "result")
)
_ERRORS = Counter(
    "controller_runtime_reconcile_errors_total", "Total number of reconciliation errors.", ("controller",)
)
_TERMINAL = Counter(
    "controller_runtime_terminal_reconcile_errors_total",
    "Total number of reconciliation errors that are not retried.",
    ("controller",),
)
_PANICS = Counter(
    "controller_runtime_reconcile_panics_total",
    "Total number of reconciliations that ended in a programming error.",
    ("controller",),
)
_TIMEOUTS = Counter(
    "controller_runtime_reconcile_timeouts_total",
    "Total number of reconciliations cut at their deadline.",
    ("controller",),
)
_SECONDS = Histogram(
    "controller_runtime_reconcile_time_seconds",
    "Length of time per reconciliation.",
    ("controller",),
    buckets=_RECONCILE_SECONDS,
)
_WORKERS = Gauge(
    "controller_runtime_max_concurrent_reconciles", "Maximum number of concurrent reconciliations.", ("controller",)
)
_ACTIVE = Gauge("controller_runtime_active_workers", "Number of workers in use.", ("controller",))

LEADING = Gauge("leader_election_master_status", "1 while this process holds the lease, else 0.", ("name",))


class QueueMetrics:
    """The series of one work queue.

    `depth` holds how many items of each priority are ready. Plain numbers, read at a scrape: they change several times
    for each item that passes through, which a gauge would make dear.
    """

    def __init__(self, name: str, controller: str) -> None:
        self._labels = (name, controller)
        self.depth: dict[int, int] = _Depths(self._labels)
        self.adds = _ADDS.labels(*self._labels)
        self.retries = _RETRIES.labels(*self._labels)
        self.waited = _WAITED.labels(*self._labels)
        self.worked = _WORKED.labels(*self._labels)

    def measure_work(self, unfinished: Callable[[], float], longest: Callable[[], float]) -> None:
        """Ask these functions at each scrape for the seconds of all, and of the longest, work in progress."""
        _UNFINISHED.labels(*self._labels).set_function(unfinished)
        _LONGEST.labels(*self._labels).set_function(longest)


class _Depths(dict[int, int]):
    """A number per priority, each with its gauge from its first use on."""

    def __init__(self, labels: tuple[str, str]) -> None:
        super().__init__()
        self._labels = labels

    def __missing__(self, priority: int) -> int:
        self[priority] = 0
        _DEPTH.labels(*self._labels, str(priority)).set_function(lambda: self[priority])
        return 0


class ControllerMetrics:
    """The series of one controller; `total` has one counter per result.

    `active` tells at each scrape how many workers are at work.
    """

    def __init__(self, controller: str, workers: int, *, active: Callable[[], int]) -> None:
        self.total = {
            result: _RECONCILES.labels(controller, result)
            for result in ("success", "error", "requeue", "requeue_after")
        }
        self.errors = _ERRORS.labels(controller)
        self.terminal = _TERMINAL.labels(controller)
        self.panics = _PANICS.labels(controller)
        self.timeouts = _TIMEOUTS.labels(controller)
        self.seconds = _SECONDS.labels(controller)
        _ACTIVE.labels(controller).set_function(active)
        _WORKERS.labels(controller).set(workers)
