"""What the reconciler counts per backend (spec 05 §1.6). The series of a backend go with it (decision F13)."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Final

from prometheus_client import Counter

from inferencecache.controllers.cachebackend.outcomes import FAILED, OK, SKIPPED, STAGES, Answered
from inferencecache.kube.resource import Key

PROBE_RESULTS: Final = Counter(
    "inferencecache_backend_probe_result_total",
    "Outcomes of the functional probe, by stage.",
    ["backend", "stage", "result"],
)
CASCADES: Final = Counter(
    "inferencecache_backend_server_restart_cascades_total",
    "How often the engines of a backend were rolled because its cache server was replaced.",
    ["namespace", "backend", "reason"],
)

_RESULTS: Final = (OK, FAILED, SKIPPED)
_INSTANCE_CHANGED: Final = "server_instance_changed"


def count_probe(key: Key, answer: Answered) -> None:
    """Count each stage; a result that nobody knows counts as failed."""
    for stage, result in zip(STAGES, answer.results, strict=True):
        PROBE_RESULTS.labels(str(key), stage, result if result in _RESULTS else FAILED).inc()


def count_cascade(key: Key) -> None:
    """Count a cascade, whether or not there were engines to roll."""
    CASCADES.labels(key.namespace, key.name, _INSTANCE_CHANGED).inc()


def forget(key: Key) -> None:
    """Remove the series of a backend that is gone."""
    for stage, result in product(STAGES, _RESULTS):
        with suppress(KeyError):
            PROBE_RESULTS.remove(str(key), stage, result)
    with suppress(KeyError):
        CASCADES.remove(key.namespace, key.name, _INSTANCE_CHANGED)
