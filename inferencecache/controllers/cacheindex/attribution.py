"""Which CacheBackend each replica of a snapshot works for, and what all replicas of a backend add up to (spec 05 §7.3).

A replica is a Pod: the tenant is its namespace, the replica id its name. What admission wrote on the Pod decides:

| the Pod's `injected-by`                          | the replica belongs to                                     |
|--------------------------------------------------|------------------------------------------------------------|
| names a backend of the Pod's namespace           | that one, unless `injected-by-uid` says it was another     |
| names one that is not there                      | nobody: the engine was wired to something that is gone     |
| is absent, no reference, or into another namespace | the first backend by name whose selector matches the Pod |
| there is no Pod                                  | nobody                                                     |

A backend that was deleted and made anew under the same name does not inherit the engines of the one before, which are
wired to an address that may be gone (decision F12). A Pod that somebody annotated by hand has no uid to contradict it.

Selection by name order is the webhook's rule as well, so a Pod counts for the backend that would wire it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cacheindex.snapshot import ReplicaRow
from inferencecache.controllers.engine_pods import owner_key
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key


@dataclass(frozen=True, slots=True)
class Share:
    """What the replicas of one backend add up to; token counts are those of the second tier."""

    prefix_count: int = 0
    last_event: datetime | None = None
    t2_hit_tokens: int = 0
    t2_query_tokens: int = 0

    def plus(self, row: ReplicaRow) -> Share:
        """This share with another replica in it."""
        events = [time for time in (self.last_event, row.last_event) if time is not None]
        return Share(
            prefix_count=self.prefix_count + row.prefix_count,
            last_event=max(events, default=None),
            t2_hit_tokens=self.t2_hit_tokens + row.t2_hit_tokens,
            t2_query_tokens=self.t2_query_tokens + row.t2_query_tokens,
        )


@dataclass(frozen=True, slots=True)
class Attribution:
    """The share of each backend that has one, and the namespaces of rows whose Pod was not found."""

    shares: dict[Key, Share]
    missed: frozenset[str]


def attribute(
    rows: Iterable[ReplicaRow], find_pod: Callable[[Key], Pod | None], backends: Iterable[CacheBackend]
) -> Attribution:
    """Add up the rows per backend. Rows without a tenant or an id are nobody's."""
    neighbours = {namespace: _Neighbours(group) for namespace, group in _by_namespace(backends).items()}
    shares: dict[Key, Share] = {}
    missed = set()
    for row in rows:
        if not row.tenant or not row.replica_id:
            continue
        pod = find_pod(Key(row.tenant, row.replica_id))
        if pod is None:
            missed.add(row.tenant)
            continue
        nearby = neighbours.get(row.tenant)
        owner = nearby.owner_of(pod) if nearby is not None else None
        if owner is not None:
            key = Key.of(owner)
            shares[key] = shares.get(key, Share()).plus(row)
    return Attribution(shares, frozenset(missed))


class _Neighbours:
    """The backends of one namespace, taken apart once for the many Pods that ask."""

    def __init__(self, backends: Iterable[CacheBackend]) -> None:
        in_order = sorted(backends, key=lambda backend: backend.metadata.name)
        self._by_name = {backend.metadata.name: backend for backend in in_order}
        self._selecting = [(backend.selector.items(), backend) for backend in in_order if backend.selector]

    def owner_of(self, pod: Pod) -> CacheBackend | None:
        """The backend a Pod works for."""
        given = pod.metadata.annotations
        named = given.get(c.ANNOTATION_INJECTED_BY, "")
        reference = owner_key(named) if named else None
        if reference is None or reference.namespace != pod.metadata.namespace:
            labels = pod.metadata.labels.items()
            return next((backend for wanted, backend in self._selecting if wanted <= labels), None)
        owner = self._by_name.get(reference.name)
        uid = given.get(c.ANNOTATION_INJECTED_BY_UID, "")
        return owner if owner is not None and uid in ("", owner.metadata.uid) else None


def _by_namespace(backends: Iterable[CacheBackend]) -> dict[str, list[CacheBackend]]:
    found: dict[str, list[CacheBackend]] = {}
    for backend in backends:
        found.setdefault(backend.metadata.namespace, []).append(backend)
    return found
