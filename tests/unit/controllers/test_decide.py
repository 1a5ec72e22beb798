"""The status tables: rollout, first event, trouble, address, Progressing, latches, and Events for the steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.decide import decide, progressing
from inferencecache.controllers.cachebackend.engines import Matched, match
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Rollout, Trouble, Verdict
from inferencecache.controllers.cachebackend.narrate import narrate
from inferencecache.controllers.cachebackend.observe import EngineDeployment, Engines, Observation
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.controllers.cachebackend.rivals import Rivals
from inferencecache.controllers.cachebackend.status import next_status
from inferencecache.kube.codec import decoder_for
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.status import status_patch
from tests.unit.controllers.backends import MANAGED, backend

NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
NOBODY: Any = None
GATE_OFF = {"inferencecache.io/require-kv-events": "false"}
UP = Rollout(wanted=1, updated=1, available=1, fresh=True)


def told(verdict: Verdict) -> tuple[str, str, str, str]:
    assert verdict.ready is not None
    assert verdict.degraded is not None
    return verdict.ready.status, verdict.ready.reason, verdict.degraded.status, verdict.degraded.reason


@pytest.mark.parametrize(
    ("rollout", "status", "reason", "degraded"),
    [
        (None, "False", "RolloutInProgress", "False"),
        (Rollout(0, 0, 0, True), "False", "ScaledToZero", "False"),
        (Rollout(2, 2, 2, False), "False", "RolloutInProgress", "False"),
        (Rollout(2, 1, 2, True), "False", "RolloutInProgress", "False"),
        (Rollout(2, 2, 1, True), "False", "ReplicasUnavailable", "True"),
        (Rollout(2, 2, 2, True), "True", "BackendReady", "False"),
    ],
)
def test_readiness_follows_the_rollout(rollout: Rollout | None, status: str, reason: str, degraded: str) -> None:
    verdict = decide(Facts(backend(annotations=GATE_OFF, remoteStorage=MANAGED), Path.MANAGED, NOW, rollout))
    assert told(verdict)[:3] == (status, reason, degraded)
    assert verdict.look_again == timedelta(seconds=30)


def published(reason: str) -> list[dict[str, Any]]:
    return [{"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": ""}]


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({"firstKVEventObservedAt": "2026-03-01T00:00:00Z"}, ("True", "KVEventsObserved", "False", "NotDegraded")),
        (
            {"indexParticipation": {"prefixCount": 1, "lastEventAt": "2026-03-01T00:00:00Z"}},
            ("True", "KVEventsObserved", "False", "NotDegraded"),
        ),
        ({}, ("False", "AwaitingFirstKVEvent", "False", "NotDegraded")),
        ({"firstAvailableAt": "2026-03-02T07:56:00Z"}, ("False", "AwaitingFirstKVEvent", "False", "NotDegraded")),
        ({"firstAvailableAt": "2026-03-02T07:55:00Z"}, ("False", "NoKVEventsObserved", "True", "NoKVEventsObserved")),
        (
            {"conditions": published("NoKVEventsObserved")},
            ("False", "NoKVEventsObserved", "True", "NoKVEventsObserved"),
        ),
        (
            {"conditions": published("NoKVEventsObserved"), "endpoint": "left:1"},
            ("False", "AwaitingFirstKVEvent", "False", "NotDegraded"),
        ),
    ],
)
def test_the_first_event_gate(status: dict[str, Any], want: tuple[str, str, str, str]) -> None:
    verdict = decide(Facts(backend(status=status), Path.HOST_ONLY, NOW))
    assert told(verdict) == want


def test_the_wait_for_the_first_event_ends_exactly_at_the_deadline() -> None:
    status = {"firstAvailableAt": "2026-03-02T07:56:00Z"}
    assert decide(Facts(backend(status=status), Path.EVENTS_ONLY, NOW)).look_again == timedelta(minutes=1)


def test_trouble_with_a_child_outranks_a_good_rollout_and_holds_the_generation_back() -> None:
    """Decisions F1 and F16."""
    facts = Facts(
        backend(annotations=GATE_OFF, generation=3, status={"observedGeneration": 2}),
        Path.MANAGED,
        NOW,
        UP,
        Trouble("ChildConflict", "Service ns/kv exists"),
    )
    verdict = decide(facts)
    assert told(verdict)[:2] == ("False", "ChildConflict")
    status = next_status(facts, verdict, Matched(None, ""))
    assert status["observedGeneration"] == 2
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {2}


@pytest.mark.parametrize(
    ("endpoint", "status", "reason"),
    [
        (None, "False", "ExternalEndpointMissing"),
        ("  ", "False", "ExternalEndpointMissing"),
        ("redis://kv:1", "False", "ExternalEndpointInvalid"),
        ("kv", "False", "ExternalEndpointInvalid"),
        (" lm://kv:65432 ", "True", "ExternalEndpointAccepted"),
    ],
)
def test_an_external_store_is_judged_by_its_address(endpoint: str | None, status: str, reason: str) -> None:
    storage = {"provider": "LMCacheServer", "ownership": "External", "endpoint": endpoint}
    facts = Facts(backend(remoteStorage=storage), Path.EXTERNAL, NOW)
    verdict = decide(facts)
    assert verdict.ready is not None
    assert (verdict.ready.status, verdict.ready.reason, verdict.degraded) == (status, reason, None)
    assert next_status(facts, verdict, Matched(None, "")).get("endpoint", "") == (endpoint or "").strip()


@pytest.mark.parametrize(
    ("status", "reason", "want"),
    [
        ("True", "BackendReady", ("False", "Synced")),
        ("False", "RolloutInProgress", ("True", "RolloutInProgress")),
        ("False", "AwaitingFirstKVEvent", ("True", "AwaitingFirstKVEvent")),
        ("False", "ReplicasUnavailable", ("False", "Degraded")),
        ("False", "ScaledToZero", ("False", "ScaledToZero")),
        ("False", "Unheard", ("False", "Unheard")),
    ],
)
def test_progressing_follows_ready(status: Any, reason: str, want: tuple[str, str]) -> None:
    claim = progressing(Path.MANAGED, Claim(status, reason, ""))
    assert (claim.status, claim.reason) == want


def test_the_same_again_is_no_patch_and_leaving_clears_with_nulls() -> None:
    facts = Facts(backend(annotations=GATE_OFF), Path.MANAGED, NOW, UP)
    first = next_status(facts, decide(facts), Matched(2, ""), service_endpoint="kv:1")
    later = Facts(backend(annotations=GATE_OFF, status=first), Path.MANAGED, NOW + timedelta(hours=1), UP)
    assert status_patch(first, next_status(later, decide(later), Matched(2, ""), service_endpoint="kv:1")) == {}
    gone = Facts(later.backend, Path.UNMANAGED, NOW)
    patch = status_patch(first, next_status(gone, decide(gone), Matched(None, "")))
    assert patch == {"endpoint": None, "conditions": None, "firstAvailableAt": None, "matchedEnginePods": None}


def status_of(ready: str, reason: str, degraded: str, **more: Any) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": ready, "reason": reason},
        {"type": "Degraded", "status": degraded, "reason": reason if degraded == "True" else "NotDegraded"},
    ]
    return {"conditions": conditions, **more}


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        ({}, status_of("False", "RolloutInProgress", "False"), []),
        (status_of("True", "BackendReady", "False"), status_of("True", "BackendReady", "False"), []),
        (
            status_of("True", "BackendReady", "False"),
            status_of("False", "ReplicasUnavailable", "True"),
            ["BackendDegraded"],
        ),
        (
            status_of("False", "ReplicasUnavailable", "True"),
            status_of("True", "BackendReady", "False"),
            ["BackendRecovered"],
        ),
        ({}, status_of("False", "AwaitingFirstKVEvent", "False"), ["AwaitingFirstKVEvent"]),
        (
            status_of("False", "AwaitingFirstKVEvent", "False"),
            status_of("False", "NoKVEventsObserved", "True"),
            ["NoKVEventsObserved"],
        ),
        (
            status_of("False", "NoKVEventsObserved", "True"),
            status_of("True", "KVEventsObserved", "False", firstKVEventObservedAt="t"),
            ["KVEventsObserved"],
        ),
        ({}, {"failOpen": False}, ["FailClosedEnabled"]),
        ({"failOpen": False}, {"failOpen": True}, ["FailOpenRestored"]),
        ({}, status_of("False", "ChildConflict", "False"), ["ChildConflict"]),
    ],
)
def test_only_steps_are_told(before: dict[str, Any], after: dict[str, Any], want: list[str]) -> None:
    assert [one.reason for one in narrate(before, after)] == want


def pod(phase: str = "Running") -> Pod:
    return decoder_for(Pod)(b'{"metadata":{"name":"p"},"status":{"phase":"%s"}}' % phase.encode())


def engines(pods: int, wanted: int | None, *, phase: str = "Running") -> Engines:
    body = b'{"spec":{"replicas":%d,"template":{"metadata":{"labels":{"a":"b"}}}}}' % (wanted or 0)
    deployments = (decoder_for(EngineDeployment)(body),) if wanted is not None else ()
    return Engines((pod(phase),) * pods, deployments)


@pytest.mark.parametrize(
    ("found", "count", "says", "seconds"),
    [
        (engines(2, 2), 2, False, 30),
        (engines(1, 2), 1, False, 5),
        (engines(2, 2, phase="Succeeded"), 2, False, 5),
        (engines(0, None), 0, True, 30),
        (engines(0, 2), 0, True, 5),
        (engines(0, 0), 0, False, 30),
    ],
)
def test_matched_pods(found: Engines, count: int | None, says: bool, seconds: int) -> None:
    seen = Observation(backend(engineSelector={"matchLabels": {"a": "b"}}), NOW, found, ())
    result = match(seen)
    assert (result.count, bool(result.message), result.newly_unmatched) == (count, says, says)
    assert result.look_again == timedelta(seconds=seconds)
    if says:
        assert "spec.engineSelector.matchLabels={a:b}" in result.message


def rivals_of(subject: CacheBackend, *others: CacheBackend) -> tuple[str, ...]:
    informer: Informer[CacheBackend] = Informer(NOBODY, CacheBackend)
    rivals, feed = Rivals(informer), informer._content
    for number, one in enumerate((subject, *others)):
        metadata = one.metadata.model_copy(update={"resource_version": str(number + 1)})
        feed.put(one.model_copy(update={"metadata": metadata}))
    return rivals.of(subject)


def test_the_losing_backend_says_who_wins() -> None:
    """Decision A11."""
    selector = {"matchLabels": {"a": "b"}}
    loser, winner = backend(name="b", engineSelector=selector), backend(name="a", engineSelector=selector)
    assert rivals_of(winner, loser) == ()
    result = match(Observation(loser, NOW, engines(1, 1), rivals_of(loser, winner)))
    assert "CacheBackend a" in result.message
    assert not result.newly_unmatched


def test_a_backend_being_deleted_still_comes_first() -> None:
    """Admission wires nothing in its place (decisions A5, F2), so the one behind it must say why."""
    selector = {"matchLabels": {"a": "b"}}
    winner = backend(name="a", deleted="2026-03-02T07:59:00Z", engineSelector=selector)
    assert rivals_of(backend(name="b", engineSelector=selector), winner) == ("a",)
