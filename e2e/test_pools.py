"""A store of the operator's own, its pool, and two Bindings: Pods, quotas and data on a real Mooncake."""

from __future__ import annotations

import json

from e2e.pools import GROUP, STORES, is_ready
from e2e.world import ENGINE_IMAGE, Manifest, World, ask, has_condition, until

MIB = 1 << 20


def binding(name: str, pool: str, ceiling: str) -> Manifest:
    """A namespace's share of the pool, for a reuse domain of its own."""
    return {
        "apiVersion": GROUP,
        "kind": "KVCachePoolBinding",
        "metadata": {"name": name},
        "spec": {
            "poolRef": {"name": pool},
            "quota": {"ceiling": ceiling},
            "domain": {"name": f"{pool}-{name}", "blockSize": 64, "dtype": "fp8_e4m3"},
        },
    }


def ledger(world: World, pool: str) -> dict[str, int]:
    """What the real leader says of the quotas it holds, by reuse domain."""
    address = world.elsewhere(STORES).get("service", f"{pool}-leader")["spec"]
    pods = world.elsewhere(STORES).ready_pods("")
    (leader,) = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{pool}-leader-")]
    assert any(port["port"] == 9003 for port in address["ports"])
    rows = ask(f"http://{leader['status']['podIP']}:9003/api/v1/tenant_quotas")["data"]
    return {row["tenant_id"]: row["requested_quota_bytes"] for row in rows if row["tenant_id"].startswith(pool)}


def test_two_bindings_share_a_real_store_and_its_ledger_is_what_they_asked_for(world: World, pool: str) -> None:
    backend = is_ready(world, "kvcachebackend", pool)
    assert len(backend["status"]["members"]) == 1
    world.apply(binding("small", pool, "16Mi"), binding("large", pool, "32Mi"))
    for name in ("small", "large"):
        assert has_condition(is_ready(world, "kvcachepoolbinding", name), "QuotaGranted", "True", "Granted")
    is_ready(world, "kvcachepool", pool)
    wanted = {f"{pool}-small": 16 * MIB, f"{pool}-large": 32 * MIB}
    assert ledger(world, pool) == wanted

    # The leader dies: its successor starts from the policy file, and is told what is missing in it.
    world.elsewhere(STORES).kubectl("rollout", "restart", f"deployment/{pool}-leader")
    world.elsewhere(STORES).rolled_out(f"{pool}-leader")
    until(lambda: ledger(world, pool) == wanted)
    for name in ("small", "large"):
        is_ready(world, "kvcachepoolbinding", name)

    world.patch("kvcachepoolbinding", "small", {"spec": {"quota": {"ceiling": "8Mi"}}})
    until(lambda: ledger(world, pool) == {**wanted, f"{pool}-small": 8 * MIB})
    world.delete("kvcachepoolbinding", "large")
    until(lambda: set(ledger(world, pool)) == {f"{pool}-small"})


def test_a_labelled_pod_is_wired_to_the_pool_by_the_live_webhook(world: World, pool: str) -> None:
    is_ready(world, "kvcachebackend", pool)
    world.apply(binding("team", pool, "16Mi"))
    is_ready(world, "kvcachepoolbinding", "team")
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "engine",
                "labels": {"kvcache.gpustack.ai/inject": "true"},
                "annotations": {
                    "kvcache.gpustack.ai/binding": "team",
                    "kvcache.gpustack.ai/engine": "vLLM",
                    "kvcache.gpustack.ai/launch-args-forwarded": "true",
                },
            },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "vllm",
                        "image": ENGINE_IMAGE,
                        "command": ["engine"],
                        "args": ["serve", "fake/e2e"],
                        "env": [{"name": "FAKE_ENGINE_ARGS", "value": "--no-repeat"}],
                    }
                ],
            },
        }
    )
    until(lambda: world.get("pod", "engine")["status"]["phase"] == "Running")
    said = until(lambda: world.logs("engine", "vllm"))
    args = json.loads(said.partition("\n")[0])["args"]
    connector = json.loads(args[args.index("--kv-transfer-config") + 1])
    assert connector["kv_connector"] == "MooncakeStoreConnector"
    program = "import os; print(open(os.environ['MOONCAKE_CONFIG_PATH']).read())"
    settings = json.loads(world.kubectl("exec", "engine", "--", "python", "-c", program))
    assert settings["master_server_address"] == f"{pool}-leader.{STORES}.svc:50051"
