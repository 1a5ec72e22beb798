"""What a pass sees of a backend: its objects as they are now, its Pods, and what its leader says."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from inferencecache.api.kvcache import ENDPOINT_ADMIN, ENDPOINT_CLIENT, Endpoint
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.act import Outcome
from inferencecache.controllers.kvcachebackend.decide import Facts, Rollout
from inferencecache.controllers.kvcachebackend.leader import wanted_replicas
from inferencecache.controllers.kvcachebackend.objects import (
    ADMIN_PORT,
    RPC_PORT,
    group_name,
    leader_address,
    leader_name,
)
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.kvcachebackend.reading import Masters, read
from inferencecache.controllers.kvcachebackend.replacing import fingerprint_of, up_to_date
from inferencecache.kube.kinds import DaemonSet, Deployment, Service
from inferencecache.kube.resource import Manifest


def endpoints(backend: KVCacheBackend, outcome: Outcome, namespace: str) -> tuple[Endpoint, ...]:
    """The addresses to publish: an external store's as they are, a managed one's once the leader's Service is ours."""
    external, name = backend.spec.connection.external, backend.metadata.name
    if external is not None:
        return external.endpoints
    if outcome.find(Service, leader_name(name)) is None:
        return ()
    ports = {ENDPOINT_CLIENT: RPC_PORT, ENDPOINT_ADMIN: ADMIN_PORT}
    return tuple(Endpoint(name=role, address=leader_address(name, namespace, port)) for role, port in ports.items())


async def observe(
    backend: KVCacheBackend,
    outcome: Outcome,
    published: Iterable[Endpoint],
    pods: Collection[StorePod],
    masters: Masters,
) -> Facts:
    """Everything the verdict needs. A managed leader is only asked when one is ready, as nobody else would answer."""
    name, managed = backend.metadata.name, backend.managed
    deployment = outcome.find(Deployment, leader_name(name))
    leader = _deployment_rollout(deployment) if deployment is not None else None
    found = [outcome.find(DaemonSet, group_name(name, n)) for n in range(len(managed.members))] if managed else []
    admin = next((one.address for one in published if one.name == ENDPOINT_ADMIN), "")
    answers = bool(admin) and (managed is None or (leader is not None and leader.ready > 0))
    return Facts(
        leader=leader,
        spares_pending=managed is not None and leader is not None and leader.wanted < wanted_replicas(managed),
        groups=tuple(_group_rollout(one, pods) for one in found if one is not None),
        pods=tuple(pods),
        reading=await read(masters.at(admin)) if answers else None,
        trouble=outcome.trouble,
    )


def _deployment_rollout(live: Manifest) -> Rollout:
    status = live.get("status") or {}
    return Rollout(
        name=live["metadata"]["name"],
        wanted=live["spec"].get("replicas", 1),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        fresh=_is_fresh(live, status),
    )


def _group_rollout(live: Manifest, pods: Iterable[StorePod]) -> Rollout:
    status, uid = live.get("status") or {}, live["metadata"]["uid"]
    current = up_to_date((pod for pod in pods if pod.workload == uid), fingerprint_of(live))
    return Rollout(
        name=live["metadata"]["name"],
        wanted=status.get("desiredNumberScheduled", 0),
        updated=len(current),
        ready=status.get("numberReady", 0),
        fresh=_is_fresh(live, status),
    )


def _is_fresh(live: Manifest, status: dict[str, Any]) -> bool:
    return bool(status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0))
