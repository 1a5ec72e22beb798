"""What a pass knows of a backend's surroundings: the engines it selects or wired, and the backends that come before it.

All of it comes from informers. A pass over a steady backend therefore asks nothing of the API server, however many Pods
there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.pods import follow_pods, stamped_by
from inferencecache.kube.cache import Cache
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Deployment, ObjectMeta, Pod, ReplicaSet, View
from inferencecache.kube.resource import Resource


class EngineTemplate(View, frozen=True):
    """`spec.template` of a Deployment."""

    metadata: ObjectMeta = ObjectMeta()


class EngineDeploymentSpec(View, frozen=True):
    """`spec` of a Deployment that may run engines."""

    replicas: int = 1
    template: EngineTemplate = EngineTemplate()


class EngineDeployment(View, frozen=True):
    """A Deployment, seen as something that may run engines: how many Pods it wants, and their labels."""

    resource: ClassVar[Resource] = Deployment.resource
    metadata: ObjectMeta = ObjectMeta()
    spec: EngineDeploymentSpec = EngineDeploymentSpec()


@dataclass(frozen=True, slots=True)
class Engines:
    """What the selector of a backend finds: Pods, and the Deployments whose Pods it would find."""

    pods: tuple[Pod, ...]
    deployments: tuple[EngineDeployment, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything a pass decides on, apart from its own children.

    `engines` is None without a selector. `rivals` are the names of the backends that come before this one, in order,
    for Pods that match both selectors. `injected` are the Pods that admission wired to this backend.
    """

    backend: CacheBackend
    now: datetime
    engines: Engines | None
    rivals: tuple[str, ...]
    injected: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The informers a pass looks into."""

    backends: Informer[CacheBackend]
    pods: Informer[Pod]
    deployments: Informer[EngineDeployment]
    replica_sets: Informer[ReplicaSet]
    """Only those of stores."""

    @classmethod
    def of(cls, cache: Cache) -> Surroundings:
        """Have a cache follow everything that is looked into."""
        return cls(
            cache.informer(CacheBackend),
            follow_pods(cache),
            cache.informer(EngineDeployment),
            cache.informer(ReplicaSet, labels={c.LABEL_MANAGED_BY: c.CHILD_MANAGED_BY}),
        )

    def observe(self, backend: CacheBackend, now: datetime) -> Observation:
        """Look at what is around a backend."""
        namespace = backend.metadata.namespace
        engines = None
        if backend.selector:
            engines = Engines(
                tuple(pod for pod in self.pods.list(namespace) if backend.selects(pod.metadata.labels)),
                tuple(
                    one
                    for one in self.deployments.list(namespace)
                    if backend.selects(one.spec.template.metadata.labels)
                ),
            )
        rivals = rivals_of(backend, self.backends.list(namespace))
        return Observation(backend, now, engines, rivals, tuple(stamped_by(self.pods, backend)))


def rivals_of(backend: CacheBackend, siblings: Iterable[CacheBackend]) -> tuple[str, ...]:
    """Names of the backends that win Pods which this one selects too: those before it by name (A5, A11).

    One that is being deleted is among them: it wires nothing any more, and until it is gone nobody takes its place.
    """
    return tuple(
        sorted(
            other.metadata.name
            for other in siblings
            if other.metadata.name < backend.metadata.name and backend.competes_with(other)
        )
    )
