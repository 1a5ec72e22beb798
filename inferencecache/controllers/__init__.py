"""The reconcilers of the product, and how they join a manager."""

from __future__ import annotations

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.stored import StoredBinding, StoredPool
from inferencecache.controllers.cachebackend.act import Actor, child_informers
from inferencecache.controllers.cachebackend.cascade import Cascade
from inferencecache.controllers.cachebackend.observe import Surroundings
from inferencecache.controllers.cachebackend.pool_claims import Pools
from inferencecache.controllers.cachebackend.probing import ProbeEndpoint, Prober
from inferencecache.controllers.cachebackend.reconciler import CacheBackendReconciler
from inferencecache.controllers.dataplane.client import ServerClient
from inferencecache.controllers.dataplane.server import CacheServer
from inferencecache.controllers.engine_pods import EnginePodReconciler, UnwiredNotes, UnwiredTeller, is_annotated
from inferencecache.controllers.pods import backends_of, health_changed
from inferencecache.controllers.server_loops import register_server_loops
from inferencecache.kube.kinds import Pod
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key

__all__ = ["CacheServer", "register"]


def register(
    manager: Manager,
    *,
    registries: tuple[RuntimeRegistry, StorageRegistry],
    notes: UnwiredNotes | None = None,
    server: CacheServer | None = None,
) -> None:
    """Add all reconcilers to a manager.

    Args:
        manager: runs them.
        registries: the adapters, shared with the webhooks, so that whatever is admitted can be rendered.
        notes: what this replica's Pod webhook left unwired; None where no webhook runs.
        server: the cache server, and how to call it; None leaves out whatever talks to it.
    """
    calls = None
    if server is not None:
        calls = ServerClient()
        # Started first and stopped last, as it holds the connections of the loops.
        manager.add(calls.run, name="server-client")
    _backends(manager, registries, server.probe(calls) if server is not None and calls and server.probe_url else None)
    pods = EnginePodReconciler(
        client=manager.client, cache=manager.cache, recorder=manager.recorder("engine-pod-events")
    )
    manager.controller("engine-pod-events", pods).watches(Pod, lambda pod: (Key.of(pod),), is_annotated)
    if notes is not None:
        teller = UnwiredTeller(notes, manager.recorder("engine-pod-events", leader_only=False))
        manager.cache.informer(Pod).on_change(teller)
    if server is not None and calls is not None:
        register_server_loops(manager, server, calls)


def _backends(
    manager: Manager, registries: tuple[RuntimeRegistry, StorageRegistry], probe: ProbeEndpoint | None
) -> None:
    """Add the CacheBackend reconciler, and what calls the functional probe for it."""
    runtimes, storage = registries
    informers = child_informers(manager.cache)
    surroundings = Surroundings.of(manager.cache)
    pools = Pools(manager.client, manager.cache)
    prober = Prober(probe, wake=lambda key: builder.enqueue(key))
    manager.add(prober.run, name="functional-probe", leader_only=True)
    backends = CacheBackendReconciler(
        client=manager.client,
        surroundings=surroundings,
        actor=Actor(manager.client, informers),
        cascade=Cascade(manager.client, surroundings),
        prober=prober,
        pools=pools,
        recorder=manager.recorder("cachebackend-controller"),
        runtimes=runtimes,
        storage=storage,
    )
    # No predicate: the index poller's status writes must wake the first-event gate (spec 05 §1.3).
    builder = manager.controller("cachebackend", backends).watches_primary(CacheBackend)
    for kind, informer in informers.items():
        builder.owns(kind, informer=informer)
    builder.watches(Pod, backends_of, health_changed)
    builder.watches(StoredBinding, pools.users_of_binding, informer=pools.bindings)
    builder.watches(StoredPool, pools.users_of_pool, informer=pools.pools)
