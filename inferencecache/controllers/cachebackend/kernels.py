"""EngineKernelsHealthy: what the kernel checks of the engine Pods reported (spec 05 §3.5).

Admission puts an init container into engine Pods that loads LMCache's native kernels and leaves its finding in its
termination log. Here the findings of all Pods become one condition. What mode a Pod was admitted in stands in the Pod:
the backend's annotation speaks of Pods yet to come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from inferencecache.adapters.kernel_check import STRICT
from inferencecache.adapters.pods import KERNEL_CHECK
from inferencecache.api import constants as c
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.cachebackend.facts import Claim, Facts, Verdict
from inferencecache.controllers.cachebackend.text import shortened
from inferencecache.kube.kinds import ContainerStatus, Pod

FAILED: Final = "FAIL:"


class Outcome(IntEnum):
    """What came of one check; the greatest of all Pods decides."""

    OK = 0
    PENDING = 1
    ERROR = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One Pod's check. `strict`: the Pod was admitted to fail with it."""

    pod: str
    outcome: Outcome
    said: str = ""
    strict: bool = False


def kernel_gate(facts: Facts, verdict: Verdict) -> Verdict:
    """Tell what the checks found; a failure in a strict Pod outranks whatever Ready says."""
    mine = [pod for pod in facts.injected if facts.backend.selects(pod.metadata.labels)]
    findings = sorted(filter(None, map(finding_of, mine)), key=lambda finding: finding.pod)
    if not findings:
        return verdict.saying(c.ENGINE_KERNELS_HEALTHY, None)
    worst = max(finding.outcome for finding in findings)
    claim = _claim(worst, [finding for finding in findings if finding.outcome is worst], len(findings))
    verdict = verdict.saying(c.ENGINE_KERNELS_HEALTHY, claim)
    if any(finding.strict and finding.outcome is Outcome.FAILED for finding in findings):
        return replace(verdict, ready=Claim("False", r.ENGINE_KERNEL_DEGRADED, claim.message))
    return verdict


def finding_of(pod: Pod) -> Finding | None:
    """What the check of a Pod found; None if the Pod runs none."""
    check = next((one for one in pod.spec.init_containers if one.name == KERNEL_CHECK), None)
    if check is None:
        return None
    status = next((one for one in pod.status.init_container_statuses if one.name == KERNEL_CHECK), ContainerStatus())
    ended = status.state.terminated or status.last_state.terminated
    name = pod.metadata.name
    strict = any(one.name == STRICT and one.value == "1" for one in check.env)
    if ended is None:
        return Finding(name, Outcome.PENDING, strict=strict)
    said = ended.message.strip()
    if said.startswith(FAILED):
        return Finding(name, Outcome.FAILED, said.removeprefix(FAILED).strip(), strict)
    if said == "OK" and ended.exit_code == 0:
        return Finding(name, Outcome.OK, strict=strict)
    return Finding(name, Outcome.ERROR, f"exit code {ended.exit_code}, {ended.reason or 'no reason'}: {said!r}", strict)


def _claim(worst: Outcome, those: list[Finding], checked: int) -> Claim:
    first = those[0]
    match worst:
        case Outcome.FAILED:
            text = (
                f"the native kernels did not load in {len(those)} of {checked} Pods, first in {first.pod}: {first.said}"
            )
            return Claim("False", r.KERNEL_LOAD_FAILED, shortened(text))
        case Outcome.ERROR:
            text = f"the kernel check of Pod {first.pod} ended without a finding: {first.said}"
            return Claim("Unknown", r.KERNEL_CHECK_ERROR, shortened(text))
        case Outcome.PENDING:
            return Claim("Unknown", r.KERNEL_CHECK_PENDING, "kernel checks are still to report")
        case _:
            return Claim("True", r.KERNELS_HEALTHY, "the native kernels loaded in every Pod that checks them")
