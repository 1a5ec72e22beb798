"""Joins the KVCacheBackend reconciler to a manager. The kinds of the group may be missing from a cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from inferencecache.api.constants import LABEL_NAME
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.stored import StoredPool
from inferencecache.controllers.kvcachebackend.act import Actor, child_informers
from inferencecache.controllers.kvcachebackend.objects import NAME, Settings
from inferencecache.controllers.kvcachebackend.pods import StorePod, backend_of
from inferencecache.controllers.kvcachebackend.pods import matters as pod_matters
from inferencecache.controllers.kvcachebackend.reading import Masters
from inferencecache.controllers.kvcachebackend.reconciler import (
    BY_BACKEND,
    OBSERVE_AGAIN,
    KVCacheBackendReconciler,
    matters,
)
from inferencecache.kube.manager import Manager

_WORKERS: Final = 16
"""A pass mostly waits for a leader, so that many leaders that do not answer must not keep others from their turn."""


def register(
    manager: Manager, *, namespace: str, image: str, masters: Masters, interval: timedelta = OBSERVE_AGAIN
) -> None:
    """Add the reconciler to a manager.

    Args:
        manager: runs it.
        namespace: where the objects of managed backends are.
        image: of leaders and members where a backend names none.
        masters: how leaders are reached.
        interval: between two looks at a backend on which nothing changes.
    """
    cache = manager.cache
    informers = child_informers(cache, namespace)
    backends = cache.informer(KVCacheBackend, optional=True)
    pods = cache.informer(
        StorePod,
        namespace=namespace,
        labels={LABEL_NAME: NAME},
        indexes={BY_BACKEND: lambda pod: (pod.backend,)},
    )
    reconciler = KVCacheBackendReconciler(
        client=manager.client,
        backends=backends,
        pools=cache.informer(StoredPool, optional=True),
        pods=pods,
        actor=Actor(manager.client, informers, Settings(namespace, image)),
        masters=masters,
        recorder=manager.recorder("kvcachebackend-controller"),
        namespace=namespace,
        interval=interval,
    )
    builder = manager.controller("kvcachebackend", reconciler, workers=_WORKERS)
    builder.watches_primary(KVCacheBackend, matters, informer=backends)
    for kind, informer in informers.items():
        builder.owns(kind, informer=informer)
    builder.watches(StorePod, backend_of, pod_matters, informer=pods)
