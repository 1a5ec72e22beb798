"""What an installation is, before anybody uses it (spec 09 §8, steps 1 to 8 and 27)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grpc
import pytest

from e2e.world import CONTROLLER, PRODUCT_IMAGE, SERVER, World, has_condition, read, until
from hack.onenode.processes import ClusterError
from inferencecache.wire.service import METHODS
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb


def test_both_deployments_run_the_image_without_rights(installed: World) -> None:
    for name in (CONTROLLER, SERVER):
        deployment = installed.get("deployment", name)
        assert has_condition(deployment, "Available", "True")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == PRODUCT_IMAGE
        program = "import os; print(os.getuid(), os.access('/', os.W_OK), os.path.exists('/bin/sh'))"
        said = installed.kubectl("exec", f"deployment/{name}", "--", "python", "-c", program)
        assert said.split() == ["65532", "False", "False"]


def test_the_server_answers_on_all_its_ports(installed: World) -> None:
    assert read(f"http://{installed.server()}/readyz").startswith("ok")
    assert "inferencecache_server_up 1.0" in read(f"http://{installed.server()}/metrics")
    method = METHODS["LookupRoute"]
    with grpc.insecure_channel(installed.server(9090)) as channel:
        call = channel.unary_unary(
            method.path,
            request_serializer=pb.LookupRouteRequest.SerializeToString,
            response_deserializer=pb.LookupRouteResponse.FromString,
        )
        answer = call(pb.LookupRouteRequest(model_id="nobody", tenant_id="nobody", token_ids=range(64)), timeout=10)
    assert not answer.replica_scores
    with pytest.raises(OSError, match="401"):
        read(f"http://{installed.server(8081)}/snapshot")


def test_the_index_is_shown(installed: World) -> None:
    def observed() -> bool:
        index = installed.get("cacheindex", "cluster-default")
        return bool(index["status"]["observedServer"])

    until(observed, within=90)
    header, row = installed.kubectl("get", "ci", "cluster-default").splitlines()
    assert "PREFIXES" in header
    assert row.startswith("cluster-default")


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        ({"kind": "CachePolicy", "spec": {}}, "already has CachePolicy"),
        ({"kind": "CacheTenant", "spec": {"tenantID": "inferencecache.io/probe"}}, "reserved"),
        (
            {
                "kind": "CacheBackend",
                "spec": {
                    "runtime": "VLLM",
                    "type": "LMCache",
                    "remoteStorage": {"provider": "LMCacheServer", "ownership": "External"},
                },
            },
            "spec.remoteStorage.endpoint: Required value",
        ),
    ],
    ids=["second policy", "reserved tenant", "external without an address"],
)
def test_the_live_webhook_refuses_with_a_reason(world: World, document: dict[str, object], refused: str) -> None:
    group = {"apiVersion": "inferencecache.io/v1alpha1"}
    if document["kind"] == "CachePolicy":
        world.apply({**group, "kind": "CachePolicy", "metadata": {"name": "first"}, "spec": {}})
    with pytest.raises(ClusterError, match=refused):
        world.apply({**group, "metadata": {"name": "second"}, **document})


def test_the_doctor_reports_on_the_real_cluster(world: World, installed: World) -> None:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("inferencecache")), "doctor", "-o", "json"),
            *("--kubeconfig", str(world.cluster.layout.kubeconfig())),
            *("--server-endpoint", installed.server(9090)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.returncode == report["summary"]["exitCode"]
    codes = Counter(finding["code"] for finding in report["findings"])
    assert codes["SV003"] == 1
    assert "API001" not in codes
    # Both webhook configurations, their Service and their Secret; and each kind.
    admission = {code: count for code, count in codes.items() if code.startswith(("WH", "CD"))}
    assert admission == {"WH010": 4, "CD004": 9}, report["findings"]
