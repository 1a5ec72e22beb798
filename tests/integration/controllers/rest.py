"""When an operator under test has nothing left to do, as a condition instead of a pause.

It is at rest once its caches hold what the API server holds and its controllers have neither a key in hand nor one
ready. What it will do later by the clock is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import REGISTRY

from inferencecache.api.constants import CHILD_MANAGED_BY, LABEL_MANAGED_BY
from inferencecache.controllers.cachebackend.act import CHILD_KINDS
from inferencecache.kube.manager import Manager
from inferencecache.kube.resource import Key

_CHILDREN = {kind.resource.kind for kind in CHILD_KINDS}
_CONTROLLERS = ("cachebackend", "engine-pod-events")


def at_rest(manager: Manager, namespace: str, live: dict[str, Iterable[dict[str, Any]]]) -> bool:
    """Whether nothing is left to do about these objects, manifests by kind: all that the namespace has of each."""
    return not any(map(_work, _CONTROLLERS)) and all(
        _versions(manager, namespace, kind) == {_key(obj): _version(obj) for obj in objects if _is_cached(kind, obj)}
        for kind, objects in live.items()
    )


def passes(controller: str = "cachebackend") -> float:
    """How many passes a controller has finished."""
    results = ("success", "requeue_after", "requeue", "error")
    return sum(
        _sample("controller_runtime_reconcile_total", controller=controller, result=result) for result in results
    )


def _work(controller: str) -> float:
    ready = (
        _sample("workqueue_depth", name=controller, controller=controller, priority=priority)
        for priority in ("0", "-100")
    )
    return sum(ready) + _sample("controller_runtime_active_workers", controller=controller)


def _sample(series: str, /, **labels: str) -> float:
    # Of this series alone: it is asked every few milliseconds, and all of them take several.
    families = REGISTRY.restricted_registry([series]).collect()
    samples = (sample for family in families for sample in family.samples)
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (series, labels)), 0.0)


def _versions(manager: Manager, namespace: str, kind: str) -> dict[Key, str]:
    found = next(one for one in manager.cache.informers if one.kind.resource.kind == kind)
    return {Key.of(obj): obj.metadata.resource_version for obj in found.list(namespace)}


def _is_cached(kind: str, obj: dict[str, Any]) -> bool:
    return kind not in _CHILDREN or (obj["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == CHILD_MANAGED_BY


def _key(obj: dict[str, Any]) -> Key:
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def _version(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])
