"""What is rendered for leader and members is what the real programs take: they are started with it, addresses aside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.render import render
from inferencecache.controllers.mooncake.policy import render as policy_of
from inferencecache.kube.ports import free_ports
from tests.mooncake import BINARY, MIB
from tests.unit.controllers.kvcachebackend.made import SETTINGS, managed

MEMBER = Path(sysconfig.get_path("scripts")) / "mc_store_rest_server"
ALONE = {"electionBackend": "None"}


def pod_spec(backend: KVCacheBackend, kind: str) -> dict[str, Any]:
    (found,) = [one for one in render(backend, SETTINGS) if one["kind"] == kind]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@contextmanager
def running(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(look: Callable[[], Any], *, log: Path, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := look():
                return found
        except OSError:
            pass
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return json.load(answer)


class Cluster:
    """A leader and a member as rendered, on ports of their own."""

    def __init__(self, backend: KVCacheBackend, directory: Path) -> None:
        self.backend = backend
        self.directory = directory
        self.rpc, self.admin, self.http = free_ports(3)

    @contextmanager
    def leader(self, seed: str | None) -> Iterator[None]:
        """The leader, once it serves; started from a seed, or from none."""
        spec = pod_spec(self.backend, "Deployment")
        (init,), (main,) = spec["initContainers"], spec["containers"]
        seed_file = self.directory / "seed.yaml"
        if seed is not None:
            seed_file.write_text(seed)
        policy = str(self.directory / "policy.yaml")
        env = {one["name"]: one["value"] for one in init["env"]}
        moved = {**env, "POLICY_SEED": str(seed_file), "POLICY_FILE": policy}
        subprocess.run(init["command"], env={**os.environ, **moved}, check=True)
        replaced = {
            "-rpc_port=50051": f"-rpc_port={self.rpc}",
            "-metrics_port=9003": f"-metrics_port={self.admin}",
            f"-tenant_quota_connector_uri={env['POLICY_FILE']}": f"-tenant_quota_connector_uri={policy}",
        }
        assert replaced.keys() <= set(main["args"])
        log = self.directory / "leader.log"
        with running([str(BINARY), *(replaced.get(arg, arg) for arg in main["args"])], {}, log):
            readiness = main["readinessProbe"]["httpGet"]["path"]
            until(lambda: self._answers(readiness), log=log)
            yield

    @contextmanager
    def member(self) -> Iterator[dict[str, Any]]:
        """The member, once it is ready; its container."""
        (main,) = pod_spec(self.backend, "DaemonSet")["containers"]
        env = {one["name"]: one.get("value", "") for one in main["env"]}
        env |= {"MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1", "MOONCAKE_MASTER": f"127.0.0.1:{self.rpc}"}
        assert main["command"] == [MEMBER.name]
        args = [f"--port={self.http}" if arg.startswith("--port=") else arg for arg in main["args"]]
        log = self.directory / "member.log"
        with running([str(MEMBER), *args], env, log):
            until(self._listens, log=log)
            yield dict(main)

    def _answers(self, path: str) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=60):
            return True

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.http), timeout=60):
            return True


@pytest.mark.parametrize("extra", [{}, {"extraArgs": {"eviction_high_watermark_ratio": "0.9"}}], ids=["plain", "extra"])
def test_a_leader_starts_as_rendered_with_the_tenants_of_its_seed(tmp_path: Path, extra: dict[str, Any]) -> None:
    cluster = Cluster(managed(leader={**ALONE, **extra}), tmp_path)
    with cluster.leader(policy_of([("team-a", 5 * MIB)])):
        (entry,) = ask(cluster.admin, "/api/v1/tenant_quotas")["data"]
        assert (entry["tenant_id"], entry["requested_quota_bytes"]) == ("team-a", 5 * MIB)


def test_a_leader_starts_as_rendered_without_a_seed(tmp_path: Path) -> None:
    cluster = Cluster(managed(leader=ALONE), tmp_path)
    with cluster.leader(None):
        assert ask(cluster.admin, "/api/v1/tenant_quotas")["data"] == []


def test_a_member_is_ready_when_it_has_mounted_what_it_lends(tmp_path: Path) -> None:
    cluster = Cluster(managed({"capacityPerMember": "24Mi"}, leader=ALONE), tmp_path)
    with ExitStack() as stack:
        stack.enter_context(cluster.leader(None))
        stack.enter_context(cluster.member())
        (segment,) = ask(cluster.admin, "/get_segments_detail")["segments"]
        assert (segment["size_bytes"], segment["protocol"]) == (24 * MIB, "tcp")
        assert segment["segment_name"].startswith("127.0.0.1:")


def test_a_disk_tier_is_announced_and_handed_over(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    tier = {"capacityPerMember": "24Mi", "localDisks": [{"path": str(disk), "capacity": "512Mi"}]}
    cluster = Cluster(managed(tier, leader=ALONE, managed={"scaleIn": {"gracePeriodSeconds": 1}}), tmp_path)

    def file_capacity() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.admin}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith("master_total_file_capacity_bytes ")]
        return int(float(found.split()[1]))

    with ExitStack() as stack:
        stack.enter_context(cluster.leader(None))
        main = stack.enter_context(cluster.member())
        until(lambda: file_capacity() == 512 * MIB, log=tmp_path / "member.log")
        _, flag, script = main["lifecycle"]["preStop"]["exec"]["command"]
        here = script.replace(":8080/", f":{cluster.http}/")
        started = time.monotonic()
        subprocess.run([sys.executable, flag, here], check=True, timeout=200)
        assert time.monotonic() - started >= 1, "the hook holds the member for its grace"
        until(lambda: file_capacity() == 0, log=tmp_path / "leader.log")
