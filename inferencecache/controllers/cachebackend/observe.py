"""What a pass knows before it decides: the backend, the engines it selects, and the backends that come before it.

The backend is read from the cache; engines are counted from live lists, because a count that lags behind a rollout is
worth little and nothing else needs Pods of a namespace in memory. A list that fails is told as `None`, not as empty:
what cannot be seen must not be reported as gone (spec 05 §3.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import structlog

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.client import Client
from inferencecache.kube.errors import KubeError, LeadershipLost
from inferencecache.kube.kinds import Deployment, ObjectMeta, Pod, View
from inferencecache.kube.resource import K, Key, Resource

_log = structlog.stdlib.get_logger(__name__)


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
    """What the selector of a backend finds; `None` where the list failed."""

    pods: tuple[Pod, ...] | None
    deployments: tuple[EngineDeployment, ...] | None


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything a pass decides on, apart from its own children.

    `engines` is None without a selector. `rivals` are the names of the backends that come before this one, in order,
    for Pods that match both selectors.
    """

    backend: CacheBackend
    now: datetime
    engines: Engines | None
    rivals: tuple[str, ...]


async def observe(
    client: Client, backend: CacheBackend, siblings: Iterable[CacheBackend], now: datetime
) -> Observation:
    """Look at a backend. `siblings` are the backends of its namespace, itself included or not."""
    engines = await _engines(client, backend) if backend.selector else None
    return Observation(backend, now, engines, rivals_of(backend, siblings))


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


async def _engines(client: Client, backend: CacheBackend) -> Engines:
    pods = await _listed(client, Pod, backend, labels=backend.selector)
    deployments = await _listed(client, EngineDeployment, backend)
    return Engines(pods, deployments)


async def _listed(
    client: Client, kind: type[K], backend: CacheBackend, labels: Mapping[str, str] | None = None
) -> tuple[K, ...] | None:
    try:
        return tuple(await client.list(kind, namespace=backend.metadata.namespace, labels=labels))
    except LeadershipLost:
        raise
    except KubeError as error:
        _log.warning("engines could not be listed", kind=kind.resource.kind, error=str(error))
        return None


class Freshest:
    """Backends as we last wrote them, for as long as the cache is behind (read your writes).

    Without this, the pass that our own status write wakes could still see the status before it, stamp conditions anew
    and tell the same Event twice. Resource versions of one object grow, so they say which copy is newer.
    """

    def __init__(self) -> None:
        self._written: dict[Key, CacheBackend] = {}

    def of(self, key: Key, cached: CacheBackend | None) -> CacheBackend | None:
        """The newer of what the cache holds and what we wrote. What the cache no longer holds is gone."""
        written = self._written.get(key)
        if written is None:
            return cached
        if cached is None or cached.metadata.uid != written.metadata.uid or not _is_older(cached, written):
            del self._written[key]
            return cached
        return written

    def wrote(self, key: Key, backend: CacheBackend) -> None:
        """Remember what a write answered."""
        self._written[key] = backend


def _is_older(one: CacheBackend, other: CacheBackend) -> bool:
    try:
        return int(one.metadata.resource_version) < int(other.metadata.resource_version)
    except ValueError:
        return False
