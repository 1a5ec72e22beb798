"""All PDTopologies as the body of `/topologies`: for each pool, the names of its Pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inferencecache.api.pdtopology import PDTopology
from inferencecache.controllers.dataplane.push import Fitted, Row, fit
from inferencecache.controllers.topologies.pools import Resolved, ResolvedPool
from inferencecache.kube.resource import Key

VERSION: Final = 1
TOPOLOGIES: Final = "topologies"


def topologies_document(resolved: Mapping[Key, tuple[PDTopology, Resolved]]) -> Fitted:
    """The body, with all that fits."""
    rows = [
        Row(key, topology.metadata.creation_timestamp or "", _row(key, pools))
        for key, (topology, pools) in resolved.items()
    ]
    return fit(VERSION, {TOPOLOGIES: rows})


def _row(key: Key, pools: Resolved) -> dict[str, Any]:
    return {
        "namespace": key.namespace,
        "name": key.name,
        "prefillPools": [_pool(pool) for pool in pools.prefill],
        "decodePools": [_pool(pool) for pool in pools.decode],
    }


def _pool(pool: ResolvedPool) -> dict[str, Any]:
    return {"name": pool.name, "replicas": list(pool.replicas)}
