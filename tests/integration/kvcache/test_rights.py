"""The pool half uses all its rights and misses none: its life, while an API server takes notes.

Stores, pools and Bindings come, change and go beside an installed operator, on a real master. There is no kubelet, so a
managed store never serves; that its objects are made and taken away again is what needs rights.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferencecache.api.kvcache import POLICY_KEY, policy_config_map
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject
from inferencecache.cli.install import CONTROLLER, NAMESPACE, POOL_NAMESPACE, POOLS_ROLE, STORES_ROLE, controller_rbac
from inferencecache.cli.trial import trial
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import ConfigMap, DaemonSet, Deployment, Role, RoleBinding, Service, ServiceAccount
from inferencecache.kube.resource import Key, Kind, Manifest
from tests.integration.audit import Audit, Use, covers, granted
from tests.integration.kube.waiting import eventually
from tests.integration.operator_process import find, there
from tests.mooncake import Master

USER = f"system:serviceaccount:{NAMESPACE}:{CONTROLLER}"
_STORES = POOL_NAMESPACE

# Granted, needed, and not to be seen here, with the reason.
UNSEEN = {
    **{
        Use(verb, "coordination.k8s.io", "leases", _STORES): "handed on to leaders, as nobody can grant what he lacks"
        for verb in ("create", "get", "update")
    },
    Use("patch", "", "pods", _STORES): "handed on to leaders, which label their own Pod",
    **{
        Use(verb, "", "pods", _STORES): "members are replaced, which needs members that run"
        for verb in ("get", "delete")
    },
    **{Use(verb, "events.k8s.io", "events"): "told of a deletion that does not end" for verb in ("create", "patch")},
}


@pytest.fixture
async def noted(tmp_path: Path) -> AsyncIterator[tuple[Audit, Client]]:
    """An installation of its own, on an API server that takes notes."""
    audit = Audit(tmp_path)
    with ControlPlane(apiserver_flags=audit.flags) as plane:
        async with trial(plane) as installed:
            yield audit, installed.client


async def test_the_pool_half_uses_all_its_rights_and_needs_no_others(
    noted: tuple[Audit, Client], master: Master
) -> None:
    audit, client = noted
    await the_life_of_a_pool(client, master)
    await the_life_of_a_managed_store(client)
    grants = granted([one for one in controller_rbac() if of_the_half(one)], CONTROLLER)
    idle = {grant for grant in grants if not any(covers(grant, use) for use in audit.used(USER))}
    assert sorted(map(str, audit.refused(USER))) == []
    assert sorted(map(str, idle - UNSEEN.keys())) == []
    assert sorted(map(str, UNSEEN.keys() - idle)) == [], "these are seen after all"


def of_the_half(manifest: Manifest) -> bool:
    reference = manifest.get("roleRef", manifest["metadata"])
    return reference["name"] in (POOLS_ROLE, STORES_ROLE)


async def the_life_of_a_pool(client: Client, master: Master) -> None:
    endpoints = [{"name": "Client", "address": master.client}, {"name": "Admin", "address": master.admin}]
    await create(client, KVCacheBackend, Key("", "outside"), {"connection": {"external": {"endpoints": endpoints}}})
    await create(client, KVCachePool, Key("", "pool"), {"backends": ["outside"], "quota": {"total": "1Gi"}})
    key = Key("default", "binding")
    domain = {"name": "d", "blockSize": 64, "dtype": "bfloat16"}
    await create(
        client, KVCachePoolBinding, key, {"poolRef": {"name": "pool"}, "quota": {"ceiling": "16Mi"}, "domain": domain}
    )
    await eventually(lambda: requested(client, key), lambda seen: seen == "16Mi")
    await client.patch(KVCachePoolBinding.resource, key, {"spec": {"quota": {"ceiling": "32Mi"}}})
    await eventually(lambda: policy(client, "outside"), lambda seen: seen == [{"name": "d", "quota": 32 << 20}])
    for kind, one in ((KVCachePoolBinding, key), (KVCachePool, Key("", "pool")), (KVCacheBackend, Key("", "outside"))):
        await client.delete(kind.resource, one)
        await gone(client, kind, one)


async def the_life_of_a_managed_store(client: Client) -> None:
    group = {"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "1Gi"}
    managed: Manifest = {"leader": {}, "members": [group, {**group, "nodeSelector": {"c": "d"}}]}
    key = Key("", "inside")
    await create(client, KVCacheBackend, key, {"connection": {"managed": managed}})
    leader, member = Key(_STORES, "inside-leader"), Key(_STORES, "inside-member-1")
    for kind in (Deployment, Service, ServiceAccount, Role, RoleBinding):
        await there(client, kind, leader)
    await there(client, DaemonSet, member)
    changed = {"leader": {"electionBackend": "None"}, "members": [{**group, "capacityPerMember": "2Gi"}]}
    await client.patch(KVCacheBackend.resource, key, {"spec": {"connection": {"managed": changed}}})
    await finished(client, DaemonSet, member)
    for kind in (ServiceAccount, Role, RoleBinding):
        await gone(client, kind, leader)
    await client.delete(KVCacheBackend.resource, key)
    for kind in (Deployment, Service):
        await finished(client, kind, leader)
    await finished(client, DaemonSet, Key(_STORES, "inside-member-0"))
    await gone(client, KVCacheBackend, key)


async def create(client: Client, kind: type[CustomObject], key: Key, spec: Manifest) -> None:
    resource = kind.resource
    metadata = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
    await client.create({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec})


async def requested(client: Client, key: Key) -> str:
    found = (await client.get(KVCachePoolBinding, key)).status.requested_quota
    return str(found)


async def policy(client: Client, backend: str) -> Any:
    found = await find(client, ConfigMap, Key(_STORES, policy_config_map(backend)))
    return yaml.safe_load(found["data"][POLICY_KEY])["tenants"] if found else None


async def gone(client: Client, kind: type[Kind], key: Key) -> None:
    await eventually(lambda: find(client, kind, key), lambda found: found is None)


async def finished(client: Client, kind: type[Kind], key: Key) -> None:
    """Be the garbage collector: let go of what is deleted in the foreground."""

    async def let_go() -> bool:
        found = await find(client, kind, key)
        if found is not None and found["metadata"].get("deletionTimestamp"):
            with contextlib.suppress(NotFound):
                await client.patch(kind.resource, key, {"metadata": {"finalizers": None}})
        return found is None

    await eventually(let_go, bool)
