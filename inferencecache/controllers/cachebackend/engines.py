"""How many engine Pods a backend selects, what to say when there are none, and when to look again (spec 05 §3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from inferencecache.api.cachebackend import CacheBackendStatus
from inferencecache.controllers.cachebackend.observe import Observation

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
    wanted = sum(one.spec.replicas for one in deployments) if deployments else None
    churning = wanted is not None and wanted != sum(pod.status.phase not in _FINISHED for pod in pods)
    echo = selector_text(backend.selector)
    unmatched = not pods and wanted != 0
    sentences = [f"{echo}: {_UNMATCHED}"] if unmatched else []
    if seen.rivals:
        sentences.append(
            f"{echo} overlaps the selector of CacheBackend {', '.join(seen.rivals)}: "
            "Pods that match both are wired to the first by name, not to this one"
        )
    return Matched(
        count=len(pods),
        message="; ".join(sentences),
        newly_unmatched=unmatched and not _was_unmatched(status),
        look_again=CHURN if churning else STEADY,
    )


def selector_text(selector: Mapping[str, str]) -> str:
    """The selector as the message must echo it (spec 01 §3)."""
    pairs = ",".join(f"{key}:{value}" for key, value in sorted(selector.items()))
    return f"spec.engineSelector.matchLabels={{{pairs}}}"


def _was_unmatched(status: CacheBackendStatus) -> bool:
    return status.matched_engine_pods == 0 and _UNMATCHED in (status.engine_selector_message or "")
