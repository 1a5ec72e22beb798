"""A Pod that asks for a pool gets all of it, or a refusal that names each field and what to do (spec 10 §12, §12.1)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.webhooks.kvcache_injection.launch import read_launch
from tests.unit.webhooks.kvcache_injection.pools import (
    ENDPOINT,
    LEDGER,
    NO_TENANTS,
    PREFIX,
    SGLANG,
    VLLM,
    Json,
    binding,
    chain,
    external,
    injected,
    managed,
    pod,
    pool,
    refusals,
    server,
)

CONNECTOR = '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'
METRICS = [{"name": "MC_TE_METRIC", "value": "1"}, {"name": "MC_STORE_CLIENT_METRIC_BANDWIDTH", "value": "1"}]
VARIABLES = [
    {"name": "MOONCAKE_MASTER", "value": ENDPOINT},
    {"name": "MOONCAKE_TE_META_DATA_SERVER", "value": "P2PHANDSHAKE"},
    {"name": "MOONCAKE_PROTOCOL", "value": "tcp"},
    {"name": "MOONCAKE_DEVICE", "value": ""},
    {"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "0"},
    {"name": "MOONCAKE_LOCAL_HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": "MOONCAKE_TENANT_ID", "value": "qwen-72b-v2"},
]
SEED = {"name": "PYTHONHASHSEED", "value": "0"}
ANNOTATION, ARGS, COMMAND = "metadata.annotations", "spec.containers[0].args", "spec.containers[0].command"
_REMEDY = re.compile(
    r"\b(set|remove|name|create|correct|rename|make|use|leave|start|give|try again|mount|supported values)\b"
)


# ------------------------------------------------------------------------------------------------ what is written


def test_vllm_gets_a_connector_the_dtype_and_a_file_projected_from_the_pod_itself() -> None:
    done = injected(pod(args=["--port", "8000"])).pod
    container = done["spec"]["containers"][0]
    assert container["args"] == ["--port", "8000", "--kv-transfer-config", CONNECTOR, "--kv-cache-dtype", "fp8_e4m3"]
    assert container["env"] == [
        {"name": "MOONCAKE_CONFIG_PATH", "value": "/etc/gpustack/kvcache/mooncake.json"},
        *METRICS,
    ]
    assert container["volumeMounts"] == [
        {"name": "gpustack-kvcache-config", "mountPath": "/etc/gpustack/kvcache", "readOnly": True}
    ]
    field = {"fieldPath": "metadata.annotations['kvcache.gpustack.ai/client-config']"}
    assert done["spec"]["volumes"] == [
        {"name": "gpustack-kvcache-config", "downwardAPI": {"items": [{"path": "mooncake.json", "fieldRef": field}]}}
    ]
    annotations = done["metadata"]["annotations"]
    assert json.loads(annotations[f"{PREFIX}client-config"]) == {
        "master_server_address": ENDPOINT,
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "mode": "standalone-store",
        "local_buffer_size": 134217728,
        "tenant_id": "qwen-72b-v2",
    }
    assert json.loads(annotations[f"{PREFIX}injected"]) == {
        "binding": "team-a",
        "engine": "vllm",
        "vehicle": "file",
        "domain": "qwen-72b-v2",
        "tenantInjected": True,
        "launchProgram": "vllm",
        "launchArgsForwarded": False,
    }


def test_sglang_gets_variables_and_its_host_tier_last_and_no_volume() -> None:
    done = injected(pod("SGLang")).pod
    container = done["spec"]["containers"][0]
    assert container["args"] == [
        "--hicache-storage-backend",
        "mooncake",
        "--kv-cache-dtype",
        "fp8_e4m3",
        "--enable-hierarchical-cache",
    ]
    assert container["env"] == [*VARIABLES, *METRICS]
    assert "volumes" not in done["spec"]
    assert "volumeMounts" not in container
    annotations = done["metadata"]["annotations"]
    assert f"{PREFIX}client-config" not in annotations
    record = json.loads(annotations[f"{PREFIX}injected"])
    assert (record["engine"], record["vehicle"], record["launchProgram"]) == ("sglang", "environment", "python3")


def test_vllm_on_ascend_has_a_connector_and_a_transport_of_its_own() -> None:
    done = injected(pod(annotations={"manufacturer": "ascend"}), chain(backend=managed("RDMA", "CANN")))
    assert '"kv_connector":"AscendStoreConnector"' in server(done)["args"][1]
    annotations = done.pod["metadata"]["annotations"]
    assert json.loads(annotations[f"{PREFIX}client-config"])["protocol"] == "ascend"
    assert json.loads(annotations[f"{PREFIX}injected"])["engine"] == "vllm-ascend"


@pytest.mark.parametrize(
    ("role", "kv_role"), [(None, "kv_both"), ("Prefill", "kv_producer"), ("Decode", "kv_consumer")]
)
def test_the_role_reaches_vllm_and_changes_nothing_for_sglang(role: str | None, kv_role: str) -> None:
    assert json.loads(server(injected(pod(annotations={"role": role})))["args"][1])["kv_role"] == kv_role
    plain, halved = injected(pod("SGLang")), injected(pod("SGLang", annotations={"role": role}))
    assert server(halved) == server(plain)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_with_the_setting_off_no_dtype_is_given_and_none_is_refused(engine: str) -> None:
    own = pod(engine, args=["--kv-cache-dtype", "auto"])
    assert "--kv-cache-dtype" in refusals(own)[ARGS]
    args = server(injected(own, dtype_owned=False))["args"]
    assert args.count("--kv-cache-dtype") == 1
    assert "fp8_e4m3" not in args


@pytest.mark.parametrize("dtype", ["auto", "bf16", "no-engine-knows-this", "a b", "$(x)"])
@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_the_dtype_is_given_once_and_word_for_word_whatever_it_is(engine: str, dtype: str) -> None:
    args = server(injected(pod(engine), chain(binding=binding(dtype=dtype))))["args"]
    index = args.index("--kv-cache-dtype")
    assert args[index + 1].replace("$$", "$") == dtype  # Kubernetes reads $$ as $
    assert args.count("--kv-cache-dtype") == 1


@pytest.mark.parametrize(
    ("ledger", "backend", "tenant"),
    [
        (LEDGER, managed(), "qwen-72b-v2"),
        (LEDGER, managed(multiTenancy=False), "qwen-72b-v2"),
        (LEDGER, external(), "qwen-72b-v2"),
        (NO_TENANTS, managed(), None),
        (NO_TENANTS, managed(multiTenancy=False), None),
        (NO_TENANTS, external(), None),
    ],
)
def test_a_tenant_is_sent_where_the_master_tells_tenants_apart_and_else_not_even_an_empty_one(
    ledger: Json, backend: Any, tenant: str | None
) -> None:
    behind = chain(pool=pool(ledger), backend=backend)
    file = injected(pod(), behind).pod["metadata"]["annotations"]
    assert json.loads(file[f"{PREFIX}client-config"]).get("tenant_id") == tenant
    assert ("tenant_id" in file[f"{PREFIX}client-config"]) is (tenant is not None)
    own = injected(pod("SGLang", env=[{"name": "MOONCAKE_TENANT_ID", "value": "mine"}]), behind)
    sent = [entry.get("value") for entry in server(own)["env"] if entry["name"] == "MOONCAKE_TENANT_ID"]
    assert sent == ([tenant] if tenant else [])
    for done in (file, own.pod["metadata"]["annotations"]):
        record = json.loads(done[f"{PREFIX}injected"])
        assert (record["tenantInjected"], record["domain"]) == (tenant is not None, "qwen-72b-v2")


def test_injected_variables_take_the_place_of_the_containers_own_and_the_metrics_yield() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "MOONCAKE_PROTOCOL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "MC_TE_METRIC", "value": "0"},
        {"name": "MOONCAKE_PROTOCOL", "value": "rdma"},
        {"name": "B"},
    ]
    written = server(injected(pod("SGLang", env=env)))["env"]
    assert written[:4] == [env[0], {"name": "MOONCAKE_PROTOCOL", "value": "tcp"}, env[2], env[4]]
    names = [entry["name"] for entry in written]
    assert len(names) == len(set(names))
    assert set(names) >= {entry["name"] for entry in (*VARIABLES, *METRICS)}


@pytest.mark.parametrize(
    ("args", "appended"),
    [
        ([], True),
        (["--enable-hierarchical-cache"], False),
        (["--enable-hier"], False),
        (["--disaggregation-mode", "prefill"], True),
        (["--disaggregation-mode", "decode"], False),
        (["--disaggregation-mode=decode"], False),
        (["--disaggregation-mode", "decode", "--disagg", "null"], True),
    ],
)
def test_the_host_tier_is_left_out_where_it_is_named_already_or_would_stop_a_decoder(
    args: list[str], appended: bool
) -> None:
    written = server(injected(pod("SGLang", args=args)))["args"]
    assert written[: len(args)] == args
    assert (written[-1] == "--enable-hierarchical-cache" and len(written) > len(args) + 4) is appended


def test_only_the_named_container_changes() -> None:
    given_pod = pod(annotations={"container": "server"})
    others = [{"name": "proxy", "image": "p"}, {"name": "logs", "image": "l", "args": ["--kv-transfer-config", "x"]}]
    given_pod["spec"]["containers"] = [others[0], *given_pod["spec"]["containers"], others[1]]
    done = injected(given_pod).pod["spec"]["containers"]
    assert [done[0], done[2]] == others
    assert "--kv-transfer-config" in done[1]["args"]


def test_what_the_operator_has_never_heard_of_survives() -> None:
    given_pod = pod(somethingNew={"a": [1]}, env=[{"name": "A", "newSource": {"x": 1}}])
    given_pod["spec"]["schedulingGates"] = [{"name": "g"}]
    done = injected(given_pod).pod
    assert done["spec"]["schedulingGates"] == [{"name": "g"}]
    assert server(injected(given_pod))["somethingNew"] == {"a": [1]}
    assert server(injected(given_pod))["env"][0] == {"name": "A", "newSource": {"x": 1}}


def test_a_second_cache_that_would_take_the_connectors_place_is_warned_of() -> None:
    (warning,) = injected(pod(args=["--kv-offloading-size", "8"], env=[SEED])).warnings
    assert "--kv-offloading-size" in warning
    assert "remove" in warning
    assert injected(pod(env=[SEED])).warnings == ()


@pytest.mark.parametrize(
    ("engine", "container", "warned"),
    [
        ("vLLM", {}, True),
        ("vLLM", {"env": [SEED]}, False),
        ("vLLM", {"envFrom": [{"configMapRef": {"name": "c"}}]}, False),  # it may be in there
        ("vLLM", {"command": ["env", "PYTHONHASHSEED=0", *VLLM]}, False),
        ("SGLang", {}, False),
    ],
)
def test_a_vllm_that_would_find_no_block_of_another_is_warned_of(engine: str, container: Json, warned: bool) -> None:
    told = injected(pod(engine, **container)).warnings
    assert ["PYTHONHASHSEED" in warning for warning in told] == ([True] if warned else [])


# ------------------------------------------------------------------------------------------------ annotations


@pytest.mark.parametrize(
    ("engine", "annotations", "key", "told"),
    [
        ("vLLM", {"binding": None}, "binding", "name a KVCachePoolBinding"),
        ("vLLM", {"binding": ""}, "binding", "name a KVCachePoolBinding"),
        ("vLLM", {"binding": "other/team-a"}, "binding", "another namespace"),
        ("vLLM", {"binding": "Team A"}, "binding", "cannot be the name"),
        ("vLLM", {"binding": "team-.a"}, "binding", "cannot be the name"),
        ("vLLM", {"engine": None}, "engine", "not guessed"),
        ("vLLM", {"engine": "vllm"}, "engine", '"vLLM", "SGLang"'),
        ("vLLM", {"engine": "TensorRT"}, "engine", '"vLLM", "SGLang"'),
        ("vLLM", {"manufacturer": "nvidia"}, "manufacturer", '"ascend"'),
        ("vLLM", {"manufacturer": ""}, "manufacturer", '"ascend"'),
        ("SGLang", {"manufacturer": "ascend"}, "manufacturer", "only vLLM"),
        ("vLLM", {"role": "Server"}, "role", "leave it out"),
        ("SGLang", {"role": "decode"}, "role", "leave it out"),
        ("vLLM", {"launch-args-forwarded": "yes"}, "launch-args-forwarded", '"true"'),
        ("vLLM", {"container": "sidecar"}, "container", "name one of server"),
        ("vLLM", {"domain": "mine"}, "domain", "the Binding's"),
        ("vLLM", {"client-config": "{}"}, "client-config", "written by the webhook alone"),
        ("vLLM", {"injected": "{}"}, "injected", "written by the webhook alone"),
        ("vLLM", {"engin": "vLLM"}, "engin", "no such key"),
        ("vLLM", {"inject": "true"}, "inject", "no such key"),
    ],
)
def test_an_annotation_is_refused_by_its_name_with_a_remedy(
    engine: str, annotations: dict[str, str | None], key: str, told: str
) -> None:
    found = refusals(pod(engine, annotations=annotations))
    assert set(found) == {f"{ANNOTATION}[{PREFIX}{key}]"}
    (message,) = found.values()
    assert told in message
    assert _REMEDY.search(message)


def test_annotations_of_others_are_nobodys_business() -> None:
    given_pod = pod()
    given_pod["metadata"]["annotations"]["kvcache.example.com/injected"] = "x"
    assert refusals(given_pod) == {}


def test_an_injected_pod_is_not_injected_again_into_a_new_one() -> None:
    copied = injected(pod()).pod
    assert {f"{ANNOTATION}[{PREFIX}injected]", f"{ANNOTATION}[{PREFIX}client-config]"} <= set(refusals(copied))


@pytest.mark.parametrize("named", [None, "init"])
def test_of_several_containers_the_engine_has_to_be_named_and_an_init_container_is_none(named: str | None) -> None:
    given_pod = pod(annotations={"container": named})
    given_pod["spec"]["containers"].append({"name": "other", "image": "o"})
    given_pod["spec"]["initContainers"] = [{"name": "init", "image": "i", "restartPolicy": "Always"}]
    (message,) = refusals(given_pod).values()
    assert "server, other" in message
    assert ("init container" in message) is (named is not None)


# ------------------------------------------------------------------------------------------------ the chain


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"binding": None}, "namespace team-a has no KVCachePoolBinding"),
        ({"binding": binding(deleting=True)}, "being deleted"),
        ({"pool": None}, "KVCachePool shared-dram does not exist"),
        ({"pool": pool()}, "has not reported QuotaLedgerAvailable"),
        ({"pool": pool({**LEDGER, "status": "Unknown", "reason": "R"})}, "QuotaLedgerAvailable=Unknown, R"),
        (
            {"pool": pool({**LEDGER, "status": "False", "reason": "LedgerUnreachable", "message": "no route"})},
            "QuotaLedgerAvailable=False, LedgerUnreachable: no route",
        ),
        # Whatever the status says besides False, the reason alone opens nothing.
        ({"pool": pool({**NO_TENANTS, "status": "Unknown"})}, "QuotaLedgerAvailable=Unknown"),
        ({"pool": pool(LEDGER, endpoint="")}, "status.clientEndpoint"),
        ({"pool": pool(LEDGER, backends=("a", "b"))}, "exactly one backend"),
        ({"backend": None}, "KVCacheBackend mooncake-dram"),
        ({"backend": managed("TCP", "RDMA")}, "offers tcp, rdma"),
        ({"backend": managed("RDMA", None)}, "offers rdma, tcp"),
    ],
)
@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_a_chain_that_ends_early_or_does_not_fit_is_refused_at_the_binding(
    engine: str, changed: dict[str, Any], told: str
) -> None:
    found = refusals(pod(engine), chain(**changed))
    assert set(found) == {f"{ANNOTATION}[{PREFIX}binding]"}
    (message,) = found.values()
    assert told in message
    assert _REMEDY.search(message)


@pytest.mark.parametrize(
    ("backend", "transport"),
    [
        (managed(), "tcp"),
        (managed("TCP", None), "tcp"),
        (managed(None, None, default="RDMA"), "rdma"),
        (managed("EFA", "EFA"), "efa"),
        (managed("CANN"), "ascend"),
        (managed("ROCM"), "hip"),
        (managed("MUSA"), "musa"),
        (external("MACA"), "maca"),
        (external(), "tcp"),
    ],
)
def test_the_transport_is_the_one_that_all_member_groups_offer(backend: Any, transport: str) -> None:
    env = server(injected(pod("SGLang"), chain(backend=backend)))["env"]
    assert {"name": "MOONCAKE_PROTOCOL", "value": transport} in env


@pytest.mark.parametrize("backend", [managed(), managed("RDMA", "TCP"), external("ROCM")])
def test_vllm_on_ascend_accepts_only_its_own_transport_and_says_how_to_offer_it(backend: Any) -> None:
    (message,) = refusals(pod(annotations={"manufacturer": "ascend"}), chain(backend=backend)).values()
    assert "accepts only ascend" in message
    assert "CANN" in message


def test_the_readiness_of_the_binding_is_not_asked_for() -> None:
    wanting = binding().model_copy(update={"status": binding().status.model_copy(update={"phase": "Error"})})
    assert refusals(pod(), chain(binding=wanting)) == {}


# ------------------------------------------------------------------------------------------------ the launch


@pytest.mark.parametrize(
    ("command", "args", "forwarded", "told"),
    [
        (None, None, True, "replace those of the image"),
        (None, ["serve", "m"], False, "entry point cannot be seen"),
        ([], ["serve", "m"], False, "entry point cannot be seen"),
        (["tini", "--"], None, True, "names no program"),
        (["sh", "-c", 'vllm serve m "$@"'], ["--"], True, "-c"),
        (["tini", "--", "bash", "-lc"], ["vllm serve m"], True, "-c"),
        (["./run.sh"], None, False, "passes arguments on"),
        (["sh", "/app/run.sh"], None, False, "passes arguments on"),
        (["env", "-S", "vllm serve m"], None, False, "cannot be judged"),
        (["/entrypoint"], ["m"], False, "not an engine that is known"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], None, False, "not an engine that is known"),
        (list(SGLANG), None, True, "this starts SGLang"),
        (["env", "-i", *VLLM], None, True, "without the variables"),
    ],
)
def test_a_launch_that_would_lose_the_arguments_is_refused_with_a_remedy(
    command: list[str] | None, args: list[str] | None, forwarded: bool, told: str
) -> None:
    annotations: dict[str, str | None] = {"launch-args-forwarded": "true" if forwarded else None}
    found = refusals(pod(annotations=annotations, command=command, args=args))
    assert set(found) == {COMMAND}
    assert told in found[COMMAND]
    assert _REMEDY.search(found[COMMAND])
    can_be_declared = f"{PREFIX}launch-args-forwarded" in found[COMMAND]
    assert can_be_declared is not forwarded


@pytest.mark.parametrize(
    ("command", "args", "program"),
    [
        (None, ["serve", "m"], ""),
        (["./run.sh"], None, "./run.sh"),
        (["sh", "/app/run.sh"], None, "sh"),
        (["tini", "--", "env", "-S", "vllm serve m"], None, ""),
        (["/entrypoint"], ["m"], "/entrypoint"),
    ],
)
def test_a_declared_forwarding_admits_what_cannot_be_judged_and_is_recorded(
    command: list[str] | None, args: list[str] | None, program: str
) -> None:
    done = injected(pod(annotations={"launch-args-forwarded": "true"}, command=command, args=args))
    record = json.loads(done.pod["metadata"]["annotations"][f"{PREFIX}injected"])
    assert (record["launchProgram"], record["launchArgsForwarded"]) == (program, True)
    assert server(done)["args"][: len(args or [])] == (args or [])


def test_a_forwarding_that_was_not_needed_is_not_recorded_as_used() -> None:
    done = injected(pod(annotations={"launch-args-forwarded": "true"}))
    assert json.loads(done.pod["metadata"]["annotations"][f"{PREFIX}injected"])["launchArgsForwarded"] is False


def test_flags_behind_the_end_of_options_would_be_read_as_positionals() -> None:
    assert "not be read as flags" in refusals(pod(args=["--", "m"]))[ARGS]
    assert refusals(pod(command=["tini", "--", *VLLM])) == {}


def test_references_to_variables_are_followed_before_anything_is_judged() -> None:
    env = [{"name": "RUN", "value": "sh"}, {"name": "FLAG", "value": "--kv-transfer-config"}]
    found = refusals(pod(command=["$(RUN)", "-c"], args=["vllm serve m"], env=env))
    assert "-c" in found[COMMAND]
    assert "--kv-transfer-config" in refusals(pod(args=["$(FLAG)", "{}"], env=env))[ARGS]
    assert refusals(pod(args=["--model", "$(FROM_A_SECRET)"])) == {}


# --------------------------------------------------------------------------------------------- what is there already


@pytest.mark.parametrize(
    ("engine", "container", "field", "told"),
    [
        ("vLLM", {"args": ["--kv-transfer-config", "{}"]}, ARGS, "an engine has one"),
        ("vLLM", {"args": ["--kv_transfer_config={}"]}, ARGS, "--kv_transfer_config is read as --kv-transfer-config"),
        ("vLLM", {"args": ["--kv-tr.kv_role=x"]}, ARGS, "is read as --kv-transfer-config"),
        ("vLLM", {"command": [*VLLM, "--kv-transfer-config={}"]}, ARGS, "an engine has one"),
        ("vLLM", {"args": ["--kv_cache_dtype", "fp8"]}, ARGS, "the Binding's dtype"),
        ("SGLang", {"args": ["--hicache-storage-backend", "file"]}, ARGS, "an engine has one"),
        ("SGLang", {"args": ["--hicache-storage-backend-e={}"]}, ARGS, "another source"),
        ("SGLang", {"args": ["--kv-cache-d", "auto"]}, ARGS, "the Binding's dtype"),
        ("vLLM", {"env": [{"name": "MOONCAKE_CONFIG_PATH"}]}, "spec.containers[0].env[MOONCAKE_CONFIG_PATH]", "source"),
        (
            "SGLang",
            {"env": [{"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "valueFrom": {}}]},
            "spec.containers[0].env[SGLANG_HICACHE_MOONCAKE_CONFIG_PATH]",
            "source",
        ),
        ("vLLM", {"command": ["env", "MOONCAKE_CONFIG_PATH=/x", *VLLM]}, COMMAND, "behind the value"),
        ("vLLM", {"command": ["env", "-u", "MOONCAKE_CONFIG_PATH", *VLLM]}, COMMAND, "behind the value"),
        ("SGLang", {"command": ["env", "MOONCAKE_MASTER=x:1", *SGLANG]}, COMMAND, "behind the value"),
        ("SGLang", {"command": ["env", "MOONCAKE_TENANT_ID=x", *SGLANG]}, COMMAND, "behind the value"),
        (
            "vLLM",
            {"volumeMounts": [{"name": "gpustack-kvcache-config", "mountPath": "/x"}]},
            "spec.containers[0].volumeMounts[0].name",
            "rename",
        ),
        (
            "vLLM",
            {"volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "//etc/gpustack/kvcache/"}]},
            "spec.containers[0].volumeMounts[1].mountPath",
            "elsewhere",
        ),
        (
            "vLLM",
            {"volumeMounts": [{"name": "v", "mountPath": "/etc/gpustack/kvcache/mooncake.json", "subPath": "a"}]},
            "spec.containers[0].volumeMounts[0].mountPath",
            "elsewhere",
        ),
    ],
)
def test_what_would_leave_the_injected_configuration_unread_is_refused(
    engine: str, container: Json, field: str, told: str
) -> None:
    found = refusals(pod(engine, **container))
    assert set(found) == {field}
    assert told in found[field]
    assert _REMEDY.search(found[field])


def test_a_volume_of_the_webhooks_name_is_refused_on_engines_that_get_one() -> None:
    for engine, fields in (("vLLM", {"spec.volumes[1].name"}), ("SGLang", set[str]())):
        given_pod = pod(engine)
        given_pod["spec"]["volumes"] = [{"name": "v"}, {"name": "gpustack-kvcache-config", "emptyDir": {}}]
        assert set(refusals(given_pod)) == fields


@pytest.mark.parametrize(
    ("engine", "container"),
    [
        ("vLLM", {"args": ["--kv-cache-dtype-skip-layers", "1"]}),
        ("vLLM", {"args": ["--hicache-storage-backend", "file"]}),
        ("vLLM", {"env": [{"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "value": "/x"}]}),
        ("vLLM", {"env": [{"name": "MOONCAKE_MASTER", "value": "/x"}]}),
        ("vLLM", {"command": ["env", "MOONCAKE_MASTER=x", *VLLM]}),
        ("vLLM", {"volumeMounts": [{"name": "v", "mountPath": "/etc/gpustack"}]}),
        ("SGLang", {"args": ["--kv_cache_dtype", "x"]}),
        ("SGLang", {"args": ["--hicache-ratio", "2"]}),
        ("SGLang", {"env": [{"name": "MOONCAKE_CONFIG_PATH", "value": "/x"}]}),
        ("SGLang", {"volumeMounts": [{"name": "v", "mountPath": "/etc/gpustack/kvcache"}]}),
    ],
)
def test_what_the_pods_own_engine_does_not_read_is_not_refused(engine: str, container: Json) -> None:
    assert refusals(pod(engine, **container)) == {}


def test_everything_that_is_wrong_is_told_at_once() -> None:
    given_pod = pod(
        annotations={"role": "Server", "injected": "x"},
        command=["./run.sh"],
        args=["--kv-transfer-config", "x", "--kv-cache-dtype", "x"],
        env=[{"name": "MOONCAKE_CONFIG_PATH", "value": "x"}],
    )
    given_pod["spec"]["volumes"] = [{"name": "gpustack-kvcache-config"}]
    found = refusals(given_pod, chain(binding=binding(deleting=True), pool=pool(endpoint="")))
    assert set(found) == {
        f"{ANNOTATION}[{PREFIX}role]",
        f"{ANNOTATION}[{PREFIX}injected]",
        f"{ANNOTATION}[{PREFIX}binding]",
        COMMAND,
        ARGS,
        "spec.containers[0].env[MOONCAKE_CONFIG_PATH]",
        "spec.volumes[0].name",
    }
    assert all(word in found[ARGS] for word in ("--kv-transfer-config", "--kv-cache-dtype"))
    assert all(
        word in found[f"{ANNOTATION}[{PREFIX}binding]"]
        for word in ("deleted", "QuotaLedgerAvailable", "clientEndpoint")
    )


WORD = st.sampled_from(
    [
        "vllm",
        "serve",
        "m",
        "env",
        "A=1",
        "tini",
        "--",
        "sh",
        "-c",
        "run.sh",
        "--port",
        "1",
        "python3",
        "-m",
        "timeout",
        "sglang.launch_server",
        "--kv-cache-dtype",
        "--kv_transfer_config.x",
        "-i",
        "-S",
        "--disaggregation-mode",
        "decode",
    ]
)


@given(
    command=st.none() | st.lists(WORD, max_size=6),
    args=st.none() | st.lists(WORD, max_size=4),
    engine=st.sampled_from(["vLLM", "SGLang"]),
    forwarded=st.booleans(),
)
def test_a_pod_is_either_refused_or_its_arguments_stand_last_behind_all_of_its_own(
    command: list[str] | None, args: list[str] | None, engine: str, forwarded: bool
) -> None:
    given_pod = pod(engine, annotations={"launch-args-forwarded": "true" if forwarded else None})
    given_pod["spec"]["containers"][0] |= {"command": command, "args": args}
    if refusals(given_pod):
        return
    container = server(injected(given_pod))
    own = args or []
    assert container["command"] == command
    assert container["args"][: len(own)] == own
    assert len(container["args"]) > len(own)
    before, after = (read_launch(command or [], words) for words in (own, container["args"]))
    assert (after.start, after.program) == (before.start, before.program)
    assert after.arguments == (*before.arguments, *container["args"][len(own) :])
