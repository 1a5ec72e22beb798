"""What becomes of a programming error inside a handler: a count, one log line, and an answer without a hint.

A lookup is an optimisation of somebody else's request, so its caller must never see it fail. The error is told once per
place it comes from: a bug that every request meets must not bury the log.
"""

from __future__ import annotations

import traceback

import structlog

from inferencecache.server.metrics import ServerMetrics

_log = structlog.get_logger(__name__)


class Faults:
    """Keeps count of errors nobody expected."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._told: set[tuple[str, str, int | None]] = set()

    def record(self, rpc: str, error: Exception) -> None:
        """Count `error`, and log it unless one from the same line of code was logged before."""
        self._metrics.internal_errors.labels(rpc).inc()
        frames = traceback.extract_tb(error.__traceback__)
        place = (rpc, frames[-1].filename, frames[-1].lineno) if frames else (rpc, type(error).__name__, None)
        if place not in self._told:
            self._told.add(place)
            _log.error("internal_error", rpc=rpc, exc_info=error)
