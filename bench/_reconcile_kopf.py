"""The operator that bench.reconcile compares with: plainly written on kopf, with the same objects and the same end.

It is run by `kopf run -m bench._reconcile_kopf` and does for a managed CacheBackend what a user sees of ours: the very
manifests of our renderer, endpoint and observedGeneration in the status, Ready once the Deployment is rolled out, and
one Event that says so. The children are applied in one request each, and written again at a restart without a look at
what is there, because nothing of kopf remembers them. What it lacks is all the rest: no repair of children, no rivals,
no engines, no probes, no read before the first write that keeps a deleted backend from getting children.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import kopf
from kubernetes_asyncio import client, config

from inferencecache.adapters.registry import load_adapters
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.children import children_for, endpoint_of
from inferencecache.controllers.cachebackend.plan import plan_for

BACKENDS = ("inferencecache.io", "v1alpha1", "cachebackends")
APPLIED: dict[str, Any] = {
    "field_manager": "kopf",
    "force": True,
    "_content_type": "application/apply-patch+yaml",
}
RUNTIMES, STORAGE = load_adapters()


@kopf.on.login()
def login(**more: Any) -> kopf.ConnectionInfo | None:
    """Use the configuration that KUBECONFIG names."""
    return kopf.login_with_kubeconfig(**more)


@kopf.on.startup()
async def startup(memo: kopf.Memo, **_: Any) -> None:
    """Share one connection pool among all handlers."""
    await config.load_kube_config()
    memo.api = client.ApiClient()


@kopf.on.cleanup()
async def cleanup(memo: kopf.Memo, **_: Any) -> None:
    """Close the connections."""
    await memo.api.close()


@kopf.index(*BACKENDS)
def is_ready(name: str, status: kopf.Status, **_: Any) -> dict[str, bool]:
    """Which backends say that they are ready, so that a restart does not say it again."""
    return {name: any(one["type"] == c.READY and one["status"] == "True" for one in status.get("conditions", ()))}


@kopf.on.resume(*BACKENDS)
@kopf.on.create(*BACKENDS)
@kopf.on.update(*BACKENDS)
async def run_store(body: kopf.Body, name: str, namespace: str, patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    """Have the Deployment and the Service, and tell where the store is."""
    backend = CacheBackend.decode(dict(body))
    store = plan_for(backend, RUNTIMES, STORAGE).store
    if store is None:
        raise kopf.PermanentError(f"CacheBackend {namespace}/{name} is not of the kind this benchmark makes")
    children = children_for(backend, store, live_replicas=None)
    kopf.adopt([children.workload, children.service])
    await client.AppsV1Api(memo.api).patch_namespaced_deployment(name, namespace, children.workload, **APPLIED)
    await client.CoreV1Api(memo.api).patch_namespaced_service(name, namespace, children.service, **APPLIED)
    patch.status["endpoint"] = endpoint_of(backend, children.service)
    patch.status["observedGeneration"] = backend.metadata.generation


@kopf.on.event("apps", "v1", "deployments", labels={c.LABEL_MANAGED_BY: c.CHILD_MANAGED_BY})
async def tell_readiness(
    meta: kopf.Meta, status: kopf.Status, name: str, namespace: str, memo: kopf.Memo, is_ready: kopf.Index, **_: Any
) -> None:
    """Make the backend ready when its Deployment is rolled out."""
    if not status.get("availableReplicas") or any(is_ready.get(name, ())):
        return
    condition = {
        "type": c.READY,
        "status": "True",
        "reason": "Ready",
        "message": "the cache server is rolled out",
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    group, version, plural = BACKENDS
    await client.CustomObjectsApi(memo.api).patch_namespaced_custom_object_status(
        group,
        version,
        namespace,
        plural,
        name,
        {"status": {"conditions": [condition]}},
        _content_type="application/merge-patch+json",
    )
    owner = {**meta["ownerReferences"][0], "metadata": {"name": name, "namespace": namespace}}
    owner["metadata"]["uid"] = owner["uid"]
    kopf.event(owner, type="Normal", reason="Ready", message=condition["message"])
