"""What one handled change costs: the operator of examples/echo.py on this framework, and the same on kopf.

    python -m bench.echo [--changes 300] [--objects 1000] [--steady 15]

Each runs in a process of its own against one real API server, one after the other, in a namespace of its own. A change
is a Widget made or given a new message, and counts as handled when its ConfigMap says so. CPU is what the operator's
process used from the first change to the last handled one; memory is what it holds afterwards, with all objects in
place. Then nothing happens for a while, and the API server's own counters tell who wrote all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from inferencecache.kube import Client, ConfigMap, connect
from inferencecache.kube.envtest import ControlPlane, install_crds

ROOT = Path(__file__).parents[1]
MIB = 2**20
WRITING = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
WATCHED = frozenset({"widgets", "configmaps", "events"})

KOPF = """
import kopf
from kubernetes_asyncio import client, config

@kopf.on.login()
def login(**kwargs):
    return kopf.login_with_kubeconfig(**kwargs)

@kopf.on.startup()
async def startup(settings, memo, **_):
    settings.posting.enabled = False
    await config.load_kube_config()
    memo.core = client.CoreV1Api(client.ApiClient())

@kopf.on.cleanup()
async def cleanup(memo, **_):
    await memo.core.api_client.close()

@kopf.on.resume("example.io", "v1", "widgets")
@kopf.on.create("example.io", "v1", "widgets")
@kopf.on.update("example.io", "v1", "widgets")
async def echo(spec, name, namespace, memo, **_):
    body = {"metadata": {"name": name}, "data": {"message": spec["message"]}}
    kopf.adopt(body)
    try:
        await memo.core.create_namespaced_config_map(namespace, body)
    except client.ApiException as error:
        if error.status != 409:
            raise
        await memo.core.patch_namespaced_config_map(name, namespace, body)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One side: CPU milliseconds per change, changes per second, MiB held, writes while nothing happened."""

    cpu: float
    rate: float
    memory: float
    writes: float


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def write(client: Client, namespace: str, numbers: Sequence[int], message: str) -> None:
    limit = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with limit:
            await client.apply(
                {
                    "apiVersion": "example.io/v1",
                    "kind": "Widget",
                    "metadata": {"namespace": namespace, "name": f"w{number}"},
                    "spec": {"message": message},
                }
            )

    await asyncio.gather(*(one(number) for number in numbers))


async def handled(client: Client, namespace: str, count: int, message: str) -> None:
    async with asyncio.timeout(90):
        while True:
            children = await client.list(ConfigMap, namespace=namespace)
            if sum(child.data.get("message") == message for child in children) >= count:
                return
            await asyncio.sleep(0.1)


async def writes_so_far(client: Client) -> float:
    text = (await client.request("GET", "/metrics")).decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "apiserver_request"
        for sample in family.samples
        if sample.labels.get("verb") in WRITING and sample.labels.get("resource") in WATCHED
    )


async def measure(
    client: Client, kubeconfig: Path, namespace: str, command: list[str], plan: argparse.Namespace
) -> Cost:
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
        try:
            await write(client, namespace, [0], "warm")
            await handled(client, namespace, 1, "warm")
            numbers = range(1, plan.changes // 2 + 1)
            cpu, started = cpu_seconds(process.pid), time.monotonic()
            for message in ("first", "second"):
                await write(client, namespace, numbers, message)
                await handled(client, namespace, len(numbers), message)
            cpu, seconds = cpu_seconds(process.pid) - cpu, time.monotonic() - started
            rest = range(len(numbers) + 1, plan.objects)
            await write(client, namespace, rest, "rest")
            await handled(client, namespace, len(rest), "rest")
            await asyncio.sleep(5)  # bookkeeping that is still under way is not steady state
            before = await writes_so_far(client)
            await asyncio.sleep(plan.steady)
            writes = await writes_so_far(client) - before
            return Cost(cpu / plan.changes * 1000, plan.changes / seconds, resident(process.pid), writes)
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:].decode(errors="replace"))
            raise
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 10)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def run(plan: argparse.Namespace) -> None:
    with ControlPlane() as plane, tempfile.TemporaryDirectory() as folder:
        rival = Path(folder) / "echo_kopf.py"
        rival.write_text(KOPF)
        async with await connect(plane.admin) as connection:
            client = Client(connection, field_manager="bench")
            await install_crds(client, [ROOT / "examples" / "echo.crd.yaml"])
            ours_command = [sys.executable, str(ROOT / "examples" / "echo.py")]
            kopf_command = [sys.executable, "-m", "kopf", "run", "--namespace=bench-kopf", "--quiet", str(rival)]
            ours = await measure(client, plane.admin, "bench-ours", ours_command, plan)
            theirs = await measure(client, plane.admin, "bench-kopf", kopf_command, plan)
    print(f"{plan.changes} changes, then {plan.objects} objects, then {plan.steady} s in which nothing happens:\n")
    print("| echo operator | this framework | kopf | ratio |")
    print("|---|---:|---:|---:|")
    print(f"| CPU per handled change, ms | {ours.cpu:.2f} | {theirs.cpu:.2f} | {theirs.cpu / ours.cpu:.1f}× |")
    print(f"| changes per second | {ours.rate:.0f} | {theirs.rate:.0f} | {ours.rate / theirs.rate:.1f}× |")
    print(f"| memory, MiB | {ours.memory:.0f} | {theirs.memory:.0f} | {theirs.memory / ours.memory:.2f}× |")
    print(f"| writes in steady state | {ours.writes:.0f} | {theirs.writes:.0f} | |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.echo", description=__doc__.splitlines()[0])
    parser.add_argument("--changes", type=int, default=300, help="changes of which the cost is measured")
    parser.add_argument("--objects", type=int, default=1000, help="Widgets in steady state")
    parser.add_argument("--steady", type=int, default=15, help="seconds of steady state")
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
