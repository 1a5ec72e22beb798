"""Whether admission stamped a Pod as wired to a backend; the UID tells a backend from a namesake (decision F12)."""

from __future__ import annotations

from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key


def is_stamped(pod: Pod, backend: CacheBackend) -> bool:
    """Both marks name this very backend, and the Pod is in its namespace."""
    given = pod.metadata.annotations
    return (
        pod.metadata.namespace == backend.metadata.namespace
        and bool(backend.metadata.uid)
        and given.get(c.ANNOTATION_INJECTED_BY) == str(Key.of(backend))
        and given.get(c.ANNOTATION_INJECTED_BY_UID) == backend.metadata.uid
    )
