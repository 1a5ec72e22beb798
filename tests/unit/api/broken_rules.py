"""Backends that the webhook alone refuses, one for each structural rule, by its row in spec 02."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

_VLLM: Spec = {"runtime": "VLLM"}
_SGLANG: Spec = {"runtime": "SGLang"}
_HICACHE: Spec = {
    "runtime": "SGLang",
    "type": "SGLangHiCache",
    "hiCache": {"ratio": "2"},
    "engineSelector": {"matchLabels": {"app": "sglang"}},
}
_SCALED: Spec = {"minReplicas": 1, "maxReplicas": 2}


def _store(provider: str = "LMCacheServer", ownership: str = "Managed", **more: Any) -> Spec:
    return {"provider": provider, "ownership": ownership, **more}


def _resources(**more: Any) -> Spec:
    return _store(lmCacheServer={"resources": more})


BACKENDS: list[tuple[str, Spec]] = [
    ("V1", {**_VLLM, "autoscaling": _SCALED}),
    ("V2", {**_HICACHE, "lmCache": {}}),
    ("V5", {**_VLLM, "remoteStorage": _store(endpoint="h:1")}),
    ("V6", {**_VLLM, "remoteStorage": _store(ownership="External")}),
    ("V7", {**_VLLM, "remoteStorage": _store(ownership="External", endpoint="h")}),
    ("V8", {**_VLLM, "remoteStorage": _store(redis={})}),
    ("V8b", {**_VLLM, "remoteStorage": _store(ownership="External", endpoint="h:1", lmCacheServer={})}),
    ("V11", {**_VLLM, "remoteStorage": _store(), "replicas": 0, "autoscaling": {"maxReplicas": 2}}),
    ("V12", {**_VLLM, "remoteStorage": _store("Mooncake"), "replicas": 2}),
    ("V13", {**_VLLM, "integration": {"engineHostNetwork": True}}),
    ("V15", {**_VLLM, "remoteStorage": _resources(requests={"nvidia.com/gpu": "1"})}),
    ("V16", {**_VLLM, "remoteStorage": _resources(claims=[{"name": "gpu"}])}),
    ("V17", {**_VLLM, "remoteStorage": _resources(requests={"cpu": "-1"})}),
    ("V22c", {**_VLLM, "remoteStorage": _store(), "integration": {"mode": "EventsOnly"}}),
    ("V23", {**_VLLM, "hiCache": {"sizeGB": 1}}),
    ("V24", {name: value for name, value in _HICACHE.items() if name != "hiCache"}),
    ("V25", {**_HICACHE, "hiCache": {"ratio": ""}}),
    ("V26", {**_HICACHE, "hiCache": {"ratio": "2", "sizeGB": 1}}),
    *(("V28", {**_HICACHE, "hiCache": {"ratio": ratio}}) for ratio in (" 2", "0", "-1", "NaN", "two", "0x10", "２")),
    ("V32", {**_HICACHE, "engineSelector": {}}),
    ("V34", {**_HICACHE, "integration": {"failOpen": False}}),
    ("V36", {**_SGLANG, "integration": {"role": "ReadOnly"}}),
    ("V37", {**_SGLANG, "remoteStorage": _store("Redis"), "replicas": 2}),
    ("V41", {**_VLLM, "remoteStorage": _store("Redis")}),
    ("A6", {**_SGLANG, "lmCache": {"chunkSizeTokens": 65537}}),
]
"""Row and spec."""
