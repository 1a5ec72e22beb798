"""Pods that ask for a pool, and the chains behind their Binding, as the tests change them."""

from __future__ import annotations

import copy
from typing import Any

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachechain import Chain
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.webhooks.kvcache_injection import Injected, Refused, inject

Json = dict[str, Any]
PREFIX = "kvcache.gpustack.ai/"
LEDGER = {"type": "QuotaLedgerAvailable", "status": "True", "reason": "Available", "message": "the ledger answers"}
NO_TENANTS = {"type": "QuotaLedgerAvailable", "status": "False", "reason": "MultiTenancyDisabled", "message": "off"}
ENDPOINT = "mooncake-dram-leader.gpustack-system.svc:50051"
VLLM = ("vllm", "serve", "Qwen/Qwen3-8B")
SGLANG = ("python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B")


def pod(engine: str = "vLLM", *, annotations: dict[str, str | None] | None = None, **container: Any) -> Json:
    """A Pod with the label, and the container of an engine that is started directly; None takes a key away."""
    command = list(VLLM if engine == "vLLM" else SGLANG)
    wanted: dict[str, str | None] = {"binding": "team-a", "engine": engine, **(annotations or {})}
    fields = {"name": "server", "image": "engine:1", "command": command, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "chat-0",
            "namespace": "team-a",
            "labels": {f"{PREFIX}inject": "true"},
            "annotations": {f"{PREFIX}{key}": value for key, value in wanted.items() if value is not None},
        },
        "spec": {"containers": [{key: value for key, value in fields.items() if value is not None}]},
    }


def binding(*, deleting: bool = False, **domain: Any) -> KVCachePoolBinding:
    deleted = {"deletionTimestamp": "2026-11-30T11:00:00Z"} if deleting else {}
    return KVCachePoolBinding.decode(
        {
            "metadata": {"name": "team-a", "namespace": "team-a", **deleted},
            "spec": {
                "poolRef": {"name": "shared-dram"},
                "quota": {"ceiling": "600Gi"},
                "domain": {"name": "qwen-72b-v2", "blockSize": 64, "dtype": "fp8_e4m3", **domain},
            },
        }
    )


def pool(*conditions: Json, endpoint: str = ENDPOINT, backends: tuple[str, ...] = ("mooncake-dram",)) -> KVCachePool:
    return KVCachePool.decode(
        {
            "metadata": {"name": "shared-dram"},
            "spec": {"backends": list(backends), "quota": {"total": "900Gi"}},
            "status": {"conditions": list(conditions), "clientEndpoint": endpoint},
        }
    )


def managed(*protocols: str | None, default: str = "Auto", **leader: Any) -> KVCacheBackend:
    """A managed store with a member group per protocol; None leaves a group without one of its own."""
    groups = [{"transport": {"protocol": one}} if one else {} for one in protocols or (None,)]
    return KVCacheBackend.decode(
        {
            "metadata": {"name": "mooncake-dram"},
            "spec": {
                "transport": {"protocol": default},
                "connection": {"managed": {"leader": leader, "members": groups}},
            },
        }
    )


def external(protocol: str = "Auto") -> KVCacheBackend:
    return KVCacheBackend.decode(
        {
            "metadata": {"name": "mooncake-dram"},
            "spec": {"transport": {"protocol": protocol}, "connection": {"external": {"endpoints": []}}},
        }
    )


def chain(**changed: Any) -> Chain:
    return Chain(**{"binding": binding(), "pool": pool(LEDGER), "backend": managed(), **changed})


def injected(given: Json, behind: Chain | None = None, *, dtype_owned: bool = True) -> Injected:
    """The Pod with its pool. Raises `Refused`. The argument is seen not to change."""
    before = copy.deepcopy(given)
    try:
        return inject(given, given["metadata"]["annotations"], "team-a", behind or chain(), dtype_owned=dtype_owned)
    finally:
        assert given == before


def refusals(given: Json, behind: Chain | None = None, *, dtype_owned: bool = True) -> dict[str, str]:
    """Why a Pod is refused: what is told, by field; empty for a Pod that is not."""
    try:
        injected(given, behind, dtype_owned=dtype_owned)
    except Refused as refused:
        found: dict[str, str] = {}
        for violation in refused.violations:
            found[violation.field] = f"{found.get(violation.field, '')}{violation.message}"
        return found or {"": "refused for nothing"}
    return {}


def server(done: Injected) -> Json:
    """The container of the engine afterwards."""
    container: Json = done.pod["spec"]["containers"][0]
    return container
