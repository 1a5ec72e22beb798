"""`inject` gives Pods their KV cache pool on files, as the webhook would in a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.test_offline import run, written
from tests.unit.webhooks.kvcache_injection.pools import PREFIX, pod

RECIPE = Path(__file__).parents[3] / "manifests" / "samples" / "recipe-kv-cache-pool.yaml"


def document(
    kind: str, spec: dict[str, Any], *, status: dict[str, Any] | None = None, **metadata: str
) -> dict[str, Any]:
    return {
        "apiVersion": "worker.gpustack.ai/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        **({"status": status} if status else {}),
    }


BINDING = document(
    "KVCachePoolBinding",
    {
        "poolRef": {"name": "shared-dram"},
        "quota": {"ceiling": "600Gi"},
        "domain": {"name": "qwen-72b-v2", "blockSize": 64, "dtype": "fp8_e4m3"},
    },
    name="team-a",
    namespace="team-a",
)
POOL = document("KVCachePool", {"backends": ["dram"], "quota": {"total": "900Gi"}}, name="shared-dram")
GROUP = {"nodeSelector": {"a": "b"}, "medium": "DRAM", "capacityPerMember": "4Gi"}
EXTERNAL = {
    "external": {
        "endpoints": [{"name": "Client", "address": "store:50051"}, {"name": "Admin", "address": "store:9003"}]
    }
}


def managed(**leader: Any) -> dict[str, Any]:
    return {"managed": {"leader": leader, "members": [GROUP]}}


def backend(connection: dict[str, Any]) -> dict[str, Any]:
    return document("KVCacheBackend", {"connection": connection}, name="dram")


@pytest.mark.parametrize(
    ("connection", "status", "endpoint", "tenant"),
    [
        (managed(), None, "dram-leader.gpustack-system.svc:50051", "qwen-72b-v2"),
        (managed(multiTenancy=False), None, "dram-leader.gpustack-system.svc:50051", None),
        (EXTERNAL, None, "store:50051", "qwen-72b-v2"),
        (EXTERNAL, {"clientEndpoint": "seen:1"}, "seen:1", "qwen-72b-v2"),
        (
            EXTERNAL,
            {
                "conditions": [
                    {
                        "type": "QuotaLedgerAvailable",
                        "status": "False",
                        "reason": "MultiTenancyDisabled",
                        "message": "",
                        "lastTransitionTime": "2026-11-30T11:00:00Z",
                    }
                ]
            },
            "store:50051",
            None,
        ),
    ],
)
def test_the_pool_is_taken_as_it_will_be_served_unless_it_says_more(
    tmp_path: Path,
    connection: dict[str, Any],
    status: dict[str, Any] | None,
    endpoint: str,
    tenant: str | None,
) -> None:
    pool = {**POOL, **({"status": status} if status else {})}
    result = run("inject", "-f", written(tmp_path / "all.yaml", BINDING, pool, backend(connection), pod()))
    assert result.exit_code == 0, result.stderr
    annotations = yaml.safe_load(result.stdout)["metadata"]["annotations"]
    config = json.loads(annotations[f"{PREFIX}client-config"])
    assert (config["master_server_address"], config.get("tenant_id")) == (endpoint, tenant)
    assert "given the pool of Binding team-a/team-a" in result.stderr


def test_flags_of_the_controller_count(tmp_path: Path) -> None:
    files = written(tmp_path / "all.yaml", BINDING, POOL, backend(managed()), pod("SGLang"))
    result = run("inject", "-f", files, "--kv-cache-namespace=stores", "--no-kv-cache-dtype-owned")
    container = yaml.safe_load(result.stdout)["spec"]["containers"][0]
    assert {"name": "MOONCAKE_MASTER", "value": "dram-leader.stores.svc:50051"} in container["env"]
    assert "--kv-cache-dtype" not in container["args"]


def test_the_diff_shows_what_is_written(tmp_path: Path) -> None:
    result = run("inject", "-f", written(tmp_path / "all.yaml", BINDING, POOL, backend(managed()), pod()), "-o", "diff")
    added = [line[1:].strip() for line in result.stdout.splitlines() if line.startswith("+")]
    assert "- --kv-transfer-config" in added
    assert "- name: MOONCAKE_CONFIG_PATH" in added
    assert not [line for line in result.stdout.splitlines() if line.startswith("-") and not line.startswith("---")]


def test_a_refused_pod_is_not_printed_and_every_reason_is(tmp_path: Path) -> None:
    other = pod(annotations={"role": "Server"}, command=["./run.sh"])
    result = run("inject", "-f", written(tmp_path / "all.yaml", other))
    assert (result.exit_code, result.stdout) == (1, "")
    told = [line for line in result.stderr.splitlines() if " is refused: " in line]
    fields = ["metadata.annotations[kvcache.gpustack.ai/role]", "metadata.annotations[kvcache.gpustack.ai/binding]"]
    assert [field for field in [*fields, "spec.containers[0].command"] if not any(field in line for line in told)] == []


def test_a_warning_is_told(tmp_path: Path) -> None:
    warned = pod(args=["--kv-offloading-size", "8"])
    result = run("inject", "-f", written(tmp_path / "all.yaml", BINDING, POOL, backend(managed()), warned))
    assert result.exit_code == 0
    assert "warning: spec.containers[0].args: --kv-offloading-size" in result.stderr


def test_the_recipes_objects_give_a_pod_its_pool(tmp_path: Path) -> None:
    result = run("inject", "-f", RECIPE, "-f", written(tmp_path / "pod.yaml", pod()))
    assert result.exit_code == 0, result.stderr
    assert "--kv-transfer-config" in result.stdout


def on_pool(extra_config: str = "") -> dict[str, Any]:
    """A CacheBackend on the pool, and what it says of LMCache's settings."""
    overrides = {"engineOverrides": {"env": [{"name": "LMCACHE_EXTRA_CONFIG", "value": extra_config}]}}
    return {
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": "CacheBackend",
        "metadata": {"name": "kv", "namespace": "team-a"},
        "spec": {
            "runtime": "VLLM",
            "engineSelector": {"matchLabels": {"app": "engine"}},
            "remoteStorage": {
                "provider": "Mooncake",
                "ownership": "Managed",
                "poolBindingRef": {"name": "team-a"},
            },
            "integration": overrides if extra_config else {},
        },
    }


def engine() -> dict[str, Any]:
    metadata = {"name": "engine", "namespace": "team-a", "labels": {"app": "engine"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "vllm"}]}}


def test_a_backend_on_a_pool_wires_to_the_address_that_the_pool_will_publish(tmp_path: Path) -> None:
    objects = [BINDING, POOL, backend(managed()), on_pool('{"mooncake_tenant_id": "qwen-72b-v2"}'), engine()]
    result = run("inject", "-f", written(tmp_path / "all.yaml", *objects))
    environment = {one["name"]: one["value"] for one in yaml.safe_load(result.stdout)["spec"]["containers"][0]["env"]}
    assert environment["LMCACHE_REMOTE_URL"] == "mooncakestore://dram-leader.gpustack-system.svc:50051"
    assert environment["LMCACHE_EXTRA_CONFIG"] == '{"mooncake_tenant_id": "qwen-72b-v2"}'


@pytest.mark.parametrize(
    ("objects", "told"),
    [([], "PoolBindingNotFound"), ([BINDING, POOL, backend(managed())], "PoolTenantNotSent")],
)
def test_a_backend_that_a_pool_gives_no_address_leaves_its_pods_unwired_and_says_why(
    tmp_path: Path, objects: list[dict[str, Any]], told: str
) -> None:
    result = run("inject", "-f", written(tmp_path / "all.yaml", *objects, on_pool(), engine()))
    assert result.exit_code == 0
    assert f"CacheBackend team-a/kv: {told}: " in result.stderr
    assert "KVCachePoolBinding team-a gives it no address" in result.stderr
    assert yaml.safe_load(result.stdout) == engine()


def test_the_pages_examples_do_what_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "kv-cache-injection.md").read_text()
    asking, on_a_pool = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    domain = {"domain": {**BINDING["spec"]["domain"], "name": "chat"}}
    binding = {**BINDING, "spec": {**BINDING["spec"], **domain}}
    selected = engine()
    selected["metadata"]["labels"] = {"app": "chat"}
    objects = [binding, POOL, backend(managed()), asking, on_a_pool, selected]
    result = run("inject", "-f", written(tmp_path / "all.yaml", *objects))
    assert result.exit_code == 0, result.stderr
    given, wired = yaml.safe_load_all(result.stdout)
    assert "--kv-transfer-config" in given["spec"]["containers"][0]["args"]
    assert "LMCACHE_REMOTE_URL" in [one["name"] for one in wired["spec"]["containers"][0]["env"]]
    assert run("validate", "-f", written(tmp_path / "backend.yaml", on_a_pool)).exit_code == 0
