"""Which Pods a pool consists of: those of the topology's namespace that carry all of its labels and can serve.

As with engine selectors, no labels select nothing. A Pod that has not started, has finished or is being deleted is no
replica: a request that is sent there fails. Replicas are told by the names of their Pods, which is what engines report
under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from inferencecache.api.pdtopology import PDTopology, Pool
from inferencecache.kube.kinds import Pod

RUNNING: Final = "Running"


@dataclass(frozen=True, slots=True)
class ResolvedPool:
    """A pool and the names of its Pods, in order."""

    name: str
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The pools of a topology by role."""

    prefill: tuple[ResolvedPool, ...]
    decode: tuple[ResolvedPool, ...]


def resolve(topology: PDTopology, pods: Iterable[Pod]) -> Resolved:
    """The pools of a topology. `pods` are those of its namespace."""
    serving = [pod for pod in pods if serves(pod)]

    def resolved(pools: Iterable[Pool] | None) -> tuple[ResolvedPool, ...]:
        return tuple(ResolvedPool(pool.name, _members(pool.match_labels or {}, serving)) for pool in pools or ())

    return Resolved(resolved(topology.spec.prefill_pools), resolved(topology.spec.decode_pools))


def serves(pod: Pod) -> bool:
    """Whether requests may be sent to the Pod."""
    return pod.status.phase == RUNNING and pod.metadata.deletion_timestamp is None


def _members(labels: Mapping[str, str], pods: Iterable[Pod]) -> tuple[str, ...]:
    if not labels:
        return ()
    return tuple(sorted(pod.metadata.name for pod in pods if labels.items() <= pod.metadata.labels.items()))
