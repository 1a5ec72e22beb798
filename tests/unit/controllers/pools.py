"""Pools and Bindings for tests of decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferencecache.api.kvcache import FINALIZER
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding

DELETED = "2026-01-02T03:04:05Z"


def pool(
    name: str = "pool",
    *,
    backends: Iterable[str] = ("store",),
    total: str = "1Gi",
    deleting: bool = False,
    status: dict[str, Any] | None = None,
) -> KVCachePool:
    """A pool as the API server gives it."""
    return KVCachePool.decode(
        {
            "metadata": _metadata(name, "", deleting),
            "spec": {"backends": [*backends], "quota": {"total": total}},
            "status": status or {},
        }
    )


def binding(
    name: str = "one",
    *,
    domain: str = "alpha",
    ceiling: str = "16Mi",
    pool: str = "pool",
    deleting: bool = False,
    used_by: Iterable[str] = (),
    status: dict[str, Any] | None = None,
) -> KVCachePoolBinding:
    """A Binding as the API server gives it; `used_by` names workloads."""
    users = [{"kind": "ModelDeployment", "namespace": "", "name": user} for user in used_by]
    return KVCachePoolBinding.decode(
        {
            "metadata": _metadata(name, "team", deleting),
            "spec": {
                "poolRef": {"name": pool},
                "quota": {"ceiling": ceiling},
                "domain": {"name": domain, "blockSize": 64, "dtype": "bfloat16"},
            },
            "status": {**(status or {}), **({"usedBy": users} if users else {})},
        }
    )


def _metadata(name: str, namespace: str, deleting: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "finalizers": [FINALIZER]}
    if namespace:
        metadata["namespace"] = namespace
    if deleting:
        metadata["deletionTimestamp"] = DELETED
    return metadata
