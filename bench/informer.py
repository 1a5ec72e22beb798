"""How fast an informer takes in a cluster's Pods, and what keeping them costs, against kubernetes-asyncio's typed list.

    python -m bench.informer [--pods 10000] [--rounds 3]

Real Pods of a realistic size are created once in a real API server (no kubelet; their status is written, too). Both
sides then read them over the same loopback TLS in pages of 500, in turns, in one process: ours until the informer is
synced, theirs until all Pods are typed objects in a dict. Memory is what a fresh process holds afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from inferencecache.kube.client import PAGE_SIZE, Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import path_of

T = TypeVar("T")

MIB = 2**20
WRITERS = 48
NAMESPACES = 20


@dataclass(frozen=True, slots=True)
class Sync:
    """One side's whole read: seconds on the wall and of CPU."""

    wall: float
    cpu: float


def pod(number: int) -> dict[str, Any]:
    """A Pod as an inference platform makes them: one of ten replicas of a model server."""
    model, digest = f"model-{number // 10}", f"{number // 10 * 2654435761 % 2**40:010x}"
    env = {
        "HF_HOME": "/models/cache",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "NCCL_DEBUG": "WARN",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.observability.svc:4317",
        "OTEL_SERVICE_NAME": model,
    }
    labels = {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": model,
        "app.kubernetes.io/part-of": "inference-platform",
        "pod-template-hash": digest,
        "team": f"team-{number % NAMESPACES}",
        "model": model,
    }
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 30}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{model}-{digest}-{number:05d}",
            "namespace": f"team-{number % NAMESPACES}",
            "labels": labels,
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "8000",
                "platform.example.com/config-hash": digest * 4,
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{model}-{digest}",
                    "uid": f"00000000-0000-4000-8000-{number // 10:012d}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 500}",
            "containers": [
                {
                    "name": "engine",
                    "image": "registry.example.com/inference/vllm-openai:v0.9.2",
                    "command": ["vllm", "serve", f"/models/{model}", "--port", "8000", "--max-model-len", "32768"],
                    "ports": [{"name": "http", "containerPort": 8000}],
                    "env": [{"name": name, "value": value} for name, value in env.items()],
                    "resources": {
                        "requests": {"cpu": "8", "memory": "64Gi"},
                        "limits": {"memory": "64Gi"},
                    },
                    "readinessProbe": probe,
                    "volumeMounts": [
                        {"name": "models", "mountPath": "/models"},
                        {"name": "shm", "mountPath": "/dev/shm"},
                    ],
                },
            ],
            "volumes": [
                {"name": "models", "persistentVolumeClaim": {"claimName": f"{model}-weights"}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }


def status(number: int) -> dict[str, Any]:
    """What a kubelet would have written for `pod(number)`."""
    when = "2026-01-01T00:00:00Z"
    address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": f"192.168.{number % 500 // 250}.{number % 250 + 1}",
        "startTime": when,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": when}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "image": "registry.example.com/inference/vllm-openai:v0.9.2",
                "imageID": f"registry.example.com/inference/vllm-openai@sha256:{number:064x}",
                "containerID": f"containerd://{number:064x}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": when}},
            }
        ],
    }


async def populate(client: Client, pods: int) -> None:
    """Create the Pods, and write their status, many at once."""
    for number in range(NAMESPACES):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
    numbers = iter(range(pods))
    started = time.perf_counter()

    async def write() -> None:
        for number in numbers:
            manifest = pod(number)
            path = path_of(Pod.resource, manifest["metadata"]["namespace"])
            await client.request("POST", path, body=manifest)
            await client.request(
                "PATCH",
                f"{path}/{manifest['metadata']['name']}/status",
                body={"status": status(number)},
                content_type="application/merge-patch+json",
            )
            if number % 500 == 0:
                print(f"\r  {number} of {pods} Pods created", end="", file=sys.stderr, flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(write())
    print(f"\r  {pods} Pods created in {time.perf_counter() - started:.0f} s", file=sys.stderr)


async def sync_informer(client: Client) -> Informer[Pod]:
    """Ours: an informer from nothing to synced."""
    informer = Informer(client, Pod)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await informer.wait_synced()
        running.cancel()
    return informer


async def typed_list(api: Any) -> dict[tuple[str, str], Any]:
    """Theirs: the typed objects of all pages in a dict."""
    pods: dict[tuple[str, str], Any] = {}
    token = None
    while True:
        page = await api.list_pod_for_all_namespaces(limit=PAGE_SIZE, _continue=token)
        for item in page.items:
            pods[item.metadata.namespace, item.metadata.name] = item
        token = page.metadata._continue
        if not token:
            return pods


async def typed_api(kubeconfig: Path) -> Any:
    """A `CoreV1Api` of kubernetes-asyncio; close its `api_client`."""
    from kubernetes_asyncio import client as models
    from kubernetes_asyncio import config

    configuration = models.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)
    return models.CoreV1Api(models.ApiClient(configuration))


async def timed(read: Callable[[], Awaitable[Any]], expected: int) -> Sync:
    """Run one side once, from a clean heap."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    content = await read()
    spent = Sync(time.perf_counter() - wall, time.process_time() - cpu)
    if len(content) != expected:
        raise SystemExit(f"read {len(content)} Pods instead of {expected}")
    return spent


async def compare(kubeconfig: Path, pods: int, rounds: int) -> tuple[list[Sync], list[Sync]]:
    """Both sides in turns."""
    ours: list[Sync] = []
    theirs: list[Sync] = []
    api = await typed_api(kubeconfig)
    try:
        async with await connect(kubeconfig) as connection:
            client = Client(connection, field_manager="bench")
            await client.list_page(Pod, limit=1)
            for number in range(1, rounds + 1):
                ours.append(await timed(lambda: sync_informer(client), pods))
                theirs.append(await timed(lambda: typed_list(api), pods))
                print(f"  round {number}: {ours[-1].wall:.2f} s against {theirs[-1].wall:.2f} s", file=sys.stderr)
    finally:
        await api.api_client.close()
    return ours, theirs


async def store_size(kubeconfig: Path) -> float:
    """MiB of Python objects that a synced informer holds."""
    async with await connect(kubeconfig) as connection:
        client = Client(connection, field_manager="bench")
        await client.list_page(Pod, limit=1)
        gc.collect()
        tracemalloc.start()
        informer = await sync_informer(client)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] / MIB
        tracemalloc.stop()
        if not informer.synced:
            raise SystemExit("the informer did not sync")
        return held


async def growth_of_ours(kubeconfig: Path) -> tuple[float, float]:
    """MiB by which this process grew when it had read all Pods, and at its highest."""
    async with await connect(kubeconfig) as connection:
        client = Client(connection, field_manager="bench")
        await client.list_page(Pod, limit=1)
        return await _growth(lambda: sync_informer(client))


async def growth_of_theirs(kubeconfig: Path) -> tuple[float, float]:
    """The same for the typed list."""
    api = await typed_api(kubeconfig)
    try:
        await api.list_pod_for_all_namespaces(limit=1)
        return await _growth(lambda: typed_list(api))
    finally:
        await api.api_client.close()


async def _growth(read: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    gc.collect()
    before = _memory("VmRSS")
    content = await read()
    gc.collect()
    grown = _memory("VmRSS") - before, _memory("VmHWM") - before
    del content
    return grown


def _memory(what: str) -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what + ":"))
    return int(line.split()[1]) / 1024


def _in_a_fresh_process(work: Callable[[Path], Coroutine[Any, Any, T]], kubeconfig: Path) -> T:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, work, kubeconfig).result(timeout=600)


def _run(work: Callable[[Path], Coroutine[Any, Any, T]], kubeconfig: Path) -> T:
    return uvloop.run(work(kubeconfig))


async def fill(kubeconfig: Path, pods: int) -> float:
    """Create the Pods; the answer is the mean size of one in a list, in bytes."""
    async with await connect(kubeconfig) as connection:
        client = Client(connection, field_manager="bench")
        await populate(client, pods)
        body = await client.request("GET", path_of(Pod.resource), params={"limit": "100"})
        return len(body) / len(msgspec.json.decode(body)["items"])


def report(
    what: str,
    ours: list[Sync],
    theirs: list[Sync],
    store: float,
    growth: tuple[float, float],
    growth_theirs: tuple[float, float],
) -> None:
    """Print the table."""
    wall, wall_theirs = (statistics.median(sync.wall for sync in side) for side in (ours, theirs))
    cpu, cpu_theirs = (statistics.median(sync.cpu for sync in side) for side in (ours, theirs))
    (grown, peak), (grown_theirs, peak_theirs) = growth, growth_theirs
    rows = [
        (f"sync, wall clock, {what}", *_row(wall, wall_theirs, "s"), "≥ 5×"),
        ("sync, CPU of this process", *_row(cpu, cpu_theirs, "s"), ""),
        ("the store's objects (tracemalloc)", f"{store:.1f} MiB", "", "", "≤ 25 MiB for 10,000"),
        ("growth of a fresh process", *_row(grown, grown_theirs, "MiB"), ""),
        ("its peak while reading", *_row(peak, peak_theirs, "MiB"), ""),
    ]
    print("| Informer | this framework | kubernetes-asyncio typed list | ratio | goal |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def _row(ours: float, theirs: float, unit: str) -> tuple[str, str, str]:
    ratio = f"{theirs / ours:.1f}×" if ours else ""
    return f"{ours:.2f} {unit}", f"{theirs:.2f} {unit}", ratio


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description="informer sync against a typed list")
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ControlPlane() as plane:
        kubeconfig = plane.admin
        size = uvloop.run(fill(kubeconfig, options.pods))
        ours, theirs = uvloop.run(compare(kubeconfig, options.pods, options.rounds))
        store = _in_a_fresh_process(store_size, kubeconfig)
        growth = _in_a_fresh_process(growth_of_ours, kubeconfig)
        growth_theirs = _in_a_fresh_process(growth_of_theirs, kubeconfig)
    what = f"{options.pods:,} Pods of {size / 1024:.1f} KiB"
    report(what, ours, theirs, store, growth, growth_theirs)


if __name__ == "__main__":
    main()
