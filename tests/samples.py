"""What each sample promises about an engine Pod: the table behind the tests that apply samples and wire Pods with them.

A row names a CacheBackend of a sample and what its engine must show afterwards. `{namespace}` in an expectation is the
namespace the sample was applied in, and `{store}` the address of the store that its pool rests on. A second table is
about engines that ask for a pool themselves, by a label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inferencecache.webhooks.kvcache_injection import wants_pool

SAMPLES = Path(__file__).parents[1] / "manifests" / "samples"
SUBSCRIBER_IMAGE = "inferencecache:test"
STORE, STORE_ADMIN = "mooncake.example.com:50051", "mooncake.example.com:9003"
"""What the samples call the store of somebody else."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Promise:
    """What becomes of an engine Pod of one backend; runs of `args` stand side by side, in the engine's own."""

    sample: str
    backend: str
    args: Sequence[Sequence[str]] = ()
    env: dict[str, str] = field(default_factory=dict)
    without_env: Sequence[str] = ()
    init_containers: Sequence[str] = ()
    sidecars: Sequence[str] = ()
    worker_script: str = ""
    host_network: bool = False

    def __str__(self) -> str:
        return f"{self.sample}:{self.backend}"


def _connector(role: str = "kv_both") -> tuple[str, str]:
    return "--kv-transfer-config", f'{{"kv_connector":"LMCacheConnectorV1","kv_role":"{role}"}}'


def _server(name: str) -> dict[str, str]:
    return {"LMCACHE_REMOTE_URL": f"lm://{name}.{{namespace}}.svc.cluster.local:65432"}


_SUBSCRIBER = ("kvevent-subscriber",)
_CHECK = ("lmcache-kernel-check",)
_WORKER = ("lmcache-mp-worker",)
_SGLANG = (("--enable-lmcache",), ("--lmcache-config-file", "/etc/lmcache/config.yaml"))

PROMISES = (
    Promise(
        "cache_v1alpha1_cachebackend", "cachebackend-sample", [_connector()], _server("cachebackend-sample"), (), _CHECK
    ),
    Promise(
        "cachebackend-lmcache",
        "lmcache",
        [_connector()],
        _server("lmcache")
        | {"LMCACHE_CHUNK_SIZE": "256", "LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "20"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise("cachebackend-lmcache-cpu", "lmcache-cpu", [_connector()], _server("lmcache-cpu"), (), _CHECK, _SUBSCRIBER),
    Promise(
        "cachebackend-external",
        "external",
        [_connector()],
        {"LMCACHE_REMOTE_URL": "lm://my-cache.example.com:8200"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "cachebackend-host-only",
        "host-only",
        [_connector()],
        {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "32"},
        without_env=["LMCACHE_REMOTE_URL"],
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "cachebackend-mooncake",
        "mooncake",
        [_connector()],
        {
            "LMCACHE_REMOTE_URL": "mooncakestore://mooncake.{namespace}.svc.cluster.local:50051",
            "LMCACHE_MAX_LOCAL_CPU_SIZE": "16",
        },
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
        host_network=True,
    ),
    Promise(
        "cachebackend-mooncake-external",
        "mooncake-external",
        [_connector()],
        {"LMCACHE_REMOTE_URL": "mooncakestore://mooncake.example.com:50051"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
        host_network=True,
    ),
    Promise(
        "cachebackend-pool",
        "pooled",
        [_connector()],
        {"LMCACHE_REMOTE_URL": "mooncakestore://{store}"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "cachebackend-events-only",
        "events-only",
        without_env=["LMCACHE_REMOTE_URL", "LMCACHE_CHUNK_SIZE"],
        sidecars=_SUBSCRIBER,
    ),
    Promise("cachebackend-scheduling", "scheduling", [_connector()], _server("scheduling"), init_containers=_CHECK),
    Promise(
        "cachebackend-fail-closed",
        "fail-closed",
        [_connector()],
        _server("fail-closed") | {"INFERENCECACHE_FAIL_OPEN": "false"},
        init_containers=_CHECK,
    ),
    Promise(
        "cachebackend-cpu-override",
        "cpu-override",
        [_connector(), ("--max-model-len", "4096")],
        _server("cpu-override") | {"LMCACHE_CHUNK_SIZE": "128", "VLLM_CPU_KVCACHE_SPACE": "4"},
        init_containers=_CHECK,
    ),
    Promise(
        "cachebackend-with-engine", "qwen-demo-cache", [_connector()], _server("qwen-demo-cache"), sidecars=_SUBSCRIBER
    ),
    Promise(
        "cachebackend-with-override",
        "override-demo-cache",
        [_connector()],
        _server("override-demo-cache") | {"LMCACHE_CHUNK_SIZE": "64", "LMCACHE_REMOTE_SERDE": "cachegen"},
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "cachebackend-sglang",
        "sglang",
        _SGLANG,
        init_containers=_WORKER,
        sidecars=_SUBSCRIBER,
        worker_script='--l1-size-gb 32 --eviction-policy LRU --l2-adapter \'{{"type":"resp",'
        '"host":"sglang.{namespace}.svc.cluster.local","port":6379}}\'',
    ),
    Promise(
        "cachebackend-sglang-redis-external",
        "sglang-redis-external",
        _SGLANG,
        init_containers=_WORKER,
        sidecars=_SUBSCRIBER,
        worker_script='"host":"redis.example.com","port":6379',
    ),
    Promise(
        "cachebackend-sglang-host-only",
        "sglang-host-only",
        _SGLANG,
        init_containers=_WORKER,
        sidecars=_SUBSCRIBER,
        worker_script="--l1-size-gb 32 --eviction-policy LRU",
    ),
    Promise("cachebackend-sglang-events-only", "sglang-events-only", sidecars=_SUBSCRIBER),
    Promise(
        "cachebackend-sglang-hicache",
        "sglang-hicache",
        [
            ("--enable-hierarchical-cache", "--hicache-ratio", "2.0", "--hicache-write-policy", "write_through"),
            ("--hicache-io-backend", "kernel", "--hicache-mem-layout", "page_first"),
        ],
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "cachebackend-sglang-hicache-size",
        "sglang-hicache-size",
        [("--enable-hierarchical-cache", "--hicache-size", "64")],
    ),
    Promise("recipe-cpu-dev", "cpu-dev-cache", [_connector()], _server("cpu-dev-cache"), sidecars=_SUBSCRIBER),
    Promise(
        "recipe-gpu-production",
        "production-cache",
        [_connector()],
        _server("production-cache") | {"LMCACHE_MAX_LOCAL_CPU_SIZE": "64"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "recipe-external-cache",
        "shared-cache",
        [_connector()],
        {"LMCACHE_REMOTE_URL": "lm://my-cache.example.com:8200"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise("recipe-multi-tenant", "cache", [_connector()], _server("cache"), (), _CHECK, _SUBSCRIBER),
    Promise(
        "recipe-tuning",
        "tuning-cache",
        [_connector(), ("--max-model-len", "8192", "--enable-prefix-caching")],
        _server("tuning-cache") | {"LMCACHE_CHUNK_SIZE": "64", "LMCACHE_LOG_LEVEL": "DEBUG"},
        without_env=["LMCACHE_REMOTE_SERDE"],
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "recipe-prefill-decode",
        "pd-cache",
        [_connector("kv_producer")],
        _server("pd-cache"),
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
    Promise(
        "recipe-prefill-decode",
        "pd-decode",
        [_connector("kv_consumer")],
        {"LMCACHE_REMOTE_URL": "lm://pd-cache:65432"},
        init_containers=_CHECK,
        sidecars=_SUBSCRIBER,
    ),
)


@dataclass(frozen=True)
class PoolPromise:
    """What becomes of the Pods of one Deployment that asks for a pool: arguments, and the settings of the client."""

    sample: str
    deployment: str
    args: Sequence[str]
    config: dict[str, str]

    def __str__(self) -> str:
        return f"{self.sample}:{self.deployment}"


POOL_PROMISES = (
    PoolPromise(
        "engine-kv-cache-pool",
        "chat",
        [
            *("--kv-transfer-config", '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'),
            *("--kv-cache-dtype", "fp8_e4m3"),
        ],
        {"master_server_address": "{store}", "tenant_id": "qwen3-8b"},
    ),
)


def documents(path: Path) -> list[Manifest]:
    """The objects of a sample."""
    return list(yaml.safe_load_all(path.read_text()))


def backend_of(promise: Promise) -> Manifest:
    """The backend a promise is about; the first, where namespaces repeat it."""
    return next(
        one
        for one in documents(SAMPLES / f"{promise.sample}.yaml")
        if one["kind"] == "CacheBackend" and one["metadata"]["name"] == promise.backend
    )


def engine_pod(promise: Promise) -> Manifest:
    """An engine Pod for the backend: the sample's own where it has one, else a plain one with a GPU."""
    wanted = backend_of(promise)["spec"]["engineSelector"]["matchLabels"]
    for one in documents(SAMPLES / f"{promise.sample}.yaml"):
        template = one["spec"]["template"] if one["kind"] == "Deployment" else {"metadata": {"labels": {}}}
        if wanted.items() <= template["metadata"]["labels"].items():
            return _pod(template["metadata"]["labels"], template["spec"])
    name = backend_of(promise)["spec"]["runtime"].lower()
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    return _pod(
        wanted, {"containers": [{"name": name, "image": "engine:1", "args": ["--port", "1"], "resources": gpu}]}
    )


def pooled_deployments(path: Path) -> list[Manifest]:
    """The Deployments of a sample whose Pods ask for a pool."""
    return [
        one
        for one in documents(path)
        if one["kind"] == "Deployment" and wants_pool(one["spec"]["template"]["metadata"]["labels"])
    ]


def pooled_pod(promise: PoolPromise) -> Manifest:
    """A Pod of the Deployment, as its controller would make it."""
    deployments = pooled_deployments(SAMPLES / f"{promise.sample}.yaml")
    template = next(one["spec"]["template"] for one in deployments if one["metadata"]["name"] == promise.deployment)
    metadata = {"name": promise.deployment, **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def broken_pool(promise: PoolPromise, pod: Manifest, store: str = STORE) -> list[str]:
    """What of a promise does not hold for an admitted Pod."""
    before, engine = pooled_pod(promise)["spec"]["containers"][0], pod["spec"]["containers"][0]
    config = json.loads(pod["metadata"].get("annotations", {}).get("kvcache.gpustack.ai/client-config", "{}"))
    wanted = {name: value.format(store=store) for name, value in promise.config.items()}
    checks = {
        "the owner's args, then ours": engine["args"] == [*before["args"], *promise.args],
        "the client's settings": wanted.items() <= config.items(),
        "mounted": [one["name"] for one in engine.get("volumeMounts", [])].count("gpustack-kvcache-config") == 1,
    }
    return [name for name, holds in checks.items() if not holds]


def _pod(labels: dict[str, str], spec: Manifest) -> Manifest:
    metadata = {"name": "engine", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def broken(promise: Promise, pod: Manifest, namespace: str, store: str = STORE) -> list[str]:
    """What of a promise does not hold for an admitted Pod."""
    spec = pod["spec"]
    before = engine_pod(promise)["spec"]["containers"][0]
    engine = next(one for one in spec["containers"] if one["name"] == before["name"])
    args, env = engine.get("args", []), {one["name"]: one.get("value") for one in engine.get("env", [])}
    inits = {one["name"]: one for one in spec.get("initContainers", [])}
    checks = {
        "the owner's args come first": args[: len(before["args"])] == before["args"],
        "init containers": list(inits) == list(promise.init_containers),
        "sidecars": [one["name"] for one in spec["containers"] if one is not engine] == list(promise.sidecars),
        "host network": bool(spec.get("hostNetwork")) is promise.host_network,
        "stamp": pod["metadata"].get("annotations", {}).get("inferencecache.io/injected-by")
        == f"{namespace}/{promise.backend}",
    }
    for run in promise.args:
        checks[f"args {run}"] = any(args[at : at + len(run)] == list(run) for at in range(len(args)))
    if not promise.args:
        checks["args untouched"] = args == before["args"]
    for name, value in promise.env.items():
        checks[f"{name}={value}"] = env.get(name) == value.format(namespace=namespace, store=store)
    for name in promise.without_env:
        checks[f"no {name}"] = name not in env
    if promise.worker_script:
        wanted = promise.worker_script.format(namespace=namespace)
        checks["the worker's script"] = wanted in inits["lmcache-mp-worker"]["args"][0]
    return [name for name, holds in checks.items() if not holds]
