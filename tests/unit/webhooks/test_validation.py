"""The rules of spec 02 §5, row by row: each fires on create, and a stored finding does not block an unrelated edit."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.webhooks.validation import (
    RULES,
    Verdict,
    Violation,
    validate_cache_backend,
    validate_cache_policy,
    validate_cache_tenant,
)
from inferencecache.webhooks.validation.cachebackend import overlap_warning
from inferencecache.webhooks.validation.text import LONGEST_WARNING, warning

REGISTRY = load_adapters()[0]

_SELECTOR = {"matchLabels": {"app": "llm"}}


def _vllm(**spec: Any) -> dict[str, Any]:
    return {"runtime": "VLLM", "type": "LMCache", **spec}


def _sglang(**spec: Any) -> dict[str, Any]:
    return {"runtime": "SGLang", "type": "LMCache", **spec}


def _hicache(**spec: Any) -> dict[str, Any]:
    given = {"runtime": "SGLang", "type": "SGLangHiCache", "engineSelector": _SELECTOR, "hiCache": {"sizeGB": 8}}
    return {**given, **spec}


def _managed(provider: str = "LMCacheServer", **storage: Any) -> dict[str, Any]:
    return {"remoteStorage": {"provider": provider, "ownership": "Managed", **storage}}


def _on_pool(**storage: Any) -> dict[str, Any]:
    mooncake = {"provider": "Mooncake", "ownership": "Managed", "poolBindingRef": {"name": "team-a"}}
    return {"remoteStorage": {**mooncake, **storage}}


def _resources(**halves: Any) -> dict[str, Any]:
    return _vllm(**_managed(lmCacheServer={"resources": halves}))


def _overrides(**overrides: Any) -> dict[str, Any]:
    return _vllm(integration={"engineOverrides": overrides})


def _from(**source: Any) -> dict[str, Any]:
    return _overrides(env=[{"name": "A", "valueFrom": source}])


_SCALING = {"minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercent": 50}
_LIMITS = "spec.remoteStorage.lmCacheServer.resources.limits"
_REQUESTS = "spec.remoteStorage.lmCacheServer.resources.requests"
_ENV = "spec.integration.engineOverrides.env[0]"
_POOL = "spec.remoteStorage.poolBindingRef"

# (row, field, spec)
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("V1", "spec.autoscaling", _vllm(autoscaling=_SCALING)),
    ("V2", "spec.lmCache", _hicache(lmCache={})),
    ("V3", "spec.remoteStorage.provider", _vllm(remoteStorage={"ownership": "Managed"})),
    ("V4", "spec.remoteStorage.ownership", _vllm(remoteStorage={"provider": "LMCacheServer"})),
    ("V5", "spec.remoteStorage.endpoint", _vllm(**_managed(endpoint="h:1"))),
    ("V6", "spec.remoteStorage.endpoint", _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External"})),
    (
        "V7",
        "spec.remoteStorage.endpoint",
        _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External", "endpoint": "h"}),
    ),
    ("V8", "spec.remoteStorage.redis", _vllm(**_managed(redis={}))),
    (
        "V8b",
        "spec.remoteStorage.lmCacheServer",
        _vllm(
            remoteStorage={
                "provider": "LMCacheServer",
                "ownership": "External",
                "endpoint": "h:1",
                "lmCacheServer": {},
            }
        ),
    ),
    ("V9", "spec.remoteStorage.lmCacheServer.command", _vllm(**_managed(lmCacheServer={"command": []}))),
    ("V9b", "spec.remoteStorage.lmCacheServer.command[1]", _vllm(**_managed(lmCacheServer={"command": ["a", " "]}))),
    (
        "V10",
        "spec.remoteStorage.endpoint",
        _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External", "endpoint": "a.other.svc:1"}),
    ),
    (
        "V11",
        "spec.autoscaling.minReplicas",
        _vllm(replicas=0, autoscaling={"maxReplicas": 2}, **_managed()),
    ),
    ("V12", "spec.replicas", _vllm(replicas=2, **_managed("Mooncake"))),
    ("V12b", "spec.autoscaling", _vllm(autoscaling=_SCALING, **_managed("Mooncake"))),
    ("V13", "spec.integration.engineHostNetwork", _vllm(integration={"engineHostNetwork": True})),
    ("V14", f"{_LIMITS}[memory]", _resources(limits={"memory": "1Gi"}, requests={"memory": "2Gi"})),
    ("V15", f"{_REQUESTS}[nvidia.com/gpu]", _resources(requests={"nvidia.com/gpu": 1})),
    ("V16", "spec.remoteStorage.lmCacheServer.resources.claims", _resources(claims=[{"name": "x"}])),
    ("V17", f"{_REQUESTS}[cpu]", _resources(requests={"cpu": "-1"})),
    ("V18", "spec.lmCache.hostMemory.capacity", _vllm(lmCache={"hostMemory": {"capacity": "0"}})),
    ("V19", f"{_LIMITS}[gpu]", _resources(limits={"gpu": 1})),
    ("V20", f"{_LIMITS}[nvidia.com/gpu]", _resources(limits={"nvidia.com/gpu": "500m"})),
    ("V21", f"{_LIMITS}[hugepages-2Mi]", _resources(limits={"hugepages-2Mi": "3Mi"})),
    ("V22", "spec.integration.mode", _hicache(integration={"mode": "EventsOnly"})),
    ("V22b", "spec.autoscaling", _vllm(integration={"mode": "EventsOnly"}, autoscaling=_SCALING)),
    ("V22c", "spec.remoteStorage", _vllm(integration={"mode": "EventsOnly"}, **_managed())),
    ("V23", "spec.hiCache", _vllm(hiCache={"sizeGB": 1})),
    ("V24", "spec.hiCache", _hicache(hiCache=None)),
    ("V25", "spec.hiCache", _hicache(hiCache={})),
    ("V26", "spec.hiCache", _hicache(hiCache={"sizeGB": 1, "ratio": "2"})),
    ("V27", "spec.hiCache.sizeGB", _hicache(hiCache={"sizeGB": 0})),
    *[
        ("V28", "spec.hiCache.ratio", _hicache(hiCache={"ratio": r}))
        for r in ("NaN", "Inf", "1e999", "1e-999", "0", " 2", "-1")
    ],
    ("V29", "spec.hiCache.writePolicy", _hicache(hiCache={"sizeGB": 1, "writePolicy": "sometimes"})),
    ("V30", "spec.hiCache.ioBackend", _hicache(hiCache={"sizeGB": 1, "ioBackend": "x"})),
    ("V30", "spec.hiCache.memoryLayout", _hicache(hiCache={"sizeGB": 1, "memoryLayout": "x"})),
    ("V31", "spec.runtime", _hicache(runtime="VLLM")),
    ("V32", "spec.engineSelector.matchLabels", _hicache(engineSelector=None)),
    ("V33", "spec.autoscaling", _hicache(autoscaling=_SCALING)),
    ("V34", "spec.integration.mode", _hicache(integration={"mode": "EventsOnly"})),
    ("V34", "spec.integration.role", _hicache(integration={"role": "ReadOnly"})),
    ("V34", "spec.integration.failOpen", _hicache(integration={"failOpen": False})),
    ("V36", "spec.integration.role", _sglang(integration={"role": "ReadOnly"})),
    ("V37", "spec.replicas", _sglang(replicas=2, **_managed("Redis"))),
    ("V37b", "spec.autoscaling", _sglang(autoscaling=_SCALING, **_managed("Redis"))),
    ("V39", "spec.runtime", _vllm(runtime="TensorRT")),
    ("V40", "spec.remoteStorage.provider", _vllm(**_managed("Memcached"))),
    ("V41", "spec.remoteStorage.provider", _vllm(**_managed("Redis"))),
    ("V42", f"{_ENV}.name", _overrides(env=[{"name": "", "value": "x"}])),
    ("V43", f"{_ENV}.name", _overrides(env=[{"name": "BAD NAME"}])),
    ("V44", _ENV, _overrides(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}])),
    ("V45", f"{_ENV}.valueFrom", _overrides(env=[{"name": "A", "valueFrom": {}}])),
    (
        "V45",
        f"{_ENV}.valueFrom",
        _overrides(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "a"}, "fileKeyRef": {"key": "k"}}}]),
    ),
    ("V47", "spec.integration.engineOverrides.args[1]", _overrides(args=["--x", "--kv-transfer-config={}"])),
    ("V48", "spec.integration.engineOverrides.suppressArgs[0]", _overrides(suppressArgs=["--kv-transfer-config"])),
    ("V47", "spec.integration.engineOverrides.args[0]", _overrides(args=["--kv_transfer_config={}"])),
    ("V47", "spec.integration.engineOverrides.args[0]", _overrides(args=["--kv-transfer_config.kv_role", "x"])),
    ("V48", "spec.integration.engineOverrides.suppressArgs[0]", _overrides(suppressArgs=["--kv_transfer_config"])),
    ("V49", f"{_ENV}.name", _overrides(env=[{"name": "PYTHONHASHSEED", "value": "1"}])),
    ("V50", "spec.integration.engineOverrides.suppressEnv[0]", _overrides(suppressEnv=["VLLM_USE_V1"])),
    ("A6", "spec.lmCache.chunkSizeTokens", _sglang(lmCache={"chunkSizeTokens": 65537})),
    ("A6", "spec.lmCache.chunkSizeTokens", _vllm(lmCache={"chunkSizeTokens": 0})),
    ("A6", "spec.lmCache.hostMemory.capacity", _sglang(lmCache={"hostMemory": {"capacity": "2Ti"}})),
    ("A6", "spec.lmCache.workerPort", _sglang(lmCache={"workerPort": 65536})),
    ("K1", "spec.lmCache.workerImage", _sglang(lmCache={"workerImage": " worker:1"})),
    ("K1", "spec.remoteStorage.redis.image", _sglang(**_managed("Redis", redis={"image": "redis:7 "}))),
    ("K1", "spec.remoteStorage.lmCacheServer.image", _vllm(**_managed(lmCacheServer={"image": "\ts"}))),
    ("K1", "spec.remoteStorage.mooncake.image", _vllm(**_managed("Mooncake", mooncake={"image": " "}))),
    ("K2", f"{_ENV}.valueFrom.fieldRef.fieldPath", _from(fieldRef={"fieldPath": "spec.nonsense"})),
    ("K2", f"{_ENV}.valueFrom.fieldRef.fieldPath", _from(fieldRef={"fieldPath": "metadata.labels['a b']"})),
    ("K2", f"{_ENV}.valueFrom.fieldRef.apiVersion", _from(fieldRef={"fieldPath": "metadata.name", "apiVersion": "v2"})),
    ("K2", f"{_ENV}.valueFrom.resourceFieldRef.resource", _from(resourceFieldRef={"resource": "limits.gpu"})),
    (
        "K2",
        f"{_ENV}.valueFrom.resourceFieldRef.divisor",
        _from(resourceFieldRef={"resource": "limits.cpu", "divisor": "1Mi"}),
    ),
    (
        "K2",
        f"{_ENV}.valueFrom.resourceFieldRef.divisor",
        _from(resourceFieldRef={"resource": "limits.memory", "divisor": "7"}),
    ),
    ("K2", f"{_ENV}.valueFrom.configMapKeyRef.name", _from(configMapKeyRef={"key": "k"})),
    ("K2", f"{_ENV}.valueFrom.secretKeyRef.key", _from(secretKeyRef={"name": "s", "key": "a/b"})),
    ("pool-store", _POOL, _vllm(**_on_pool(ownership="External", endpoint="a:1"))),
    ("pool-store", _POOL, _vllm(**_on_pool(provider="LMCacheServer"))),
    ("pool-name", f"{_POOL}.name", _vllm(**_on_pool(poolBindingRef={"name": ""}))),
    ("pool-name", f"{_POOL}.name", _vllm(**_on_pool(poolBindingRef={"name": "other/team-a"}))),
    ("pool-name", f"{_POOL}.name", _vllm(**_on_pool(poolBindingRef={"name": "team..a"}))),
    ("pool-server", "spec.remoteStorage.mooncake", _vllm(**_on_pool(mooncake={"image": "m:1"}))),
    ("pool-server", "spec.autoscaling", _vllm(autoscaling=_SCALING, **_on_pool())),
    ("pool-server", "spec.template", _vllm(template={"schedulerName": "s"}, **_on_pool())),
    ("pool-server", "spec.replicas", _vllm(replicas=2, **_on_pool())),
    ("V5", "spec.remoteStorage.endpoint", _vllm(**_on_pool(endpoint="a:1"))),
    ("V41", "spec.remoteStorage.provider", _sglang(**_on_pool())),
]


def test_a_backend_on_a_pool_needs_nothing_but_the_bindings_name() -> None:
    verdict = validate_cache_backend(_backend(_vllm(**_on_pool(), replicas=1)), runtimes=REGISTRY)
    assert (verdict.violations, verdict.warnings) == ((), ())


@pytest.mark.parametrize(
    "source",
    [
        {"fieldRef": {"fieldPath": "status.podIP", "apiVersion": "v1"}},
        {"fieldRef": {"fieldPath": "metadata.labels['app.kubernetes.io/name']"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1000m"}},
        {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi", "containerName": "vllm"}},
        {"resourceFieldRef": {"resource": "limits.hugepages-2Mi"}},
        {"configMapKeyRef": {"name": "c", "key": "a.b_c-d"}},
        {"secretKeyRef": {"name": "s", "key": "token", "optional": True}},
    ],
)
def test_sources_that_kubernetes_takes(source: dict[str, Any]) -> None:
    assert validate_cache_backend(_backend(_from(**source)), runtimes=REGISTRY).allowed


def _backend(spec: dict[str, Any], name: str = "kv", **meta: Any) -> CacheBackend:
    return CacheBackend.decode({"metadata": {"name": name, "namespace": "ns", **meta}, "spec": spec})


def _found(verdict: Verdict) -> set[tuple[str, str]]:
    return {(violation.rule, violation.field) for violation in verdict.violations}


@pytest.mark.parametrize(("row", "field", "spec"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_row_refuses_a_new_object_and_excuses_a_stored_one(row: str, field: str, spec: dict[str, Any]) -> None:
    verdict = validate_cache_backend(_backend(spec), runtimes=REGISTRY)
    assert (row, field) in _found(verdict)
    assert all(violation.message for violation in verdict.violations)

    edited = _backend(copy.deepcopy(spec), labels={"team": "a"})
    assert validate_cache_backend(edited, _backend(spec), runtimes=REGISTRY).allowed

    fine = _backend(_vllm())
    assert (row, field) in _found(validate_cache_backend(_backend(spec), fine, runtimes=REGISTRY))


def test_every_row_of_the_table_is_tested() -> None:
    tested = {row for row, _, _ in ROWS} | {"V35", "V38", "V46"}
    assert {row for rows, _ in RULES for row in rows} == tested


def test_v35_kernel_check_annotation() -> None:
    note = "inferencecache.io/lmcache-kernel-check"
    for value in ("auto", "report-only", "strict", "off", ""):
        assert validate_cache_backend(_backend(_vllm(), annotations={note: value}), runtimes=REGISTRY).allowed
    verdict = validate_cache_backend(_backend(_vllm(), annotations={note: "strcit"}), runtimes=REGISTRY)
    assert _found(verdict) == {("V35", f"metadata.annotations[{note}]")}


def test_v38_and_v46_a_missing_registry_refuses() -> None:
    verdict = validate_cache_backend(_backend(_overrides(args=["--x"])), runtimes=None)
    assert [violation.rule for violation in verdict.violations] == ["V38", "V46"]


def test_findings_come_in_the_order_of_the_table() -> None:
    spec = _vllm(replicas=3, autoscaling=_SCALING, **_managed("Mooncake", endpoint="a.b.svc:1", redis={}))
    rows = [violation.rule for violation in validate_cache_backend(_backend(spec), runtimes=REGISTRY).violations]
    assert rows == ["V5", "V8", "V10", "V12", "V12b"]


@pytest.mark.parametrize(
    ("name", "complaints"),
    [("1A", 1), ("A B", 1), (".", 1), ("..", 1), ("..A", 1), ("..A B", 2), (".A", 0), ("-a.B_1", 0)],
)
def test_a_variables_name_draws_each_complaint_of_kubernetes_once(name: str, complaints: int) -> None:
    """Row V43."""
    verdict = validate_cache_backend(_backend(_overrides(env=[{"name": name, "value": "x"}])), runtimes=REGISTRY)
    assert [violation.rule for violation in verdict.violations] == ["V43"] * complaints


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (_vllm(autoscaling=_SCALING, **_managed("Mooncake")), json.dumps(_SCALING)),
        (_hicache(hiCache={"sizeGB": 8, "ratio": "2"}), '{"sizeGB": 8, "ratio": "2"}'),
        (_hicache(hiCache={"ratio": "two"}), '"two"'),
        (_vllm(integration={"engineHostNetwork": True}), "true"),
        (_resources(limits={"cpu": "-1"}), "-1"),
    ],
)
def test_a_message_shows_the_bad_value_as_its_owner_wrote_it(spec: dict[str, Any], value: str) -> None:
    told = [violation.message for violation in validate_cache_backend(_backend(spec), runtimes=REGISTRY).violations]
    assert any(message.startswith(f"Invalid value: {value}: ") for message in told), told


def test_another_bad_value_is_fresh_and_an_equal_amount_in_other_words_is_not() -> None:
    old = _backend(_resources(limits={"memory": "1Gi"}, requests={"memory": "2Gi"}))
    worse = _backend(_resources(limits={"memory": "512Mi"}, requests={"memory": "2Gi"}))
    respelled = _backend(_resources(limits={"memory": "1024Mi"}, requests={"memory": "2048Mi"}))
    another = _backend(_resources(limits={"memory": "1Gi"}, requests={"memory": "3Gi"}))
    assert not validate_cache_backend(worse, old, runtimes=REGISTRY).allowed
    assert validate_cache_backend(respelled, old, runtimes=REGISTRY).allowed
    assert not validate_cache_backend(another, old, runtimes=REGISTRY).allowed


@pytest.mark.parametrize("name", ["a.b", "1kv", "kv-", "Kv", "k" * 64])
def test_a_name_no_service_can_have_is_refused_when_new_and_stays_editable(name: str) -> None:
    backend = _backend(_vllm(), name=name)
    assert _found(validate_cache_backend(backend, runtimes=REGISTRY)) == {("F10", "metadata.name")}
    assert validate_cache_backend(backend, backend, runtimes=REGISTRY).allowed


def test_overlapping_selectors_are_told_with_the_winner() -> None:
    mine = _backend(_vllm(engineSelector=_SELECTOR), name="zebra")
    rival = _backend(_vllm(engineSelector={"matchLabels": {"tier": "gpu"}}), name="alpha")
    apart = _backend(_vllm(engineSelector={"matchLabels": {"app": "other"}}), name="apart")
    verdict = validate_cache_backend(mine, runtimes=REGISTRY, neighbours=[mine, apart, rival])
    assert verdict.allowed
    assert [("alpha" in warning, "apart" in warning) for warning in verdict.warnings] == [(True, False)]
    assert validate_cache_backend(mine, runtimes=REGISTRY, neighbours=[mine, apart]).warnings == ()
    assert len(overlap_warning("a" * 63, "b" * 253)) <= LONGEST_WARNING


@given(st.lists(st.integers(1, 300), min_size=1, max_size=3))
def test_a_warning_has_room_for_its_names_and_cuts_the_longest(lengths: list[int]) -> None:
    names = ["abc"[place] * length for place, length in enumerate(lengths)]
    told = warning("{}" * len(names), *names)
    if sum(lengths) <= LONGEST_WARNING:
        assert told == "".join(names)
    assert min(sum(lengths), LONGEST_WARNING - len(names)) <= len(told) <= LONGEST_WARNING
    assert all(name in told for name in names if len(name) <= LONGEST_WARNING // len(names) - 1)


def test_policies() -> None:
    def policy(name: str = "p", **spec: Any) -> CachePolicy:
        return CachePolicy.decode({"metadata": {"name": name, "namespace": "ns"}, "spec": spec})

    assert _found(validate_cache_policy(policy(evictionTTL="0s"))) == {("P1", "spec.evictionTTL")}
    assert validate_cache_policy(policy(evictionTTL="0"), policy(evictionTTL="0s")).allowed
    chain = policy(strategy={"enableChainMatching": False, "requireChain": True})
    assert _found(validate_cache_policy(chain)) == {("P2", "spec.strategy.requireChain")}
    verdict = validate_cache_policy(policy("c"), siblings=[policy("b"), policy("a"), policy("c")])
    assert _found(verdict) == {("P3", "metadata.name")}
    assert '"a"' in verdict.violations[0].detail
    assert validate_cache_policy(policy("c"), policy("c"), siblings=[policy("b")]).allowed


def test_tenants() -> None:
    def tenant(name: str, tenant_id: str) -> CacheTenant:
        return CacheTenant.decode({"metadata": {"name": name, "namespace": "ns"}, "spec": {"tenantID": tenant_id}})

    probe = tenant("t", "inferencecache.io/probe")
    assert _found(validate_cache_tenant(probe)) == {("T1", "spec.tenantID")}
    assert validate_cache_tenant(probe, probe).allowed
    verdict = validate_cache_tenant(tenant("t", "x"), siblings=[tenant("u", "x"), tenant("t", "x"), tenant("a", "y")])
    assert _found(verdict) == {("T2", "spec.tenantID")}
    assert validate_cache_tenant(tenant("t", "x"), tenant("t", "x"), siblings=[tenant("u", "x")]).allowed
    assert not validate_cache_tenant(tenant("t", "x"), tenant("t", "y"), siblings=[tenant("u", "x")]).allowed


@pytest.mark.parametrize(
    ("spec", "fragments"),
    [
        (
            _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External"}),
            ["required when remoteStorage.ownership=External"],
        ),
        (
            _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External", "endpoint": "https://kv:1"}),
            ["is not supported"],
        ),
        (
            _vllm(remoteStorage={"provider": "LMCacheServer", "ownership": "External", "endpoint": "lm://"}),
            ["must be a non-empty host AND port"],
        ),
        (_vllm(**_managed(endpoint="kv:1")), ["managed providers publish their observed endpoint"]),
        (_hicache(**_managed("Redis")), ['does not accept remote-storage protocol "resp"']),
        (
            _vllm(**_managed(), replicas=0, autoscaling={"maxReplicas": 2}),
            ["spec.replicas=0", "minReplicas", "scale to zero"],
        ),
    ],
)
def test_refusals_say_what_installation_checks_look_for(spec: dict[str, Any], fragments: list[str]) -> None:
    """Spec 09 §8, steps 18: scripts match on these words."""
    backend = CacheBackend.decode({"metadata": {"name": "kv", "namespace": "ns"}, "spec": spec})
    told = "; ".join(
        str(one) + one.message for one in validate_cache_backend(backend, None, runtimes=REGISTRY).violations
    )
    for fragment in fragments:
        assert fragment in told


def test_a_second_owner_is_refused_in_the_words_that_installation_checks_look_for() -> None:
    """Spec 09 §8, steps 4 and 5."""

    def tenant(name: str, id_: str) -> CacheTenant:
        return CacheTenant.decode({"metadata": {"name": name, "namespace": "ns"}, "spec": {"tenantID": id_}})

    (taken,) = validate_cache_tenant(tenant("b", "x"), siblings=[tenant("a", "x")]).violations
    assert "already claimed by CacheTenant" in taken.message
    (reserved,) = validate_cache_tenant(tenant("b", "inferencecache.io/probe")).violations
    assert "reserved" in reserved.message
    policy = [CachePolicy.decode({"metadata": {"name": name, "namespace": "ns"}, "spec": {}}) for name in "ab"]
    (second,) = validate_cache_policy(policy[0], siblings=policy[1:]).violations
    assert "already has CachePolicy" in second.message


def test_an_update_compares_stored_findings_of_the_same_field_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    same_as = Violation.same_as

    def counted(one: Violation, other: Violation) -> bool:
        nonlocal compared
        compared += 1
        return same_as(one, other)

    monkeypatch.setattr(Violation, "same_as", counted)
    stored = _backend(_overrides(env=[{"name": ""}] * 2000))
    assert validate_cache_backend(stored, stored, runtimes=REGISTRY).allowed
    assert compared == 2000
