"""The three runtimes: what they add, what they keep, what they refuse without touching the Pod (spec 04 §3–§5)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.adapters.binding import Binding
from inferencecache.adapters.registry import InjectionError, PodSpec, RuntimeAdapter, load_adapters
from inferencecache.api.cachebackend import CacheBackend
from tests.unit.adapters.objects import MANAGED, REDIS, backend, pod_spec, variables

LM = Binding("lm", "cache:65432")
RESP = Binding("resp", "cache:6379")
FLAG = "--kv-transfer-config"


def adapter_of(wanted: CacheBackend) -> RuntimeAdapter:
    return load_adapters()[0].select(wanted.runtime_id, wanted)


def wire(spec: PodSpec, binding: Binding | None, wanted: CacheBackend) -> PodSpec:
    """The wired Pod spec; wiring it again must change nothing."""
    once = copy.deepcopy(spec)
    adapter_of(wanted).inject_engine_config(once, binding, wanted)
    twice = copy.deepcopy(once)
    adapter_of(wanted).inject_engine_config(twice, binding, wanted)
    assert twice == once
    return once


def refuse(spec: PodSpec, binding: Binding | None, wanted: CacheBackend, match: str) -> None:
    before = copy.deepcopy(spec)
    with pytest.raises(InjectionError, match=match):
        adapter_of(wanted).inject_engine_config(spec, binding, wanted)
    assert spec == before


# --------------------------------------------------------------------------------------------------- vLLM + LMCache


@pytest.mark.parametrize("field", ["command", "args"])
def test_vllm_refuses_a_connector_in_parts(field: str) -> None:
    part = "--kv_transfer_config.kv_role"
    refuse(pod_spec(**{field: ["vllm", part, "kv_both"]}), LM, backend(remoteStorage=MANAGED), part)
    overrides = {"integration": {"engineOverrides": {"args": [f"{part}=kv_both"]}}}
    refuse(pod_spec(), LM, backend(remoteStorage=MANAGED, **overrides), part)


def test_vllm_gets_eight_variables_and_one_flag() -> None:
    engine = wire(pod_spec(args=["--model", "m"]), LM, backend(remoteStorage=MANAGED))["containers"][0]
    assert variables(engine) == {
        "LMCACHE_REMOTE_URL": "lm://cache:65432",
        "LMCACHE_REMOTE_SERDE": "naive",
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_LOCAL_CPU": "False",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "20",
        "VLLM_USE_V1": "1",
        "INFERENCECACHE_FAIL_OPEN": "true",
        "PYTHONHASHSEED": "0",
    }
    assert engine["args"] == ["--model", "m", FLAG, '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']


@pytest.mark.parametrize(
    ("capacity", "gib"),
    [("1", "1"), ("1Gi", "1"), ("1073741825", "2"), (str(2**63 - 1), "8589934592"), ("40Gi", "40")],
)
def test_vllm_host_memory_is_rounded_up_to_gibibytes(capacity: str, gib: str) -> None:
    wanted = backend(lmCache={"hostMemory": {"capacity": capacity}}, remoteStorage=MANAGED)
    found = variables(wire(pod_spec(), LM, wanted)["containers"][0])
    assert (found["LMCACHE_MAX_LOCAL_CPU_SIZE"], found["LMCACHE_LOCAL_CPU"]) == (gib, "True")


def test_vllm_host_only_forgets_a_stale_address() -> None:
    env = [{"name": "LMCACHE_REMOTE_URL", "value": "lm://old"}, {"name": "KEEP_ME", "value": "1"}]
    found = variables(wire(pod_spec(env=env), None, backend())["containers"][0])
    assert "LMCACHE_REMOTE_URL" not in found
    assert (found["KEEP_ME"], found["LMCACHE_LOCAL_CPU"]) == ("1", "True")


@pytest.mark.parametrize(
    ("role", "kv_role"),
    [("ReadOnly", "kv_consumer"), ("WriteOnly", "kv_producer"), ("ReadWrite", "kv_both"), (None, "kv_both")],
)
def test_vllm_role(role: str | None, kv_role: str) -> None:
    args = wire(pod_spec(), LM, backend(integration={"role": role, "failOpen": False}))["containers"][0]["args"]
    assert json.loads(args[1])["kv_role"] == kv_role


def test_vllm_connector_in_the_command_is_updated_there() -> None:
    command = ["vllm", "serve", "m", "--kv_transfer_config", "{}"]
    engine = wire(pod_spec(command=command), LM, backend())["containers"][0]
    assert engine["command"][:4] == command[:4]
    assert "LMCacheConnectorV1" in engine["command"][4]
    assert "args" not in engine


@pytest.mark.parametrize(
    ("asked", "protocol", "moved"),
    [(True, "mooncakestore", True), (True, "lm", False), (False, "mooncakestore", False)],
)
def test_vllm_host_network_only_for_mooncake_on_request(asked: bool, protocol: str, moved: bool) -> None:
    spec = wire(pod_spec(), Binding(protocol, "c:1"), backend(integration={"engineHostNetwork": asked}))
    assert (spec.get("hostNetwork"), spec.get("dnsPolicy")) == (
        (True, "ClusterFirstWithHostNet") if moved else (None, None)
    )


@pytest.mark.parametrize(
    ("spec", "binding", "match"),
    [
        ({}, LM, "no containers"),
        (pod_spec(), Binding("lm", ""), "no endpoint"),
        (pod_spec(), RESP, "resp"),
        ({"containers": [{"name": "a"}, {"name": "b"}]}, LM, 'none is named "vllm"'),
        (pod_spec(command=["sh", "-c", "vllm serve m"]), LM, "shell script"),
    ],
)
def test_vllm_refuses_before_it_changes_anything(spec: PodSpec, binding: Binding, match: str) -> None:
    refuse(spec, binding, backend(remoteStorage=MANAGED), match)


@pytest.mark.parametrize("runtime", ["VLLM", "SGLang"])
def test_events_only_leaves_the_engine_alone(runtime: str) -> None:
    spec = pod_spec()
    assert wire(spec, None, backend(runtime, integration={"mode": "EventsOnly"})) == spec


# ------------------------------------------------------------------------------------------------- SGLang + LMCache


def sglang(**lmcache: Any) -> CacheBackend:
    return backend("SGLang", remoteStorage=REDIS, lmCache=lmcache)


def test_sglang_worker_script_and_memory() -> None:
    spec = wire(pod_spec("sglang"), RESP, sglang(hostMemory={"capacity": "8Gi"}, workerPort=6000, chunkSizeTokens=512))
    worker = spec["initContainers"][0]
    script = worker["args"][0]
    assert script.startswith(r"""set -e; printf 'chunk_size: 512\nmp_host: "127.0.0.1"\nmp_port: 6000\n' > """)
    assert script.endswith("""--l2-adapter '{"type":"resp","host":"cache","port":6379}'""")
    assert worker["resources"]["limits"] == worker["resources"]["requests"] == {"memory": "9Gi"}
    assert worker["securityContext"].keys() == {"allowPrivilegeEscalation", "capabilities", "seccompProfile"}
    assert [v["name"] for v in spec["volumes"]] == ["lmcache-config", "lmcache-dshm"]


def test_sglang_address_is_quoted_and_its_port_a_plain_number() -> None:
    script = wire(pod_spec("sglang"), Binding("resp", "[::1]:06379"), sglang())["initContainers"][0]["args"][0]
    assert '"host":"::1","port":6379' in script
    script = wire(pod_spec("sglang"), Binding("resp", "a';reboot;':1"), sglang())["initContainers"][0]["args"][0]
    assert r"a'\'';reboot;'\''" in script


def test_sglang_wiring_follows_a_changed_store() -> None:
    first = wire(pod_spec("sglang"), RESP, sglang())
    second = wire(first, Binding("resp", "other:1"), sglang())
    assert len(second["initContainers"]) == 1
    assert len(second["volumes"]) == 2
    assert '"other"' in second["initContainers"][0]["args"][0]
    assert second["containers"][0]["args"] == first["containers"][0]["args"]


def _shm(volume: dict[str, Any], **mount: Any) -> PodSpec:
    spec = pod_spec("sglang", volumeMounts=[{"name": "mine", "mountPath": "/dev/shm", **mount}])
    return {**spec, "volumes": [{"name": "mine", **volume}]}


def test_sglang_shares_the_engines_own_memory_volume() -> None:
    spec = wire(_shm({"nfs": {"server": "s", "path": "/"}}, subPath="part"), RESP, sglang())
    assert [v["name"] for v in spec["volumes"]] == ["mine", "lmcache-config"]
    assert {"name": "mine", "mountPath": "/dev/shm", "subPath": "part"} in spec["initContainers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    "spec",
    [
        _shm({"emptyDir": {}}, readOnly=True),
        _shm({"emptyDir": {}}, subPathExpr="$(A)"),
        *(_shm({source: {}}) for source in ("configMap", "secret", "downwardAPI", "projected")),
        *(
            _shm({source: {"readOnly": True}}, readOnly=False)
            for source in ("persistentVolumeClaim", "csi", "nfs", "rbd", "cephfs", "azureFile", "fc")
        ),
    ],
)
def test_sglang_refuses_memory_that_cannot_be_written(spec: PodSpec) -> None:
    refuse(spec, RESP, sglang(), "/dev/shm")


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"initContainers": [{"name": "lmcache-mp-worker"}]}, "lmcache-mp-worker"),
        ({"volumes": [{"name": "lmcache-config"}]}, "lmcache-config"),
        ({"volumes": [{"name": "lmcache-dshm"}]}, "lmcache-dshm"),
    ],
)
def test_sglang_refuses_names_somebody_else_took(extra: PodSpec, match: str) -> None:
    refuse({**pod_spec("sglang"), **extra}, RESP, sglang(), match)


def test_sglang_refuses_a_foreign_configuration_mount() -> None:
    spec = pod_spec("sglang", volumeMounts=[{"name": "lm", "mountPath": "/etc/lmcache"}])
    refuse(spec, RESP, sglang(), r'"lm".*/etc/lmcache')


@pytest.mark.parametrize(
    ("lmcache", "match"),
    [
        ({"workerPort": 99999}, "workerPort"),
        ({"chunkSizeTokens": -1}, "chunkSizeTokens"),
        ({"hostMemory": {"capacity": "2Ti"}}, "capacity"),
    ],
)
def test_sglang_never_replaces_a_setting_out_of_range(lmcache: dict[str, Any], match: str) -> None:
    refuse(pod_spec("sglang"), RESP, sglang(**lmcache), match)


@pytest.mark.parametrize("endpoint", ["", "cache:redis", "cache:70000", "cache:0"])
def test_sglang_refuses_an_unusable_store(endpoint: str) -> None:
    refuse(pod_spec("sglang"), Binding("resp", endpoint), sglang(), "endpoint|unusable")


# ------------------------------------------------------------------------------------------------- SGLang + HiCache


def hicache(*, integration: dict[str, Any] | None = None, runtime: str = "SGLang", **hi: Any) -> CacheBackend:
    return backend(
        runtime,
        type="SGLangHiCache",
        hiCache=hi,
        integration=integration or {},
        engineSelector={"matchLabels": {"a": "b"}},
    )


@pytest.mark.parametrize(
    ("args", "hi", "expected"),
    [
        ([], {"sizeGB": 64}, ["--enable-hierarchical-cache", "--hicache-size", "64"]),
        (
            [],
            {"sizeGB": 8, "ratio": "", "writePolicy": "", "ioBackend": "kernel"},
            ["--enable-hierarchical-cache", "--hicache-size", "8", "--hicache-io-backend", "kernel"],
        ),
        (
            ["--enable-hierarchical-cache", "--hicache-ratio=2", "--hicache-io-backend", "direct"],
            {"ratio": "2.0"},
            ["--enable-hierarchical-cache", "--hicache-ratio=2", "--hicache-io-backend", "direct"],
        ),
        (["--hicache-size", "064"], {"sizeGB": 64}, ["--hicache-size", "064", "--enable-hierarchical-cache"]),
    ],
)
def test_hicache_adds_only_what_is_missing(args: list[str], hi: dict[str, Any], expected: list[str]) -> None:
    assert wire(pod_spec("sglang", args=args), None, hicache(**hi))["containers"][0]["args"] == expected


@pytest.mark.parametrize(
    "args",
    [
        ["--hicache-ratio=3"],
        ["--hicache-ratio", "3"],
        ["--hicache-size", "8"],
        ["--hicache-ratio", "2", "--hicache-ratio=2"],
        ["--hicache-ratio"],
        ["--hicache-ratio="],
        ["--hicache-ratio", "nan"],
        ["--enable-hierarchical-cache=true"],
        ["--enable-hierarchical-cache"] * 2,
        ["--enable-lmcache"],
        ["--lmcache-config-file=x"],
        ["--hicache-mem-layout", "--port"],
    ],
)
@pytest.mark.parametrize("field", ["args", "command"])
def test_hicache_never_overrules_the_pods_owner(field: str, args: list[str]) -> None:
    refuse(pod_spec("sglang", **{field: ["python3", *args]}), None, hicache(ratio="2"), "engine has")


@pytest.mark.parametrize(
    "wanted",
    [
        hicache(),
        hicache(sizeGB=1, ratio="2"),
        hicache(sizeGB=0),
        hicache(ratio="NaN"),
        hicache(ratio=" 2"),
        hicache(ratio="1e999"),
        hicache(sizeGB=1, writePolicy="sometimes"),
        hicache(sizeGB=1, integration={"mode": "EventsOnly"}),
        hicache(sizeGB=1, integration={"role": "ReadOnly"}),
        hicache(sizeGB=1, integration={"failOpen": False}),
        hicache(sizeGB=1, integration={"engineOverrides": {"args": ["--hicache-size=2"]}}),
        hicache(sizeGB=1, integration={"engineOverrides": {"suppressArgs": ["--hicache-ratio"]}}),
        backend("SGLang", type="SGLangHiCache", hiCache={"sizeGB": 1}),
    ],
)
def test_hicache_wires_only_what_admission_would_accept(wanted: CacheBackend) -> None:
    refuse(pod_spec("sglang"), None, wanted, "hiCache|HiCache")


# ------------------------------------------------------------------------------------------------------- properties

_WORDS = st.sampled_from(
    [
        *(FLAG, f"{FLAG}=x", "--kv_transfer_config", "--enable-lmcache", "--lmcache-config-file", "--hicache-ratio=2"),
        *("sh", "-c", 'vllm "$@"', "--", "vllm", "serve", "--tp", "8", "-1", ""),
    ]
)
_ENTRIES = st.one_of(st.none(), st.lists(_WORDS, max_size=6))
_ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["LMCACHE_REMOTE_URL", "PYTHONHASHSEED", "INFERENCECACHE_MP_WORKER", "X"])},
        optional={"value": st.sampled_from(["true", ""]), "valueFrom": st.just({"fieldRef": {"fieldPath": "x"}})},
    ),
    max_size=3,
)
_MOUNTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "lmcache-config", "lmcache-dshm"]),
            "mountPath": st.sampled_from(["/dev/shm", "/etc/lmcache", "/x"]),
        },
        optional={"subPath": st.just("s"), "readOnly": st.booleans()},
    ),
    max_size=3,
)


def _name(item: dict[str, Any]) -> str:
    return str(item["name"])


_Items = st.SearchStrategy[dict[str, Any]]
_CONTAINER: _Items = st.fixed_dictionaries(
    {"name": st.sampled_from(["vllm", "sglang", "main", "lmcache-mp-worker", "kvevent-subscriber"])},
    optional={
        "command": _ENTRIES,
        "args": _ENTRIES,
        "env": _ENV,
        "volumeMounts": _MOUNTS,
        "newField": st.just({"x": 1}),
    },
)
_VOLUME: _Items = st.fixed_dictionaries({"name": st.sampled_from(["a", "lmcache-config"]), "emptyDir": st.just({})})
_SPEC: _Items = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER, max_size=3, unique_by=_name)},
    optional={
        "initContainers": st.one_of(st.none(), st.lists(_CONTAINER, max_size=2, unique_by=_name)),
        "volumes": st.lists(
            _VOLUME,
            max_size=2,
            unique_by=_name,
        ),
        "futureField": st.just([1, 2]),
    },
)
_BACKENDS = st.sampled_from(
    [(backend(remoteStorage=MANAGED), LM), (backend(), None), (sglang(), RESP), (hicache(ratio="2"), None)]
)


@given(_SPEC, _BACKENDS)
@settings(max_examples=300, deadline=None)
def test_any_pod_is_wired_once_and_for_all_or_refused(spec: PodSpec, pair: tuple[CacheBackend, Binding | None]) -> None:
    """Names stay unique, unknown fields survive, a second time changes nothing, and only `InjectionError` comes out."""
    wanted, binding = pair
    before = copy.deepcopy(spec)
    try:
        wired = wire(spec, binding, wanted)
    except InjectionError:
        return
    assert spec == before
    assert wired.get("futureField") == spec.get("futureField")
    assert [c.get("newField") for c in wired["containers"]] == [c.get("newField") for c in spec["containers"]]
    for field in ("volumes", "initContainers"):
        names = [item["name"] for item in wired.get(field) or ()]
        assert len(names) == len(set(names))


def test_shared_memory_from_a_volume_of_the_reserved_name_is_refused() -> None:
    """Seed: Names the MP wire reserves; spec 04 §4.3 would share it, and a second admission take it for ours."""
    engine = {"name": "sglang", "image": "i", "volumeMounts": [{"name": "lmcache-dshm", "mountPath": "/dev/shm"}]}
    refuse({"containers": [engine]}, RESP, backend(runtime="SGLang", remoteStorage=REDIS), "reserved for the worker")
