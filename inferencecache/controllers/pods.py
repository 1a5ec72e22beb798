"""Pods as all reconcilers see them: one informer over the cluster, and quick ways to the Pods that matter.

Of most Pods nothing is needed but identity, labels, annotations and phase. Who owns a Pod, what its containers run and
how they are doing is kept only of those that admission stamped and of those that run a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.cache import Cache
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import Pod, PodMeta, PodStatus
from inferencecache.kube.resource import Key

BY_STAMP: Final = "injected-by-uid"
"""Index: the UID of the backend that a Pod says it was wired to."""
BY_STORE: Final = "store"
"""Index: `namespace/name` of the backend whose store a Pod runs, by its labels."""


def follow_pods(cache: Cache) -> Informer[Pod]:
    """The informer of all Pods; must be asked for before anybody else asks for one."""
    return cache.informer(Pod, transform=slim, indexes={BY_STAMP: _stamp, BY_STORE: _store})


def slim(pod: Pod) -> Pod:
    """The Pod without what nobody will ask about it."""
    if _stamp(pod) or _store(pod):
        return pod
    kept = {name: getattr(pod.metadata, name) for name in _KEPT}
    return Pod(metadata=PodMeta(**kept), status=PodStatus(phase=pod.status.phase))


def stamped_by(pods: Informer[Pod], backend: CacheBackend) -> list[Pod]:
    """The Pods that were wired to this very backend: the UID tells it from a namesake (decision F12)."""
    return [pod for pod in pods.by_index(BY_STAMP, backend.metadata.uid) if is_stamped(pod, backend)]


def is_stamped(pod: Pod, backend: CacheBackend) -> bool:
    """Whether both marks of admission name this backend, and the Pod is in its namespace."""
    given = pod.metadata.annotations
    return (
        pod.metadata.namespace == backend.metadata.namespace
        and given.get(c.ANNOTATION_INJECTED_BY) == str(Key.of(backend))
        and bool(backend.metadata.uid)
        and given.get(c.ANNOTATION_INJECTED_BY_UID) == backend.metadata.uid
    )


def store_pods(pods: Informer[Pod], backend: CacheBackend) -> list[Pod]:
    """The Pods whose labels say that they run this backend's store."""
    return pods.by_index(BY_STORE, str(Key.of(backend)))


def backends_of(pod: Pod) -> Iterable[Key]:
    """The backend that wired a Pod, and the one whose store it runs: whom a change of the Pod may concern."""
    named = pod.metadata.annotations.get(c.ANNOTATION_INJECTED_BY, "")
    if named and _stamp(pod):
        namespace, _, name = named.partition("/")
        if namespace == pod.metadata.namespace:
            yield Key(namespace, name)
    if _store(pod):
        yield Key(pod.metadata.namespace, pod.metadata.labels[c.LABEL_INSTANCE])


def health_changed(change: Change[Pod]) -> bool:
    """Whether something a backend's status tells of is new: a Pod came or went, its containers or its readiness."""
    return change.old is None or change.new is None or change.old.status != change.new.status


_KEPT: Final = tuple(name for name in PodMeta.__struct_fields__ if name != "owner_references")


def _stamp(pod: Pod) -> tuple[str, ...]:
    uid = pod.metadata.annotations.get(c.ANNOTATION_INJECTED_BY_UID)
    return (uid,) if uid else ()


def _store(pod: Pod) -> tuple[str, ...]:
    labels = pod.metadata.labels
    name = labels.get(c.LABEL_INSTANCE)
    ours = labels.get(c.LABEL_MANAGED_BY) == c.CHILD_MANAGED_BY and labels.get(c.LABEL_NAME) == c.CHILD_NAME
    return (f"{pod.metadata.namespace}/{name}",) if ours and name else ()
