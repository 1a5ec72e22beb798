"""The walk of docs/kv-cache-pools.md, as it stands there but for its size: it says Gi, and here it is Mi."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import yaml

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.resource import Key
from tests.integration.kube.waiting import eventually
from tests.integration.kustomized import kubectl
from tests.integration.kvcache.pool_world import MIB, World, operator
from tests.mooncake import Master, Store

PAGE = (Path(__file__).parents[3] / "docs" / "kv-cache-pools.md").read_text().replace("Gi", "Mi")
DOCUMENTS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
COMMANDS = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LETTING_GO = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CLIENT = "mooncake-dram-leader.inference-cache-pools.svc:50051"
OBJECT = 8 * MIB


async def run(plane: ControlPlane, command: str) -> str:
    """What a command of the page prints."""
    tool, _, rest = command.partition(" ")
    assert tool == "kubectl"
    process = await asyncio.create_subprocess_shell(
        f"{kubectl()} {rest}",
        env={**os.environ, "KUBECONFIG": str(plane.admin)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode()


def cells(table: str) -> list[list[str]]:
    """The cells of a table but for ages."""
    return [row.split()[:-1] for row in table.splitlines()]


async def test_the_page_shows_what_kubectl_shows(
    client: Client, world: World, control_plane: ControlPlane, master: Master
) -> None:
    pool, binding = DOCUMENTS
    backend = pool["spec"]["backends"][0]
    endpoints = [{"name": "Client", "address": CLIENT}, {"name": "Admin", "address": master.admin}]
    store: dict[str, Any] = {
        "apiVersion": "worker.gpustack.ai/v1",
        "kind": "KVCacheBackend",
        "metadata": {"name": backend},
        "spec": {"connection": {"external": {"endpoints": endpoints}}},
    }
    names = {
        KVCachePoolBinding: Key(binding["metadata"]["namespace"], binding["metadata"]["name"]),
        KVCachePool: Key("", pool["metadata"]["name"]),
        KVCacheBackend: Key("", backend),
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": binding["metadata"]["namespace"]}}
    try:
        await client.apply(namespace)  # other pages have a team-a as well
        for document in (store, pool, binding):
            await client.create(document)
        await client.patch_status(KVCacheBackend.resource, names[KVCacheBackend], {"endpoints": endpoints})
        with Store(master, segment=450 * MIB), Store(master, tenant=binding["spec"]["domain"]["name"]) as engine:
            async with operator(world):
                await world.says(KVCachePoolBinding, names[KVCachePoolBinding], phase="Ready")
                assert [engine.put(f"key-{number}", OBJECT) for number in range(280 * MIB // OBJECT)] == [0] * 35
                for command, shown in COMMANDS:
                    await eventually(
                        lambda command=command: run(control_plane, command),
                        lambda seen, shown=shown: cells(seen) == cells(shown),
                    )
                await client.delete(KVCachePool.resource, names[KVCachePool])
                await world.says(KVCachePool, names[KVCachePool], Releasable=("False", "HeldByBindings"))
                assert len(LETTING_GO) == 1
                assert "patched" in await run(control_plane, LETTING_GO[0].strip())
                await world.gone(KVCachePool, names[KVCachePool])
    finally:
        for kind, key in names.items():
            await world.force_away(kind, key)


def test_the_page_and_the_sample_declare_the_same() -> None:
    sample = Path(__file__).parents[3] / "manifests" / "samples" / "recipe-kv-cache-pool.yaml"
    declared = list(yaml.safe_load_all(sample.read_text().replace("Gi", "Mi")))
    assert [one for one in DOCUMENTS if one not in declared] == []
