"""Hypothesis strategies made from our own CRD schema: whatever it lets through, and plenty that it does not.

Every field of the schema occurs, present and absent. Values of fields that something reads come from words that matter
to it, good and bad. What is only handed on to Pods (`template`) is made of values that core/v1 takes, since judging
those is the API server's work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.schema import object_schema

Json = dict[str, Any]

_QUANTITIES = st.sampled_from(
    [
        "0",
        "1",
        "500m",
        "250m",
        "1Gi",
        "4Gi",
        "20Gi",
        "2Ti",
        "8e9",
        "1.5",
        "-1",
        "nonsense",
        "2Mi",
        "3Mi",
        0,
        1,
        -1,
        2**40,
    ]
)
_RESOURCE_NAMES = st.sampled_from(
    [
        "cpu",
        "memory",
        "ephemeral-storage",
        "hugepages-2Mi",
        "hugepages-",
        "nvidia.com/gpu",
        "foo",
        "kubernetes.io/x",
        "",
    ]
)
_RESOURCE_LIST = st.dictionaries(_RESOURCE_NAMES, _QUANTITIES, max_size=2)
_ENV_NAMES = st.sampled_from(
    [
        "FOO",
        "LMCACHE_CHUNK_SIZE",
        "LMCACHE_REMOTE_URL",
        "PYTHONHASHSEED",
        "1A",
        "a.b",
        "..x",
        "",
        "A B",
        "LMCACHE_LOCAL_CPU",
    ]
)
_FLAGS = st.sampled_from(
    [
        "--max-model-len",
        "8192",
        "--kv-transfer-config",
        "--enable-lmcache",
        "--hicache-size=3",
        "-1",
        "",
        "--x=y",
        "pos",
    ]
)
_NAMES = st.sampled_from(["a", "team-a", "x.y"])
_WORDS: dict[str, st.SearchStrategy[Any]] = {
    "endpoint": st.sampled_from(
        [
            "h:1",
            "lm://h:65432",
            "mooncakestore://h:1",
            "[::1]:6379",
            "h",
            "h:0",
            "  ",
            "",
            "s.other.svc:1",
            "a'b\"$(x):1",
        ]
    ),
    "ratio": st.sampled_from(["2.0", "1e2", "0", "nan", "1e999", "", " 2"]),
    "image": st.sampled_from(["", "img:1", "registry.example.net/a/b@sha256:00", " img", "img "]),
    "workerImage": st.sampled_from(["", "img:1", " img"]),
    "command": st.lists(st.sampled_from(["server", "--port", " ", ""]), max_size=3),
    "firstEventTimeout": st.sampled_from(["5m", "0s", "-1h", "1h30m", "soon", "", "9999999h"]),
    "limits": _RESOURCE_LIST,
    "requests": _RESOURCE_LIST,
    "claims": st.sampled_from([[], [{"name": "gpu"}]]),
    "capacity": _QUANTITIES,
    "args": st.lists(_FLAGS, max_size=4),
    "suppressArgs": st.lists(_FLAGS, max_size=2),
    "suppressEnv": st.lists(_ENV_NAMES, max_size=2),
    "fieldPath": st.sampled_from(["metadata.name", "metadata.labels['app']", "spec.nodeName", "spec.nonsense", ""]),
    "resource": st.sampled_from(["limits.cpu", "requests.memory", "limits.nvidia.com/gpu", ""]),
    "divisor": st.sampled_from(["1", "1m", "1Mi", "7", 0]),
    "containerName": st.sampled_from(["vllm", "sglang", ""]),
    "apiVersion": st.sampled_from(["v1", "", "v2"]),
    "key": st.sampled_from(["token", "a/b", ""]),
    "volumeName": st.just("v"),
    "path": st.sampled_from(["env", "/abs"]),
    "matchLabels": st.dictionaries(st.just("app"), st.sampled_from(["engine", "other"]), max_size=1),
}
_TEMPLATE = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(_NAMES, _NAMES, max_size=2),
        "affinity": st.just({"nodeAffinity": {}, "podAntiAffinity": {}}),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        "topologySpreadConstraints": st.just(
            [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]
        ),
        "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": _NAMES}), max_size=2, unique_by=str),
        "serviceAccountName": _NAMES,
        "securityContext": st.just({"runAsNonRoot": True, "fsGroup": 1000, "sysctls": []}),
        "priorityClassName": st.just(""),
        "runtimeClassName": _NAMES,
        "schedulerName": st.sampled_from(["", "mine"]),
        "terminationGracePeriodSeconds": st.integers(0, 2**31 - 1),
    },
)


def specs() -> st.SearchStrategy[Json]:
    """Anything that `spec` of a CacheBackend may look like to the API server, or nearly."""
    found: st.SearchStrategy[Json] = _of(object_schema(CacheBackend)["properties"]["spec"], "spec")
    return found


_BASES: tuple[Json, ...] = tuple(
    {"engineSelector": {"matchLabels": {"app": "engine"}}, "observation": {"modelID": "m"}, **base}
    for base in (
        {"runtime": "VLLM"},
        {"runtime": "VLLM", "integration": {"mode": "EventsOnly"}},
        {"runtime": "VLLM", "remoteStorage": {"provider": "LMCacheServer", "ownership": "Managed"}},
        {"runtime": "VLLM", "remoteStorage": {"provider": "Mooncake", "ownership": "Managed"}},
        {"runtime": "VLLM", "remoteStorage": {"provider": "Mooncake", "ownership": "External", "endpoint": "h:1"}},
        {"runtime": "SGLang"},
        {"runtime": "SGLang", "remoteStorage": {"provider": "Redis", "ownership": "Managed"}},
        {"runtime": "SGLang", "remoteStorage": {"provider": "Redis", "ownership": "External", "endpoint": "h:1"}},
        {"runtime": "SGLang", "type": "SGLangHiCache", "hiCache": {"sizeGB": 8}},
    )
)


@st.composite
def likely_specs(draw: st.DrawFn) -> Json:
    """A working backend of some sort with up to five fields changed, of which most are then admitted."""
    spec = copy.deepcopy(draw(st.sampled_from(_BASES)))
    for path, values in draw(st.lists(st.sampled_from(_LEAVES), max_size=5)):
        block = spec
        for name in path[:-1]:
            block = block.setdefault(name, {})
        block[path[-1]] = draw(values)
    return spec


def _leaves(
    schema: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], st.SearchStrategy[Any]]]:
    name = path[-1] if path else ""
    children = {} if name in _WORDS or name == "template" else schema.get("properties", {})
    if not children:
        yield path, _of(schema, name)
    for field, child in children.items():
        yield from _leaves(child, (*path, field))


def _of(schema: Mapping[str, Any], name: str) -> st.SearchStrategy[Any]:
    if name == "template":
        return _TEMPLATE
    if name in _WORDS:
        return _WORDS[name]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return _QUANTITIES
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer":
            return st.one_of(st.integers(-1, 3), st.sampled_from([80, 256, 65535, 65536, 70000, 2**31 - 1]))
        case "string":
            return _ENV_NAMES if name == "name" else st.sampled_from(["", "a", "naive", "Qwen/Qwen3", "ü $(X) '"])
        case "array":
            return st.lists(_of(schema["items"], "item"), max_size=2)
    if "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(["a", "b"]), _of(schema["additionalProperties"], "value"), max_size=2)
    fields = {field: _of(child, field) for field, child in schema.get("properties", {}).items()}
    fields.pop("fileKeyRef", None)  # whether a Pod may have one depends on the cluster
    needed = {field: fields.pop(field) for field in schema.get("required", ())}
    return st.fixed_dictionaries(needed, optional=fields)


_LEAVES = list(_leaves(object_schema(CacheBackend)["properties"]["spec"], ()))
