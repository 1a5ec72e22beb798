"""What many pools cost their one master and the API server: created at once, left in peace, found at a restart.

    python -m bench.pools [--pools 100] [--bindings 20] [--quiet-seconds 60]

The master is a real one, without memory, so that nothing but bookkeeping is measured. The controller is a process of
its own; this one plays the administrators, and the backend controller. Requests to the API server are those that it
counted itself, without the ones this process made and without watches; requests to the master are counted where they
leave. Prints, per phase, requests by kind, those of a pool, and CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import uvloop
from yarl import URL

from bench.reconcile import WRITES, Bench, at_once, cpu_seconds, peak_mib
from inferencecache.api.kinds import crds
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers import kvcachepool
from inferencecache.controllers.kvcachepool.reconciler import REOBSERVED
from inferencecache.controllers.mooncake.admin import MooncakeClients
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.manager import Manager, Options
from inferencecache.kube.resource import Key
from tests.mooncake import Master

NAMESPACE = "bench"
BACKEND = "store"
RESOURCES = {"configmaps", "kvcachebackends", "kvcachepoolbindings", "kvcachepools"}
API = "worker.gpustack.ai/v1"


class Counting(MooncakeClients):
    """Counts what leaves for masters, and keeps the numbers in a file."""

    def __init__(self, told: Path) -> None:
        super().__init__()
        self._told = told
        self._made: Counter[str] = Counter()

    async def request(self, method: str, url: URL, **more: Any) -> tuple[int, bytes]:
        self._made[f"{method} {url.path}"] += 1
        self._told.write_text(json.dumps(self._made))
        return await super().request(method, url, **more)


async def operate(kubeconfig: str, told: Path) -> None:
    """Be the controller until SIGTERM."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    async with await connect(kubeconfig) as connection:
        client = Client(connection, field_manager="inferencecache-controller")
        manager = Manager(client, options=Options(metrics_address="0", health_address="0"))
        masters = Counting(told)
        manager.add(masters.run, name="mooncake-clients")
        kvcachepool.register(manager, namespace=NAMESPACE, masters=masters)
        await manager.run()


class PoolBench(Bench):
    """The administrators, and the one who counts."""

    resources = RESOURCES
    patience = 1800.0  # a master takes longer for each tenant the more it has

    def __init__(self, client: Client, plane: ControlPlane, pools: int, bindings: int, told: Path) -> None:
        super().__init__(client, plane, 0)
        self.names = [f"pool-{number:03}" for number in range(pools)]
        self.bindings = [(pool, f"{pool}-{number:02}") for pool in self.names for number in range(bindings)]
        self.told = told

    async def create(self) -> None:
        """Create all pools and Bindings at once."""
        await at_once(lambda name=name: self._make(KVCachePool, "", name, pool()) for name in self.names)
        await at_once(
            lambda pool=pool, name=name: self._make(KVCachePoolBinding, NAMESPACE, name, binding(pool, name))
            for pool, name in self.bindings
        )
        self.own["POST", "kvcachepools"] += len(self.names)
        self.own["POST", "kvcachepoolbindings"] += len(self.bindings)

    async def observed(self) -> int:
        """How many Bindings know what the master grants them."""
        self.own["LIST", "kvcachepoolbindings"] += 1 + len(self.bindings) // 501
        found = await self.client.list(KVCachePoolBinding, namespace=NAMESPACE)
        return sum(one.status.effective_quota is not None for one in found)

    async def _make(self, kind: type[KVCachePool | KVCachePoolBinding], namespace: str, name: str, spec: Any) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        await self.client.create({"apiVersion": API, "kind": kind.resource.kind, "metadata": metadata, "spec": spec})

    @asynccontextmanager
    async def phase(self, name: str, process: subprocess.Popen[bytes]) -> AsyncIterator[None]:
        """Print what a phase costs."""
        before, asked = await self.requests(), self.asked()
        cpu, start = cpu_seconds(process.pid), time.monotonic()
        yield
        wall, spent = time.monotonic() - start, cpu_seconds(process.pid) - cpu
        made, of_master = await self.requests() - before, self.asked() - asked
        writes = sum(count for (verb, _), count in made.items() if verb in WRITES)
        print(f"\n{name}: {wall:.1f} s, {spent:.2f} s of CPU")
        print(
            f"  to the API server {made.total()} requests, {writes} of them writes; to the master {of_master.total()}"
        )
        for (verb, resource), count in sorted(made.items()):
            print(f"  {verb:7} {resource:26} {count:6}  {count / len(self.names):7.2f} per pool")
        for what, count in sorted(of_master.items()):
            print(f"  {what:34} {count:6}  {count / len(self.names):7.2f} per pool")

    def asked(self) -> Counter[str]:
        """What the controller asked masters so far."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return Counter(json.loads(self.told.read_text()))
        return Counter()


def pool() -> dict[str, Any]:
    """A pool's spec."""
    return {"backends": [BACKEND], "quota": {"total": "1Ti"}}


def binding(pool: str, name: str) -> dict[str, Any]:
    """A Binding's spec."""
    domain = {"name": name, "blockSize": 64, "dtype": "bfloat16"}
    return {"poolRef": {"name": pool}, "quota": {"ceiling": "16Mi"}, "domain": domain}


async def store(client: Client, master: Master) -> None:
    """An external backend that has published its addresses."""
    endpoints = [{"name": "Client", "address": master.client}, {"name": "Admin", "address": master.admin}]
    spec = {"connection": {"external": {"endpoints": endpoints}}}
    await client.create({"apiVersion": API, "kind": "KVCacheBackend", "metadata": {"name": BACKEND}, "spec": spec})
    await client.patch_status(KVCacheBackend.resource, Key("", BACKEND), {"endpoints": endpoints})


async def measure(pools: int, bindings: int, quiet_seconds: float) -> None:
    """All phases."""
    with tempfile.TemporaryDirectory() as folder, Master(Path(folder)) as master, ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="bench")
            await install_crds(client, crds())
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            await store(client, master)
            bench = PoolBench(client, plane, pools, bindings, Path(folder) / "asked.json")
            round_seconds = REOBSERVED.total_seconds()
            with controller(plane, bench.told) as process:
                what = f"{pools} pools with {bindings} Bindings each created at once, until all are observed"
                async with bench.phase(what, process):
                    await bench.create()
                    await bench.until(bench.observed, len(bench.bindings))
                await asyncio.sleep(round_seconds)
                async with bench.phase(f"{quiet_seconds:g} quiet seconds", process):
                    await asyncio.sleep(quiet_seconds)
            bench.told.unlink()
            with controller(plane, bench.told) as process:
                async with bench.phase("a new controller finds them", process):
                    await asyncio.sleep(round_seconds / 2)


@contextmanager
def controller(plane: ControlPlane, told: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The controller as a process."""
    command = [sys.executable, "-m", "bench.pools", "--operate", str(plane.admin), "--told", str(told)]
    process = subprocess.Popen(command)
    try:
        yield process
        print(f"  peak memory of this controller: {peak_mib(process.pid):.0f} MiB")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pools", type=int, default=100)
    parser.add_argument("--bindings", type=int, default=20)
    parser.add_argument("--quiet-seconds", type=float, default=60.0)
    parser.add_argument("--operate", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = (
        operate(options.operate, options.told)
        if options.operate
        else measure(options.pools, options.bindings, options.quiet_seconds)
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
