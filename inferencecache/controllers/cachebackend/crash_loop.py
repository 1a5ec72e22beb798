"""EngineCompatibility: an engine that was wired to the cache does not get up (spec 05 §3.7).

What is seen is a crash loop after admission added a connector. Why is a guess, so the message names the likely cause
and says what else it may be. Advice only: the engine is its owner's.
"""

from __future__ import annotations

from typing import Final

from inferencecache.adapters.pods import SUBSCRIBER
from inferencecache.api import constants as c
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Verdict
from inferencecache.kube.kinds import ContainerStatus, Pod

CRASH_LOOP: Final = "CrashLoopBackOff"


def engine_compatibility(facts: Facts, verdict: Verdict) -> Verdict:
    """Name the first engine, by name, that is stuck; nothing if there is none."""
    for pod in sorted(facts.injected, key=lambda pod: pod.metadata.name):
        engine = engine_of(pod, facts.engine_container)
        if engine is not None and engine.state.waiting is not None and engine.state.waiting.reason == CRASH_LOOP:
            return verdict.saying(c.ENGINE_COMPATIBILITY, _stuck(pod, engine))
    return verdict.saying(c.ENGINE_COMPATIBILITY, None)


def engine_of(pod: Pod, name: str) -> ContainerStatus | None:
    """The engine's container: the one of that name, or else the only one beside our own; None if that is unclear."""
    statuses = pod.status.container_statuses
    named = [one for one in statuses if one.name == name]
    others = named or [one for one in statuses if one.name != SUBSCRIBER]
    return others[0] if len(others) == 1 else None


def _stuck(pod: Pod, engine: ContainerStatus) -> Claim:
    text = (
        f"container {engine.name} of Pod {pod.metadata.name} is in {CRASH_LOOP} after a KV connector was wired; read "
        "its log. Models with hybrid attention (gated DeltaNet, Mamba, Jamba, Falcon-H, Granite hybrid and others) "
        "cannot start with a connector: set spec.integration.mode to EventsOnly for those. It may as well be the "
        f"image, the command, a missing Secret or memory. {c.ANNOTATION_SKIP_INJECT} would let the engine start, but "
        "would take it out of cache-aware routing, too"
    )
    return Claim("False", r.INJECTED_ENGINE_CRASH_LOOPING, text)
