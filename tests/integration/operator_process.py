"""`inferencecache controller` as a process of its own, with the ServiceAccount and the roles of an installation.

The webhook configurations are installed only where a test is about them: while they are there and no operator answers,
nobody can create a CacheBackend.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.kinds import crds
from inferencecache.cli import trial
from inferencecache.cli.install import NAMESPACE, POOL_NAMESPACE, controller_rbac, webhook_configurations
from inferencecache.cli.operator import LEASE
from inferencecache.cli.processes import child
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.errors import NotFound
from inferencecache.kube.kinds import Lease
from inferencecache.kube.resource import Key, Kind, Manifest
from tests.integration.kube.waiting import eventually

LEASE_KEY = Key(NAMESPACE, LEASE)
T = TypeVar("T")
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_NOT_OURS = frozenset({"leases", "flowschemas", "prioritylevelconfigurations"})


@dataclass
class Operator:
    """A running operator."""

    process: subprocess.Popen[bytes]
    log: Path
    ports: trial.Ports

    async def metrics(self) -> str:
        """Its metrics; empty if it does not answer at all."""
        return await _read(f"http://127.0.0.1:{self.ports.metrics}/metrics")

    async def total(self, metric: str) -> float:
        """The sum of a metric over all its labels."""
        return sum_of(await self.metrics(), metric)

    async def leads(self) -> bool:
        """Whether it says that it leads."""
        return await self.total("leader_election_master_status") == 1

    async def idle(self) -> bool:
        """Whether it has neither anything in hand nor anything to take up; what the clock will bring does not count."""
        seen = await self.metrics()
        work = [sum_of(seen, name) for name in ("workqueue_depth", "controller_runtime_active_workers")]
        return bool(seen) and work == [0, 0]

    async def wait_ready(self) -> None:
        """Wait until `/readyz` answers 200."""
        await eventually(self._state, lambda state: state == "ready", seconds=200)

    async def wait_ended(self, *, seconds: float) -> int:
        """Wait until the process has ended; its exit status."""
        return await asyncio.to_thread(self.process.wait, seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self.process.send_signal(number)

    async def _state(self) -> str:
        said = await asyncio.to_thread(self.log.read_text, errors="replace")
        assert self.process.poll() is None, f"the operator ended with {self.process.returncode}:\n{said[-3000:]}"
        ready = await _read(f"http://127.0.0.1:{self.ports.health}/readyz")
        return "ready" if ready else said[-3000:]


async def prepare(plane: ControlPlane, client: Client) -> Path:
    """Install kinds and roles; the operator's kubeconfig."""
    await install_crds(client, [dict(crd) for crd in crds()])
    for namespace in (NAMESPACE, POOL_NAMESPACE):
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for manifest in controller_rbac():
        await client.apply(manifest)
    return await trial.service_account_kubeconfig(client, plane)


@contextlib.asynccontextmanager
async def operator(
    kubeconfig: Path,
    folder: Path,
    *flags: str,
    name: str = "operator",
    elect: bool = True,
    ports: trial.Ports | None = None,
) -> AsyncIterator[Operator]:
    """Run an operator until the context ends, in whatever state it then is. It may not be ready yet."""
    ports = ports or trial.Ports.free()
    command = [*trial.controller_command(kubeconfig, ports, folder), *flags]
    if not elect:
        command.remove("--leader-elect")
    log = folder / f"{name}.log"
    async with child(name, command, log) as started:
        try:
            yield Operator(started.process, log, ports)
        finally:
            started.process.send_signal(signal.SIGCONT)  # a stopped process would not hear SIGTERM


@contextlib.asynccontextmanager
async def lease_removed(client: Client) -> AsyncIterator[None]:
    """Leave no Lease behind that the next operator would wait for."""
    try:
        yield
    finally:
        with contextlib.suppress(NotFound):
            await client.delete(Lease.resource, LEASE_KEY)


def managed(namespace: str, name: str, **spec: Any) -> Manifest:
    """A CacheBackend whose cache server the operator runs."""
    return {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runtime": "VLLM",
            "type": "LMCache",
            "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"},
            **spec,
        },
    }


async def patient_webhooks(client: Client) -> None:
    """Have the API server wait for the webhooks that are installed as long as it can.

    Pods are let pass when nobody answers for three seconds, as they should be; on a busy machine that may happen.
    """
    for configuration in webhook_configurations():
        resource, key = await client.locate(configuration)
        count = range(len(configuration["webhooks"]))
        patch = [{"op": "replace", "path": f"/webhooks/{one}/timeoutSeconds", "value": 30} for one in count]
        await client.patch(resource, key, patch, type="json")


async def find(client: Client, kind: type[Kind], key: Key) -> Manifest | None:
    """The whole object, or None."""
    try:
        return await client.get_manifest(kind.resource, key)
    except NotFound:
        return None


async def there(client: Client, kind: type[Kind], key: Key, *, seconds: float = 60) -> Manifest:
    """Wait until an object exists, and return it."""
    found = await eventually(lambda: find(client, kind, key), lambda one: one is not None, seconds=seconds)
    assert found is not None
    return found


async def condition(client: Client, key: Key, name: str = "Ready") -> tuple[str, str, str]:
    """Status, reason and message of a backend's condition; empty if there is none."""
    found = (await client.get(CacheBackend, key)).status.conditions or ()
    return next(((one.status, one.reason, one.message) for one in found if one.type == name), ("", "", ""))


async def stays(look: Callable[[], Awaitable[T]], *, seconds: float) -> None:
    """Look again and again for a while; what is seen must not change."""
    first = await look()
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        assert await look() == first
        await asyncio.sleep(0.1)


def writes_by_resource(apiserver_metrics: str) -> Counter[str]:
    """How often an API server has written, by `VERB resource`; without Leases, and what it keeps for itself."""
    writes: Counter[str] = Counter()
    for line in apiserver_metrics.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if labels["verb"] in _WRITES and labels["resource"] not in _NOT_OURS:
                writes[f"{labels['verb']} {labels['resource']}"] += int(float(line.rpartition(" ")[2]))
    return writes


def sum_of(metrics: str, name: str, **labels: str) -> float:
    """The sum over all samples of a metric that have these labels (regular expressions)."""
    total = 0.0
    for line in metrics.splitlines():
        match = re.fullmatch(rf"{name}(?:\{{(?P<labels>.*)\}})? (?P<value>\S+)", line)
        if match is None:
            continue
        given = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"] or ""))
        if all(re.fullmatch(pattern, given.get(label, "")) for label, pattern in labels.items()):
            total += float(match["value"])
    return total


async def _read(url: str) -> str:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.get(url) as answer,
        ):
            return await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, OSError):
        return ""
