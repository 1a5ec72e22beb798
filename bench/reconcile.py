"""What many CacheBackends cost the API server and the controller: created at once, left in peace, found at a restart.

    python -m bench.reconcile [--backends 500] [--quiet-seconds 60]

Two controllers in turn, each on an API server of its own: ours, and the plain operator on kopf of `_reconcile_kopf.py`.
The controller is a process of its own; this one plays the user and the Deployment controller. Requests are those that
the API server itself counted (`apiserver_request_total`), without the ones this process made and without watches.
Prints, per phase, requests by verb and resource, requests per backend, CPU seconds, and the peak memory in the end;
then both controllers side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import uvloop

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.controllers import register
from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.kinds import Deployment
from inferencecache.kube.manager import Manager, Options
from inferencecache.kube.resource import Key

NAMESPACE = "bench"
AT_ONCE = 32
SETTLED_SECONDS = 3.0
IDLE_SHARE = 0.2
PATIENCE = 300.0
RESOURCES = {
    "cachebackends",
    "deployments",
    "events",
    "horizontalpodautoscalers",
    "pods",
    "replicasets",
    "services",
    "statefulsets",
}
WRITES = {"APPLY", "DELETE", "PATCH", "POST", "PUT"}
_SAMPLE = re.compile(r"apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)")

Requests = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one phase took: seconds on the wall and of CPU, and all requests."""

    wall: float
    cpu: float
    requests: int


async def operate(kubeconfig: str) -> None:
    """Be the controller until SIGTERM."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    async with await connect(kubeconfig) as connection:
        client = Client(connection, field_manager="inferencecache-controller")
        manager = Manager(client, options=Options(metrics_address="0", health_address="0"))
        register(manager, registries=load_adapters())
        await manager.run()


class Bench:
    """The user, the Deployment controller, and the one who counts."""

    resources = RESOURCES
    patience = PATIENCE

    def __init__(self, client: Client, plane: ControlPlane, backends: int) -> None:
        self.client = client
        self.plane = plane
        self.names = [f"kv-{number:04d}" for number in range(backends)]
        self.own: Requests = Counter()
        self.costs: dict[str, Cost] = {}

    async def requests(self) -> Requests:
        """All requests of others so far, by verb and resource."""
        found: Requests = Counter()
        for line in (await self.client.request("GET", "/metrics")).decode().splitlines():
            if match := _SAMPLE.fullmatch(line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
                if labels["resource"] in self.resources and labels["verb"] != "WATCH":
                    found[labels["verb"], labels["resource"]] += int(float(match["value"]))
        return found - self.own

    async def create(self) -> None:
        """Create all backends at once."""
        await at_once(lambda name=name: self.client.create(backend(name)) for name in self.names)
        self.own["POST", "cachebackends"] += len(self.names)

    async def roll_out(self) -> None:
        """Let every Deployment report that it is rolled out, as soon as it is there."""
        await self.until(lambda: self.count(Deployment), len(self.names))
        status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
        status |= {"readyReplicas": 1, "availableReplicas": 1}
        keys = [Key(NAMESPACE, name) for name in self.names]
        await at_once(lambda key=key: self.client.patch_status(Deployment.resource, key, status) for key in keys)
        self.own["PATCH", "deployments"] += len(keys)

    async def ready(self) -> int:
        """How many backends are ready, with an endpoint, as of their present spec."""
        self.own["LIST", "cachebackends"] += 1 + len(self.names) // 501
        found = await self.client.list(CacheBackend, namespace=NAMESPACE)
        return sum(
            any(one.type == "Ready" and one.status == "True" for one in each.status.conditions or ())
            and each.status.observed_generation == each.metadata.generation
            and bool(each.status.endpoint)
            for each in found
        )

    async def count(self, kind: type[Deployment]) -> int:
        """How many objects of a kind there are."""
        self.own["LIST", kind.resource.plural] += 1 + len(self.names) // 501
        return len(await self.client.list(kind, namespace=NAMESPACE))

    async def until(self, look: Callable[[], Awaitable[int]], wanted: int) -> None:
        """Wait until so many are seen. Raises `TimeoutError`."""
        async with asyncio.timeout(self.patience):
            while True:
                if await look() >= wanted:
                    return
                await asyncio.sleep(0.5)

    async def started(self, process: subprocess.Popen[bytes], others_listed: int) -> None:
        """Wait until a controller has listed the backends, and is done with what it then found to do.

        Args:
            process: the controller.
            others_listed: what `listed` was before the controller was started.
        """
        await self.until(self.listed, others_listed + 1)
        await self.settled(process)

    async def listed(self) -> int:
        """How often others have listed the backends so far."""
        return (await self.requests())["LIST", "cachebackends"]

    async def settled(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the controller has asked for nothing for a while and was idle all the same.

        Requests alone do not tell: kopf goes through all objects before it asks for the first thing.
        """
        async with asyncio.timeout(PATIENCE):
            before, cpu, since = await self.requests(), cpu_seconds(process.pid), time.monotonic()
            while True:
                await asyncio.sleep(SETTLED_SECONDS)
                now, spent, at = await self.requests(), cpu_seconds(process.pid), time.monotonic()
                if now == before and spent - cpu < IDLE_SHARE * (at - since):
                    return
                before, cpu, since = now, spent, at

    @contextlib.asynccontextmanager
    async def phase(self, name: str, process: subprocess.Popen[bytes]) -> AsyncIterator[None]:
        """Print and remember what a phase costs."""
        before, cpu, start = await self.requests(), cpu_seconds(process.pid), time.monotonic()
        yield
        wall, spent = time.monotonic() - start, cpu_seconds(process.pid) - cpu
        made = await self.requests() - before
        self.costs[name] = Cost(wall, spent, made.total())
        total, writes = made.total(), sum(count for (verb, _), count in made.items() if verb in WRITES)
        print(f"\n{name}: {wall:.1f} s, {spent:.2f} s of CPU, {total} requests ({writes} writes)")
        print(f"  {total / len(self.names):.2f} requests per backend")
        for (verb, resource), count in sorted(made.items()):
            print(f"  {verb:7} {resource:26} {count:6}  {count / len(self.names):5.2f} per backend")


def backend(name: str) -> dict[str, Any]:
    """A managed backend that selects engines and does not wait for an event."""
    return {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {"inferencecache.io/require-kv-events": "false"},
        },
        "spec": {
            "runtime": "VLLM",
            "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
            "engineSelector": {"matchLabels": {"app": name}},
        },
    }


async def at_once(work: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Do all of it, so many at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(do: Callable[[], Awaitable[object]]) -> None:
        async with turns:
            await do()

    async with asyncio.TaskGroup() as group:
        for do in work:
            group.create_task(one(do))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """The most memory a process had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def ours(plane: ControlPlane) -> list[str]:
    """The command that runs our controller."""
    return [sys.executable, "-m", "bench.reconcile", "--operate", str(plane.admin)]


def kopfs(_: ControlPlane) -> list[str]:
    """The command that runs the operator on kopf, which finds the API server in its environment."""
    options = [f"--namespace={NAMESPACE}", "--standalone", "--quiet"]
    return [sys.executable, "-m", "kopf", "run", *options, "-m", "bench._reconcile_kopf"]


@contextlib.contextmanager
def controller(plane: ControlPlane, command: list[str], peaks: list[float]) -> Iterator[subprocess.Popen[bytes]]:
    """A controller as a process; its peak memory in MiB is added to `peaks`."""
    process = subprocess.Popen(command, env={**os.environ, "KUBECONFIG": str(plane.admin)})
    try:
        yield process
        peaks.append(peak_mib(process.pid))
        print(f"  peak memory of this controller: {peaks[-1]:.0f} MiB")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def measure(
    command: Callable[[ControlPlane], list[str]], backends: int, quiet_seconds: float
) -> tuple[dict[str, Cost], float]:
    """All phases of one controller, and the most memory it had, in MiB."""
    peaks: list[float] = []
    with ControlPlane() as plane:
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="bench")
            await install_crds(client, crds())
            await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            bench = Bench(client, plane, backends)
            listed = await bench.listed()
            with controller(plane, command(plane), peaks) as process:
                await bench.started(process, listed)
                async with bench.phase(f"{backends} created at once, until all are ready", process):
                    await bench.create()
                    await bench.roll_out()
                    await bench.until(bench.ready, backends)
                await bench.settled(process)
                async with bench.phase(f"{quiet_seconds:g} quiet seconds", process):
                    await asyncio.sleep(quiet_seconds)
            listed = await bench.listed()
            with controller(plane, command(plane), peaks) as process:
                async with bench.phase("found by a new controller", process):
                    await bench.started(process, listed)
    return bench.costs, max(peaks)


async def compare(backends: int, quiet_seconds: float) -> None:
    """Both controllers, one after the other, and a table of both."""
    sides = []
    for name, command in (("this controller", ours), ("the operator on kopf", kopfs)):
        print(f"\n== {name}")
        sides.append(await measure(command, backends, quiet_seconds))
    (left, left_peak), (right, right_peak) = sides
    print(f"\n| {backends} backends | | this controller | kopf | ratio |\n|---|---|---:|---:|---:|")
    for phase, mine in left.items():
        theirs = right[phase]
        row(phase, "wall clock, s", mine.wall, theirs.wall)
        row(phase, "CPU, s", mine.cpu, theirs.cpu)
        row(phase, "requests per backend", mine.requests / backends, theirs.requests / backends)
    row("all of it", "peak memory, MiB", left_peak, right_peak)


def row(phase: str, what: str, mine: float, theirs: float) -> None:
    """Print a row of the table; the ratio is how many times ours the other is, where ours is not nothing."""
    ratio = f"{theirs / mine:.2f}×" if mine else ""
    print(f"| {phase} | {what} | {mine:.2f} | {theirs:.2f} | {ratio} |")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", type=int, default=500)
    parser.add_argument("--quiet-seconds", type=float, default=60.0)
    parser.add_argument("--operate", metavar="KUBECONFIG", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = operate(options.operate) if options.operate else compare(options.backends, options.quiet_seconds)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main()
