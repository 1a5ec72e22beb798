"""The series of the webhooks: controller-runtime's names and labels, and one of our own for Pod admissions.

`inferencecache_pod_admissions_total` says what became of each Pod and why, with a short, closed set of reasons
(decision A12): who asks "why is my Pod not wired" starts here. `inferencecache_kvcache_pod_admissions_total` does so
for the Pods that ask for a pool.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_LATENCY = Histogram(
    "controller_runtime_webhook_latency_seconds",
    "How long processing an admission request takes.",
    ("webhook",),
    buckets=_SECONDS,
)
_REQUESTS = Counter(
    "controller_runtime_webhook_requests_total", "Admission requests by HTTP status code.", ("webhook", "code")
)
_IN_FLIGHT = Gauge("controller_runtime_webhook_requests_in_flight", "Admission requests being processed.", ("webhook",))
PANICS: Final = Counter(
    "controller_runtime_webhook_panics_total", "Admission requests that ended in a programming error."
)
POD_ADMISSIONS: Final = Counter(
    "inferencecache_pod_admissions_total", "Pods admitted, by outcome and short reason.", ("outcome", "reason")
)
POOL_POD_ADMISSIONS: Final = Counter(
    "inferencecache_kvcache_pod_admissions_total",
    "Pods that ask for a KV cache pool, by outcome and by what stood against it.",
    ("outcome", "reason"),
)


class WebhookMetrics:
    """The series of one webhook path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.latency = _LATENCY.labels(path)
        self.in_flight = _IN_FLIGHT.labels(path)
        self._codes = {code: _REQUESTS.labels(path, str(code)) for code in (200, 500)}

    def answered(self, code: int, seconds: float) -> None:
        """Count one answer with HTTP status `code` that took `seconds`."""
        self.latency.observe(seconds)
        counter = self._codes.get(code)
        if counter is None:
            counter = self._codes[code] = _REQUESTS.labels(self._path, str(code))
        counter.inc()
