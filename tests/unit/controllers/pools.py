"""Pools and Bindings for tests of decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from inferencecache.api.kvcache import FINALIZER
from inferencecache.api.stored import StoredBinding, StoredPool

DELETED = "2026-01-02T03:04:05Z"


def pool(
    name: str = "pool",
    *,
    backends: Iterable[str] = ("store",),
    total: str = "1Gi",
    deleting: bool = False,
    status: dict[str, Any] | None = None,
) -> StoredPool:
    """A pool as the API server gives it."""
    whole = {
        "metadata": _metadata(name, "", deleting),
        "spec": {"backends": [*backends], "quota": {"total": total}},
        "status": status or {},
    }
    return StoredPool.model_validate_json(json.dumps(whole))


def binding(
    name: str = "one",
    *,
    domain: str = "alpha",
    ceiling: str = "16Mi",
    pool: str = "pool",
    deleting: bool = False,
    used_by: Iterable[str] = (),
    status: dict[str, Any] | None = None,
) -> StoredBinding:
    """A Binding as the API server gives it; `used_by` names workloads."""
    users = [{"kind": "ModelDeployment", "namespace": "", "name": user} for user in used_by]
    whole = {
        "metadata": _metadata(name, "team", deleting),
        "spec": {
            "poolRef": {"name": pool},
            "quota": {"ceiling": ceiling},
            "domain": {"name": domain, "blockSize": 64, "dtype": "bfloat16"},
        },
        "status": {**(status or {}), **({"usedBy": users} if users else {})},
    }
    return StoredBinding.model_validate_json(json.dumps(whole))


def _metadata(name: str, namespace: str, deleting: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "finalizers": [FINALIZER]}
    if namespace:
        metadata["namespace"] = namespace
    if deleting:
        metadata["deletionTimestamp"] = DELETED
    return metadata
