"""Pod admission over HTTPS against an empty FastAPI endpoint on the same listener, interleaved in one run.

    python -m bench.admission [--rounds N]

A client in a process of its own keeps one connection alive and asks, in turn, for an empty endpoint, for an uninvolved
Pod and for a Pod that is wired to an LMCache server, with 10 and with 1,000 CacheBackends in other namespaces. Printed
are requests per second, p50, p99 and CPU of the server per request, and each p50 as a multiple of the empty endpoint's.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import http.client
import json
import multiprocessing
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from inferencecache.adapters.registry import Settings, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.store import Store
from inferencecache.webhooks.app import POD_PATH, create_app
from inferencecache.webhooks.handlers import Handlers
from inferencecache.webhooks.selection import InformedBackends
from inferencecache.webhooks.server import WebhookServer
from inferencecache.webhooks.unwired import UnwiredMemo

BATCH: Final = 50
ELSEWHERE: Final = (10, 1000)


class SyncedInformer:
    """An informer that is connected and holds what it was given, over the framework's own store."""

    synced = True

    def __init__(self, backends: Sequence[CacheBackend]) -> None:
        self._store: Store[Any] = Store()
        for backend in backends:
            self._store.put(backend)

    def connected(self, now_monotonic: float) -> bool:
        return True

    def silent_for(self, now_monotonic: float) -> float:
        return 0.0

    def list(self, namespace: str = "") -> list[CacheBackend]:
        return self._store.list(namespace)


class NoServer:
    """The API server, which must not be asked."""

    async def list(self, kind: Any, *, namespace: str = "") -> list[Any]:
        raise AssertionError("Pod admission made an API request")

    async def siblings(self, kind: type[Any], namespace: str) -> Sequence[Any]:
        raise AssertionError("Pod admission made an API request")


def backend(name: str, namespace: str) -> CacheBackend:
    """A published backend for Pods with app=llm."""
    return CacheBackend.decode(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
            "spec": {
                "runtime": "VLLM",
                "type": "LMCache",
                "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
                "observation": {"modelID": "Qwen/Qwen3"},
                "engineSelector": {"matchLabels": {"app": "llm"}},
            },
            "status": {"endpoint": f"{name}.{namespace}.svc.cluster.local:65432"},
        }
    )


def review(app: str) -> bytes:
    """The review of an engine Pod as a Deployment makes it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "llm-7d4b9c6f5-",
            "namespace": "engines",
            "labels": {"app": app, "pod-template-hash": "7d4b9c6f5", "team": "inference"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llm-7d4b9c6f5", "uid": "u"}],
        },
        "spec": {
            "volumes": [{"name": f"v{i}", "emptyDir": {}} for i in range(4)],
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.11.0",
                    "args": ["--model", "Qwen/Qwen3", "--port", "8000", "--enable-prefix-caching"],
                    "env": [{"name": f"SETTING_{i}", "value": str(i)} for i in range(12)],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
                    "volumeMounts": [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(4)],
                }
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "namespace": "engines", "operation": "CREATE", "object": pod}
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


def client(port: int, rounds: int, pipe: Connection) -> None:
    """Time batches of each request, one after the other on one connection; tells the server where batches begin."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls)
    wanted = {"empty endpoint": ("/empty", review("web")), "uninvolved Pod": (POD_PATH, review("web"))}
    wanted["wired Pod"] = (POD_PATH, review("llm"))
    seconds: dict[str, list[float]] = {name: [] for name in wanted}
    for turn in range(rounds + 1):
        for name, (path, body) in wanted.items():
            pipe.send(name if turn else "warm-up")
            pipe.recv()
            for _ in range(BATCH):
                started = time.perf_counter()
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse().read()
                if turn:
                    seconds[name].append(time.perf_counter() - started)
            if name != "empty endpoint" and (b'"patch"' in answer) is not (name == "wired Pod"):
                raise AssertionError(f"{name}: {answer!r}")
    pipe.send(None)
    pipe.send(seconds)


async def measure(elsewhere: int, rounds: int, folder: Path) -> None:
    """One listener, one client, and the table for it."""
    runtimes, _ = load_adapters()
    backends = [backend("primary", "engines"), *(backend("kv", f"tenant-{i}") for i in range(elsewhere))]
    reader = InformedBackends(SyncedInformer(backends), NoServer())
    settings = Settings(kvevent_subscriber_image="inferencecache:bench")
    app = create_app(Handlers(runtimes, settings, reader, NoServer(), UnwiredMemo()))

    @app.post("/empty")
    async def empty() -> dict[str, str]:
        return {}

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate(folder))
    server = WebhookServer(app, host="127.0.0.1", port=0, tls=tls)
    serving = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(10):
            await server.started.wait()
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=client, args=(server.bound_port, rounds, there))
        process.start()
        there.close()
        cpu: dict[str, float] = {}
        current, since = "", time.process_time()
        while (name := await asyncio.to_thread(here.recv)) is not None:
            cpu[current] = cpu.get(current, 0.0) + time.process_time() - since
            current, since = name, time.process_time()
            here.send(None)
        cpu[current] = cpu.get(current, 0.0) + time.process_time() - since
        seconds: dict[str, list[float]] = await asyncio.to_thread(here.recv)
        await asyncio.to_thread(process.join)
    finally:
        serving.cancel()
        await asyncio.wait([serving])
    base = statistics.median(seconds["empty endpoint"])
    print(f"\n{elsewhere} backends in other namespaces, {rounds * BATCH} requests each")
    print(f"{'':16}{'req/s':>8}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}{'p50 ratio':>11}")
    for name, taken in seconds.items():
        p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
        print(
            f"{name:16}{len(taken) / sum(taken):8.0f}{p50 * 1e3:9.2f}{p99 * 1e3:9.2f}"
            f"{cpu[name] / len(taken) * 1e6:9.0f}{p50 / base:10.2f}x"
        )


def certificate(folder: Path) -> Path:
    """A self-signed pair in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = folder / "pair.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(pem)
    )
    return path


def main() -> None:
    """Measure with few and with many backends elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help=f"batches of {BATCH} requests of each sort")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        for elsewhere in ELSEWHERE:
            asyncio.run(measure(elsewhere, rounds, Path(folder)))


if __name__ == "__main__":
    main()
