"""How many engine Pods a backend selects, what to say when there are none, and when to look again (spec 05 §3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from inferencecache.api.cachebackend import CacheBackend, CacheBackendStatus
from inferencecache.controllers.cachebackend.observe import EngineDeployment, Observation

STEADY: Final = timedelta(seconds=30)
CHURN: Final = timedelta(seconds=5)

_UNMATCHED: Final = "no Pod of this namespace matches"
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Matched:
    """The two status fields as they should be, and what follows.

    `count` None means not counted; `message` empty means nothing to say. `newly_unmatched` asks for an Event once the
    status is written.
    """

    count: int | None
    message: str
    newly_unmatched: bool = False
    look_again: timedelta | None = None


def match(seen: Observation) -> Matched:
    """Judge what the selector finds, against what the status says so far."""
    backend, status = seen.backend, seen.backend.status
    if seen.engines is None:
        # Looking again retries a clearing that fails to be written.
        return Matched(None, "", look_again=STEADY if status.matched_engine_pods is not None else None)
    pods, deployments = seen.engines.pods, seen.engines.deployments
    if pods is None:
        return Matched(status.matched_engine_pods, status.engine_selector_message or "", look_again=STEADY)
    wanted = None if deployments is None else _wanted_pods(backend, deployments)
    churning = wanted is not None and wanted != sum(pod.status.phase not in _FINISHED for pod in pods)
    look_again = CHURN if churning else STEADY
    echo = selector_text(backend.selector)
    said_before = _UNMATCHED in (status.engine_selector_message or "")
    if pods:
        unmatched = False
    elif deployments is None:
        unmatched = said_before
    else:
        unmatched = wanted is None or wanted > 0
    sentences = [f"{echo}: {_UNMATCHED}"] if unmatched else []
    if seen.rivals:
        sentences.append(
            f"{echo} overlaps the selector of CacheBackend {', '.join(seen.rivals)}: "
            "Pods that match both are wired to the first by name, not to this one"
        )
    return Matched(
        count=len(pods),
        message="; ".join(sentences),
        newly_unmatched=unmatched and deployments is not None and not _was_unmatched(status, said_before),
        look_again=look_again,
    )


def selector_text(selector: Mapping[str, str]) -> str:
    """The selector as the message must echo it (spec 01 §3)."""
    pairs = ",".join(f"{key}:{value}" for key, value in sorted(selector.items()))
    return f"spec.engineSelector.matchLabels={{{pairs}}}"


def _was_unmatched(status: CacheBackendStatus, said_before: bool) -> bool:
    return status.matched_engine_pods == 0 and said_before


def _wanted_pods(backend: CacheBackend, deployments: tuple[EngineDeployment, ...]) -> int | None:
    """The replicas of the Deployments whose Pods the selector matches; None if there is no such Deployment."""
    matching = [one for one in deployments if backend.selects(one.spec.template.metadata.labels)]
    return sum(one.spec.replicas for one in matching) if matching else None
