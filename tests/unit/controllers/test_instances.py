"""When engines are rolled: replacement, restart, scaling, flaps and rollouts (spec 05 §4.3, decision F11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferencecache.controllers.cachebackend.instances import Instances, Step, instances_of, judge, parse
from inferencecache.kube.kinds import Pod

KEEP, BASELINE, CASCADE = Step.KEEP, Step.BASELINE, Step.CASCADE


def seen(ready: str, also: str = "", *, converged: bool = True) -> Instances:
    return Instances(parse(ready), parse(f"{ready},{also}"), converged)


@pytest.mark.parametrize(
    ("baseline", "now", "step"),
    [
        ("", seen(""), KEEP),
        ("", seen("a:0"), BASELINE),
        ("", seen("a:0", converged=False), BASELINE),
        ("a:0", seen(""), KEEP),
        ("a:0", seen("", "a:1"), KEEP),
        ("a:0", seen("a:0"), KEEP),
        ("a:0", seen("a:1"), CASCADE),
        ("a:3", seen("a:0"), CASCADE),
        ("a:0", seen("b:0"), CASCADE),
        ("a:0", seen("b:0", converged=False), CASCADE),
        ("a:0", seen("a:0,b:0", converged=False), KEEP),
        ("a:0", seen("a:0,b:0"), BASELINE),
        ("a:0", seen("b:0", "a:0", converged=False), KEEP),
        ("a:0,b:0", seen("a:0", "b:0", converged=False), KEEP),
        ("a:0,b:0", seen("a:0", "b:1", converged=False), KEEP),
        ("a:0,b:0", seen("a:0", converged=False), KEEP),
        ("a:0,b:0", seen("a:0"), BASELINE),
        ("a:0,b:0", seen("a:0,c:0"), CASCADE),
        ("a:0,b:0", seen("a:0,b:1"), CASCADE),
        ("a:0,b:0,c:0", seen("a:0,c:0"), BASELINE),
        ("no sense", seen("a:0"), CASCADE),
    ],
)
def test_what_follows_from_a_look(baseline: str, now: Instances, step: Step) -> None:
    assert judge(baseline, now) is step


def test_a_rollout_that_is_rolled_back_never_rolls_engines() -> None:
    steps = [seen("a:0,b:0", converged=False), seen("a:0", converged=False), seen("a:0")]
    assert [judge("a:0", one) for one in steps] == [KEEP, KEEP, KEEP]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a:0,b:2", {"a": 0, "b": 2}),
        ("a:b:3", {"a:b": 3}),
        ("", {}),
        (":1,a:,a:x,a:99999999999,b:1", {"b": 1}),
        ("a:²", {}),
    ],
)
def test_what_can_be_read_of_a_baseline(text: str, want: dict[str, int]) -> None:
    assert parse(text) == want


def pod(name: str, owner: str = "rs", *, phase: str = "Running", ready: bool = True, **more: Any) -> Pod:
    statuses = [{"name": "server", "restartCount": 2}, {"name": "mesh", "restartCount": 9}]
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": name, "ownerReferences": [{"uid": owner, "controller": True}], **more},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": statuses,
            },
        },
        Pod,
    )


def workload(replicas: int, ready: int, *, generation: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"uid": "dep", "generation": generation},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "server"}]}}},
        "status": {"observedGeneration": 1, "readyReplicas": ready, "updatedReplicas": ready},
    }


def test_only_the_own_ready_pods_count_and_only_the_own_containers() -> None:
    pods = [
        pod("c"),
        pod("b", ready=False),
        pod("a"),
        pod("other", owner="foreign"),
        pod("going", deletionTimestamp="2026-03-02T08:00:00Z"),
        pod("done", phase="Failed"),
        pod("starting", phase="Pending"),
        pod("stateful", owner="dep"),
    ]
    found = instances_of(workload(3, 3), pods, ["rs"])
    assert found.identifier == "a:2,c:2,stateful:2"
    assert set(found.alive) == {"a", "b", "c", "starting", "stateful"}
    assert found.converged


@pytest.mark.parametrize(
    ("manifest", "converged"),
    [(workload(1, 1), True), (workload(1, 2), False), (workload(2, 1), False), (workload(1, 1, generation=2), False)],
)
def test_convergence_is_what_the_workload_says_and_what_is_seen(manifest: dict[str, Any], converged: bool) -> None:
    assert instances_of(manifest, [pod("a")], ["rs"]).converged is converged
