"""`inferencecache pool` as a user runs it, against a real API server."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from inferencecache.api.kinds import crds
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane, install_crds
from inferencecache.kube.resource import Key
from tests.integration.doctor.running_doctor import SCRIPTS, run

API = "worker.gpustack.ai/v1"


@pytest.fixture
async def shared(client: Client, namespace: str) -> str:
    """A pool on which team-a draws half of its grant; the pool's name."""
    await install_crds(client, crds())
    name = f"pool-{namespace}"
    spec = {"backends": ["dram"], "quota": {"total": "900Gi"}}
    await client.create({"apiVersion": API, "kind": "KVCachePool", "metadata": {"name": name}, "spec": spec})
    await client.patch_status(
        KVCachePool.resource,
        Key("", name),
        {"phase": "Ready", "clientEndpoint": "dram-leader.s.svc:50051", "usage": {"total": "225Gi"}},
    )
    spec = {
        "poolRef": {"name": name},
        "quota": {"ceiling": "600Gi"},
        "domain": {"name": "qwen-72b-v2", "blockSize": 64, "dtype": "fp8_e4m3"},
    }
    metadata = {"name": "team-a", "namespace": namespace}
    await client.create({"apiVersion": API, "kind": "KVCachePoolBinding", "metadata": metadata, "spec": spec})
    status = {"phase": "Ready", "effectiveQuota": "450Gi", "usage": "225Gi"}
    await client.patch_status(KVCachePoolBinding.resource, Key(namespace, "team-a"), status)
    return name


async def test_a_pool_is_drawn_with_its_domains_and_a_bar(
    control_plane: ControlPlane, shared: str, namespace: str
) -> None:
    wide = {"COLUMNS": "200"}
    ran = await run("inferencecache", "pool", shared, kubeconfig=control_plane.admin, environment=wide)
    assert (ran.exit, ran.err) == (0, "")
    head, _, row = (line for line in ran.out.splitlines() if line.strip())
    assert head.startswith(f"{shared}  Ready  225Gi of 900Gi used")
    assert head.endswith("dram-leader.s.svc:50051")
    for cell in ("qwen-72b-v2", f"{namespace}/team-a", "600Gi", "450Gi", "225Gi", "██████████·········· 50%", "Ready"):
        assert cell in row


async def test_the_same_can_be_had_as_json(control_plane: ControlPlane, shared: str) -> None:
    ran = await run("inferencecache", "pool", shared, "-o=json", kubeconfig=control_plane.admin)
    (view,) = json.loads(ran.out)["pools"]
    assert (view["name"], view["fill"]) == (shared, 0.25)
    assert [(row["domain"], row["fill"]) for row in view["rows"]] == [("qwen-72b-v2", 0.5)]


async def test_a_pool_that_does_not_exist_is_an_error_that_names_those_that_do(
    control_plane: ControlPlane, shared: str
) -> None:
    ran = await run("inferencecache", "pool", "nowhere", kubeconfig=control_plane.admin)
    assert (ran.exit, ran.out) == (3, "")
    assert "there is no KVCachePool nowhere" in ran.err
    assert shared in ran.err


@pytest.mark.parametrize("arguments", [("--watch", "-o=json"), ("--watch", "--interval=0s")])
async def test_what_cannot_be_watched_is_refused(control_plane: ControlPlane, arguments: tuple[str, ...]) -> None:
    ran = await run("inferencecache", "pool", *arguments, kubeconfig=control_plane.admin)
    assert ran.exit == 3
    assert ran.err.startswith("error: --")


async def test_a_watched_pool_follows_its_usage_and_outlives_its_removal(
    control_plane: ControlPlane, client: Client, shared: str, namespace: str
) -> None:
    watching = await asyncio.create_subprocess_exec(
        SCRIPTS / "inferencecache",
        *("pool", shared, "--watch", "--interval=100ms"),
        env={**os.environ, "KUBECONFIG": str(control_plane.admin), "COLUMNS": "200", "TTY_COMPATIBLE": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert watching.stdout is not None
    out = watching.stdout
    try:
        async with asyncio.timeout(60):
            await out.readuntil(b"50%")
            full = {"usage": "450Gi"}
            await client.patch_status(KVCachePoolBinding.resource, Key(namespace, "team-a"), full)
            await out.readuntil(b"100%")
            await client.delete(KVCachePool.resource, Key("", shared))
            await out.readuntil(b"not up to date")
        assert watching.returncode is None
    finally:
        watching.terminate()
        await watching.communicate()
