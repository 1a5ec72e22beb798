"""Joins the loops towards the cache server to a manager.

Each loop is a controller with a single key: changes and the clock wake it, and one pass does everything. So passes
never overlap, and each loop has its own queue, back-off and metrics. All kinds but CacheBackend may be missing from a
cluster.
"""

from __future__ import annotations

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.pdtopology import PDTopology
from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.cacheindex import reconciler as cacheindex
from inferencecache.controllers.dataplane.client import ServerClient
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.dataplane.server import CacheServer
from inferencecache.controllers.policy import reconciler as policy
from inferencecache.controllers.templates import reconciler as templates
from inferencecache.controllers.topologies import reconciler as topologies
from inferencecache.kube.kinds import Pod
from inferencecache.kube.manager import Manager
from inferencecache.kube.predicates import generation_changed


def register_server_loops(manager: Manager, server: CacheServer, client: ServerClient) -> None:
    """Add the index poller and the pushes of policies, templates and topologies."""
    if server.snapshot_url:
        _index(manager, server, client)
    _policies(manager, server, client)
    _templates(manager, server, client)
    _topologies(manager, server, client)


def _index(manager: Manager, server: CacheServer, client: ServerClient) -> None:
    cache = manager.cache
    poller = cacheindex.CacheIndexReconciler(
        client=manager.client,
        indexes=cache.informer(CacheIndex, optional=True),
        backends=cache.informer(CacheBackend),
        policies=cache.informer(CachePolicy, optional=True),
        tenants=cache.informer(CacheTenant, optional=True),
        pods=cache.informer(Pod),
        endpoint=server.snapshot(client),
        interval=server.refresh_interval,
    )
    manager.controller("cacheindex", poller, workers=1).enqueue(cacheindex.SINGLETON)


def _policies(manager: Manager, server: CacheServer, client: ServerClient) -> None:
    policies = manager.cache.informer(CachePolicy, optional=True)
    tenants = manager.cache.informer(CacheTenant, optional=True)
    pusher = Pusher(server.document(client, "policy"), method="POST", interval=server.push_interval)
    reconciler = policy.PolicyPushReconciler(policies=policies, tenants=tenants, pusher=pusher)
    builder = manager.controller("cachepolicy", reconciler, workers=1)
    builder.watches(CachePolicy, lambda _: (policy.DOCUMENT,), generation_changed, informer=policies)
    builder.watches(CacheTenant, lambda _: (policy.DOCUMENT,), generation_changed, informer=tenants)
    builder.enqueue(policy.DOCUMENT)


def _templates(manager: Manager, server: CacheServer, client: ServerClient) -> None:
    informer = manager.cache.informer(PromptTemplate, optional=True)
    pusher = Pusher(server.document(client, "templates"), method="PUT", interval=server.push_interval)
    reconciler = templates.TemplatePushReconciler(client=manager.client, templates=informer, pusher=pusher)
    builder = manager.controller("prompttemplate", reconciler, workers=1)
    builder.watches(PromptTemplate, lambda _: (templates.DOCUMENT,), generation_changed, informer=informer)
    builder.enqueue(templates.DOCUMENT)


def _topologies(manager: Manager, server: CacheServer, client: ServerClient) -> None:
    informer, pods = manager.cache.informer(PDTopology, optional=True), manager.cache.informer(Pod)
    pusher = Pusher(server.document(client, "topologies"), method="PUT", interval=server.push_interval)
    reconciler = topologies.TopologyPushReconciler(client=manager.client, topologies=informer, pods=pods, pusher=pusher)
    builder = manager.controller("pdtopology", reconciler, workers=1)
    builder.watches(PDTopology, lambda _: (topologies.DOCUMENT,), generation_changed, informer=informer)
    builder.watches(Pod, lambda _: (topologies.DOCUMENT,), reconciler.concerns, informer=pods)
    builder.enqueue(topologies.DOCUMENT)
