"""The tables of the functional probe, the kernel checks, the crash loop and the second tier (spec 05 §3.4–§3.7)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.decide import decide
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Rollout, Trouble
from inferencecache.controllers.cachebackend.functional_probe import judged
from inferencecache.controllers.cachebackend.outcomes import Answered, Outcome, Unanswered
from inferencecache.controllers.cachebackend.plan import Path
from inferencecache.controllers.cachebackend.text import LIMIT_BYTES, shortened
from inferencecache.kube.kinds import Pod
from tests.unit.controllers.backends import MANAGED, backend
from tests.unit.controllers.engine_pods_of import checked, engine_pod

NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
GATE_OFF = {"inferencecache.io/require-kv-events": "false"}
UP = Rollout(wanted=1, updated=1, available=1, fresh=True)
DOWN = Rollout(wanted=1, updated=1, available=0, fresh=True)
SELECTOR = {"matchLabels": {"app": "e"}}
PROBE, KERNELS = "FunctionalProbeOK", "EngineKernelsHealthy"


def managed(*, stored: tuple[str, str] | None = None, annotations: dict[str, str] | None = None) -> CacheBackend:
    """A managed backend without the first-event gate; `stored` is the status and reason of its FunctionalProbeOK."""
    conditions = [] if stored is None else [{"type": PROBE, "status": stored[0], "reason": stored[1], "message": "was"}]
    given = {**GATE_OFF, **(annotations or {})}
    return backend(annotations=given, status={"conditions": conditions}, remoteStorage=MANAGED, engineSelector=SELECTOR)


def judge(one: CacheBackend, *, rollout: Rollout = UP, path: Path = Path.MANAGED, **more: Any) -> Any:
    return decide(Facts(one, path, NOW, rollout, **more))


ALL_OK = Answered(("ok", "ok", "skipped"))
NO_T2 = Answered(("ok", "ok", "failed"), (("t2", " "), ("t2", "put refused")))
LOST = Unanswered("HTTP 503")
UNTOUCHED = "untouched"


@pytest.mark.parametrize(
    ("stored", "outcome", "condition", "ready"),
    [
        (None, ALL_OK, ("True", "ProbeOK"), ("True", "BackendReady")),
        (("False", "ProbeT2Failed"), ALL_OK, ("True", "ProbeOK"), ("True", "BackendReady")),
        (None, NO_T2, ("False", "ProbeT2Failed"), ("False", "ProbeT2Failed")),
        (None, LOST, ("Unknown", "ProbeError"), ("True", "BackendReady")),
        (("True", "ProbeOK"), LOST, ("Unknown", "ProbeError"), ("True", "BackendReady")),
        (("False", "ProbeIngestFailed"), LOST, UNTOUCHED, ("False", "ProbeIngestFailed")),
        (("False", "ProbeError"), LOST, UNTOUCHED, ("False", "ProbeError")),
        (("False", "ProbeIngestFailed"), None, UNTOUCHED, ("False", "ProbeIngestFailed")),
        (("True", "ProbeOK"), None, UNTOUCHED, ("True", "BackendReady")),
        (None, None, UNTOUCHED, ("True", "BackendReady")),
    ],
)
def test_what_the_last_probe_does_to_readiness(
    stored: tuple[str, str] | None, outcome: Outcome | None, condition: Any, ready: tuple[str, str]
) -> None:
    """Spec 05 §3.4, seed: functional-probe gate; a failed stage sticks until an answer says otherwise."""
    verdict = judge(managed(stored=stored), probing=True, probed=outcome)
    assert said(verdict.others.get(PROBE, UNTOUCHED)) == condition
    assert (verdict.ready.status, verdict.ready.reason) == ready
    assert verdict.degraded.reason == "NotDegraded", "Degraded speaks of the workload only"
    assert verdict.probe


def said(claim: Any) -> Any:
    return (claim.status, claim.reason) if isinstance(claim, Claim) else claim


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (("failed", "failed", "failed"), "ProbeIngestFailed"),
        (("ok", "failed", "skipped"), "ProbeRoutingFailed"),
        (("", "ok", "failed"), "ProbeT2Failed"),
        (("", "", ""), "ProbeError"),
        (("ok", "fine", "ok"), "ProbeError"),
        (("skipped", "skipped", "skipped"), "ProbeOK"),
    ],
)
def test_the_first_failed_stage_names_the_reason(results: tuple[str, str, str], reason: str) -> None:
    assert judged(Answered(results)).reason == reason


def test_the_servers_own_words_are_shown_and_a_blank_one_is_not() -> None:
    assert judged(NO_T2).message == "put refused"
    assert judged(Answered(("failed", "ok", "ok"))).message


@pytest.mark.parametrize("value", ["True", "1", "yes", " true", ""])
def test_only_the_exact_text_bypasses_the_probe(value: str) -> None:
    key = "inferencecache.io/skip-functional-probe"
    assert judge(managed(annotations={key: value}), probing=True).probe
    bypassed = judge(managed(annotations={key: "true"}), probing=True, probed=NO_T2)
    assert said(bypassed.others[PROBE]) == ("True", "ProbeBypassed")
    assert bypassed.ready.true
    assert not bypassed.probe


def test_what_is_not_up_is_not_probed_and_keeps_what_was_said() -> None:
    for facts in ({"rollout": DOWN}, {"trouble": Trouble("ChildConflict", "x")}):
        verdict = judge(managed(stored=("False", "ProbeT2Failed")), probing=True, probed=ALL_OK, **facts)
        assert (PROBE in verdict.others, verdict.probe) == (False, False)


def test_without_a_probe_its_condition_goes_even_from_what_is_not_up() -> None:
    assert judge(managed(), rollout=DOWN).others[PROBE] is None


OK = {"exitCode": 0, "message": "OK\n"}
FAIL = {"exitCode": 0, "message": " FAIL: libcudart"}
ODD = {"exitCode": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        ([], None),
        ([engine_pod()], None),
        ([checked("a", OK), checked("b", OK, last=True)], ("True", "KernelsHealthy")),
        ([checked("a", OK), checked("b", None)], ("Unknown", "KernelCheckPending")),
        ([checked("a", ODD), checked("b", None)], ("Unknown", "KernelCheckError")),
        ([checked("a", {"exitCode": 1, "message": "OK"})], ("Unknown", "KernelCheckError")),
        ([checked("a", FAIL), checked("b", ODD), checked("c", None)], ("False", "KernelLoadFailed")),
        ([checked("a", FAIL, last=True)], ("False", "KernelLoadFailed")),
    ],
)
def test_the_worst_kernel_check_decides(pods: list[Pod], want: tuple[str, str] | None) -> None:
    """Spec 05 §3.5."""
    verdict = judge(managed(), injected=tuple(pods))
    assert said(verdict.others[KERNELS]) == want
    assert verdict.ready.true, "report-only Pods never take readiness"


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (checked("a", FAIL, strict=True), "EngineKernelDegraded"),
        (checked("a", ODD, strict=True), "ReplicasUnavailable"),
        (checked("a", FAIL), "ReplicasUnavailable"),
    ],
)
def test_a_failure_in_a_strict_pod_outranks_every_other_reason(pod: Pod, reason: str) -> None:
    annotated = managed(annotations={"inferencecache.io/lmcache-kernel-check": "strict"})
    verdict = judge(annotated, rollout=DOWN, injected=(pod,))
    assert (verdict.ready.status, verdict.ready.reason) == ("False", reason)
    assert verdict.degraded.reason == "ReplicasUnavailable"


def test_trouble_with_a_child_outranks_even_the_kernels() -> None:
    """Decision F16: the condition says which child and why."""
    trouble = Trouble("ChildConflict", "Service ns/kv")
    assert (
        judge(managed(), trouble=trouble, injected=(checked("a", FAIL, strict=True),)).ready.reason == "ChildConflict"
    )


def test_only_pods_of_the_present_selector_are_asked_for_their_kernels() -> None:
    unselecting = backend(annotations=GATE_OFF, remoteStorage=MANAGED)
    assert judge(unselecting, injected=(checked("a", FAIL),)).others[KERNELS] is None


def containers(**waiting: str) -> Pod:
    statuses = [{"name": name, "state": {"waiting": {"reason": reason}}} for name, reason in waiting.items()]
    return engine_pod(status={"containerStatuses": statuses})


LOOP = "CrashLoopBackOff"


@pytest.mark.parametrize(
    ("waiting", "stuck"),
    [
        ({"vllm": LOOP}, True),
        ({"vllm": "ImagePullBackOff"}, False),
        ({"vllm": "", "kvevent-subscriber": LOOP}, False),
        ({"vllm": "", "istio-proxy": LOOP}, False),
        ({"engine": LOOP}, True),
        ({"engine": LOOP, "kvevent-subscriber": ""}, True),
        ({"engine": LOOP, "istio-proxy": ""}, False),
        ({"kvevent-subscriber": LOOP}, False),
        ({}, False),
    ],
)
def test_whose_crash_loop_counts(waiting: dict[str, str], stuck: bool) -> None:
    """Spec 05 §3.7; the selector plays no part."""
    facts = {"injected": (containers(**waiting),), "engine_container": "vllm"}
    verdict = judge(backend(annotations=GATE_OFF, remoteStorage=MANAGED), **facts)
    want = ("False", "InjectedEngineCrashLooping") if stuck else None
    assert said(verdict.others["EngineCompatibility"]) == want
    assert verdict.ready.true


@pytest.mark.parametrize(
    ("rate", "want"), [(None, None), ("0", ("True", "T2ZeroHitRate")), ("0.25", ("False", "T2Serving"))]
)
def test_the_second_tier(rate: str | None, want: tuple[str, str] | None) -> None:
    """Spec 05 §3.6."""
    status = {"indexParticipation": {"prefixCount": 0, "t2HitRate": rate}}
    verdict = judge(backend(annotations=GATE_OFF, remoteStorage=MANAGED, status=status))
    assert said(verdict.others["T2Degraded"]) == want
    assert verdict.ready.true


@pytest.mark.parametrize("path", [Path.EXTERNAL, Path.EVENTS_ONLY, Path.UNMANAGED])
def test_where_nothing_is_offloaded_nothing_is_said_of_kernels_and_crashes(path: Path) -> None:
    verdict = judge(managed(), path=path, injected=(checked("a", FAIL, strict=True), containers(vllm=LOOP)))
    assert not verdict.others
    assert verdict.ready is None or verdict.ready.reason != "EngineKernelDegraded"


def test_a_missed_first_event_sticks_while_failed_kernels_speak_through_ready() -> None:
    """Spec 05 §12 row 4."""
    stored = [
        {"type": "Ready", "status": "False", "reason": "EngineKernelDegraded"},
        {"type": "Degraded", "status": "True", "reason": "NoKVEventsObserved"},
    ]
    verdict = judge(backend(status={"conditions": stored}), path=Path.HOST_ONLY)
    assert (verdict.ready.reason, verdict.degraded.reason) == ("NoKVEventsObserved", "NoKVEventsObserved")


@pytest.mark.parametrize("text", ["short", "x" * 512, "x" * 600, "é" * 400, "😀" * 200])
def test_long_texts_are_cut_between_characters(text: str) -> None:
    cut = shortened(text)
    assert len(cut.encode()) <= LIMIT_BYTES
    assert (cut == text) == (len(text.encode()) <= LIMIT_BYTES)
    assert cut == text or (cut.endswith("...") and text.startswith(cut[:-3]))
