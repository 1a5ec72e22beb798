"""What a pass knows of a backend's surroundings: the engines it selects or wired, and the backends that come before it.

All of it comes from informers. A pass over a steady backend therefore asks nothing of the API server, however many Pods
there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.rivals import Rivals
from inferencecache.controllers.cachebackend.selected import Selected
from inferencecache.controllers.pods import follow_pods, stamped_by
from inferencecache.kube.cache import Cache
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import Deployment, ObjectMeta, Pod, ReplicaSet, View
from inferencecache.kube.resource import Key, Resource


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
    """The informers a pass looks into, and how it finds what is the backend's in them."""

    backends: Informer[CacheBackend]
    pods: Informer[Pod]
    replica_sets: Informer[ReplicaSet]
    """Only those of stores."""
    selected_pods: Selected[Pod]
    selected_deployments: Selected[EngineDeployment]
    rivals: Rivals

    @classmethod
    def of(cls, cache: Cache) -> Surroundings:
        """Have a cache follow everything that is looked into."""
        backends, pods = cache.informer(CacheBackend), follow_pods(cache)
        selected_pods = Selected(pods, lambda pod: pod.metadata.labels)
        selected_deployments = Selected(cache.informer(EngineDeployment), lambda one: one.spec.template.metadata.labels)

        def told(change: Change[CacheBackend]) -> None:
            before = change.old.selector if change.old is not None else {}
            if change.new is None or change.new.selector != before:
                selected_pods.forget(change.key.namespace, before)
                selected_deployments.forget(change.key.namespace, before)

        backends.on_change(told)
        stores = cache.informer(ReplicaSet, labels={c.LABEL_MANAGED_BY: c.CHILD_MANAGED_BY})
        return cls(backends, pods, stores, selected_pods, selected_deployments, Rivals(backends))

    def observe(self, backend: CacheBackend, now: datetime) -> Observation:
        """Look at what is around a backend."""
        namespace, selector = backend.metadata.namespace, backend.selector
        engines = None
        if selector:
            engines = Engines(
                tuple(self.selected_pods.find(namespace, selector)),
                tuple(self.selected_deployments.find(namespace, selector)),
            )
        known = self.backends.get(Key.of(backend))
        if known is None or known.selector != selector:
            # It went, or changed, while its pass waited for something: nobody else would have this forgotten again.
            self.selected_pods.forget(namespace, selector)
            self.selected_deployments.forget(namespace, selector)
        return Observation(backend, now, engines, self.rivals.of(backend), tuple(stamped_by(self.pods, backend)))
