"""Which processes of the cache server are there, and whether one was replaced (spec 05 §4.1, §4.3, decision F11).

Engines hold on to the very process they connected to at their start. When it goes and another takes its place, they
must be rolled; when it is only busy for a moment, or one of several was not wanted any more, they must not. So what
counts is the pair of a process that went *and* one that came, or a process that restarted in its Pod:

    before        now                               then
    -             a                                 baseline: nobody can be connected to an earlier one
    a             (none ready)                      keep: whatever comes next is compared with a
    a             a, restarted                      cascade
    a             b                                 cascade
    a             a b, rollout going on             keep: it may be rolled back
    a             a b, converged                    baseline: it was scaled out
    a b           a, b is not ready                 keep: b may come back
    a b           a, b is gone, not converged       keep: b's successor is on its way
    a b           a, b is gone, converged           baseline: it was scaled in

Pure. An instance is identified by its Pod's UID and the restarts of the server's own containers in it; containers that
others added may restart as they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inferencecache.kube.kinds import Pod, controller_of
from inferencecache.kube.resource import Manifest

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_INT32: Final = 1 << 31


class Step(Enum):
    """What follows from a look at the instances."""

    KEEP = "keep"
    BASELINE = "baseline"
    CASCADE = "cascade"


@dataclass(frozen=True, slots=True)
class Instances:
    """The server's Pods: restarts by UID.

    `ready` are in the order of their names. `alive` are all that were not told to go and have not ended, ready or not.
    `converged`: the workload says that it has all it wants and no more, and that is what we see.
    """

    ready: Mapping[str, int]
    alive: Mapping[str, int]
    converged: bool

    @property
    def identifier(self) -> str:
        """How `status.observedServerInstance` spells the ready ones."""
        return ",".join(f"{uid}:{restarts}" for uid, restarts in self.ready.items())


def judge(baseline: str, seen: Instances) -> Step:
    """What follows; `baseline` is what was published last."""
    if not seen.ready or seen.identifier == baseline:
        return Step.KEEP
    if not baseline:
        return Step.BASELINE
    before = parse(baseline)
    restarted = any(uid in seen.ready and seen.ready[uid] != restarts for uid, restarts in before.items())
    gone = not before.keys() <= seen.alive.keys()
    came = not seen.ready.keys() <= before.keys()
    if not before or restarted or (gone and came):
        return Step.CASCADE
    busy = any(uid in seen.alive and uid not in seen.ready for uid in before)
    return Step.BASELINE if seen.converged and not busy else Step.KEEP


def parse(identifier: str) -> dict[str, int]:
    """Restarts by UID; what cannot be read is left out."""
    found = {}
    for segment in identifier.split(","):
        uid, _, restarts = segment.rpartition(":")
        if uid and restarts.lstrip("-").isascii() and restarts.lstrip("-").isdigit() and abs(int(restarts)) < _INT32:
            found[uid] = int(restarts)
    return found


def instances_of(workload: Manifest, pods: Iterable[Pod], replica_sets: Iterable[str]) -> Instances:
    """The instances that a workload runs.

    Args:
        workload: the Deployment or StatefulSet, as the API server has it.
        pods: candidates; those of others are left out.
        replica_sets: UIDs of the ReplicaSets that the Deployment controls.
    """
    owners = {workload["metadata"]["uid"], *replica_sets}
    own = {container["name"] for container in workload["spec"]["template"]["spec"].get("containers", ())}
    ready, alive = {}, {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        owner = controller_of(pod)
        if owner is None or owner.uid not in owners:
            continue
        if pod.metadata.deletion_timestamp or pod.status.phase in _FINISHED:
            continue
        restarts = sum(one.restart_count for one in pod.status.container_statuses if one.name in own)
        alive[pod.metadata.uid] = restarts
        if pod.status.phase == "Running" and pod.status.ready:
            ready[pod.metadata.uid] = restarts
    return Instances(ready, alive, _converged(workload, len(ready)))


def _converged(workload: Manifest, ready: int) -> bool:
    status = workload.get("status") or {}
    counts = {
        ready,
        workload["spec"].get("replicas", 1),
        status.get("readyReplicas", 0),
        status.get("updatedReplicas", 0),
    }
    return len(counts) == 1 and status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
