"""The reconcilers of the product, and how they join a manager."""

from __future__ import annotations

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.act import Actor, child_informers
from inferencecache.controllers.cachebackend.reconciler import CacheBackendReconciler
from inferencecache.controllers.engine_pods import EnginePodReconciler, UnwiredNotes, UnwiredTeller, is_annotated
from inferencecache.kube.kinds import Pod
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key

__all__ = ["register"]


def register(
    manager: Manager,
    *,
    registries: tuple[RuntimeRegistry, StorageRegistry],
    notes: UnwiredNotes | None = None,
) -> None:
    """Add all reconcilers to a manager.

    Args:
        manager: runs them.
        registries: the adapters, shared with the webhooks, so that whatever is admitted can be rendered.
        notes: what this replica's Pod webhook left unwired; None where no webhook runs.
    """
    runtimes, storage = registries
    informers = child_informers(manager.cache)
    backends = CacheBackendReconciler(
        client=manager.client,
        cache=manager.cache,
        actor=Actor(manager.client, informers),
        recorder=manager.recorder("cachebackend-controller"),
        runtimes=runtimes,
        storage=storage,
    )
    # No predicate: the index poller's status writes must wake the first-event gate (spec 05 §1.3).
    builder = manager.controller("cachebackend", backends).watches_primary(CacheBackend)
    for kind, informer in informers.items():
        builder.owns(kind, informer=informer)

    pods = EnginePodReconciler(
        client=manager.client, cache=manager.cache, recorder=manager.recorder("engine-pod-events")
    )
    manager.controller("engine-pod-events", pods).watches(Pod, lambda pod: (Key.of(pod),), is_annotated)
    if notes is not None:
        teller = UnwiredTeller(notes, manager.recorder("engine-pod-events", leader_only=False))
        manager.cache.informer(Pod).on_change(teller)
