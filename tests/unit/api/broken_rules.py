"""Objects that break one rule, by its row in spec 02, and as few others as can be."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

VLLM: Spec = {"runtime": "VLLM"}
SGLANG: Spec = {"runtime": "SGLang"}
HICACHE: Spec = {
    "runtime": "SGLang",
    "type": "SGLangHiCache",
    "hiCache": {"ratio": "2"},
    "engineSelector": {"matchLabels": {"app": "sglang"}},
}
SCALED: Spec = {"minReplicas": 1, "maxReplicas": 2}
EVENTS_ONLY: Spec = {"mode": "EventsOnly"}


def store(provider: str = "LMCacheServer", ownership: str = "Managed", **more: Any) -> Spec:
    """`remoteStorage`."""
    return {"provider": provider, "ownership": ownership, **more}


def external(endpoint: str, provider: str = "LMCacheServer") -> Spec:
    """An external `remoteStorage`."""
    return store(provider, "External", endpoint=endpoint)


def resources(**more: Any) -> Spec:
    """A managed store with these resources."""
    return store(lmCacheServer={"resources": more})


BACKENDS: list[tuple[str, Spec, set[str]]] = [
    ("V2", {**HICACHE, "lmCache": {}}, {"spec.lmCache"}),
    ("V8", {**VLLM, "remoteStorage": store(redis={})}, {"spec.remoteStorage.redis"}),
    ("V8", {**SGLANG, "remoteStorage": store("Redis", lmCacheServer={})}, {"spec.remoteStorage.lmCacheServer"}),
    ("V8", {**VLLM, "remoteStorage": store(mooncake={})}, {"spec.remoteStorage.mooncake"}),
    (
        "V8b",
        {**VLLM, "remoteStorage": external("h:1") | {"lmCacheServer": {}}},
        {"spec.remoteStorage.lmCacheServer"},
    ),
    (
        "V16",
        {**VLLM, "remoteStorage": resources(claims=[{"name": "gpu"}])},
        {"spec.remoteStorage.lmCacheServer.resources.claims"},
    ),
    ("V18", {**VLLM, "lmCache": {"hostMemory": {"capacity": "-1Gi"}}}, {"spec.lmCache.hostMemory.capacity"}),
    ("V18", {**VLLM, "lmCache": {"hostMemory": {"capacity": 0}}}, {"spec.lmCache.hostMemory.capacity"}),
    ("V23", {**VLLM, "hiCache": {"sizeGB": 1}}, {"spec.hiCache"}),
]
"""Row, spec, and the fields that all findings of the schema name."""

ANSWERED: list[tuple[str, Spec]] = [
    ("V1", {**VLLM, "autoscaling": SCALED}),
    ("V5", {**VLLM, "remoteStorage": store(endpoint="h:1")}),
    ("V6", {**VLLM, "remoteStorage": store(ownership="External")}),
    ("V7", {**VLLM, "remoteStorage": external("h")}),
    ("V11", {**VLLM, "remoteStorage": store(), "replicas": 0, "autoscaling": {"maxReplicas": 2}}),
    ("V12", {**VLLM, "remoteStorage": store("Mooncake"), "replicas": 2}),
    ("V13", {**VLLM, "integration": {"engineHostNetwork": True}}),
    ("V22c", {**VLLM, "remoteStorage": store(), "integration": EVENTS_ONLY}),
    ("V24", {k: v for k, v in HICACHE.items() if k != "hiCache"}),
    ("V25", {**HICACHE, "hiCache": {"ratio": ""}}),
    ("V26", {**HICACHE, "hiCache": {"ratio": "2", "sizeGB": 1}}),
    *(
        ("V28", {**HICACHE, "hiCache": {"ratio": ratio}})
        for ratio in (" 2", "0", "-1", "NaN", "two", "1_0", "0x10", "２")
    ),
    ("V31", {**HICACHE, "runtime": "VLLM"}),
    ("V32", {**HICACHE, "engineSelector": {}}),
    ("V33", {**HICACHE, "autoscaling": SCALED}),
    ("V34", {**HICACHE, "integration": {"failOpen": False}}),
    ("V36", {**SGLANG, "integration": {"role": "ReadOnly"}}),
    ("V37", {**SGLANG, "remoteStorage": store("Redis"), "replicas": 2}),
    ("V41", {**VLLM, "remoteStorage": store("Redis")}),
    ("A6", {**SGLANG, "lmCache": {"chunkSizeTokens": 65537}}),
    ("A6", {**SGLANG, "lmCache": {"hostMemory": {"capacity": "2Ti"}}}),
]
"""Row and spec of what the webhook alone refuses, because the operator has an answer to it once it is stored."""

GOOD_BACKENDS: list[Spec] = [
    VLLM,
    SGLANG,
    HICACHE,
    {**HICACHE, "hiCache": {"sizeGB": 8, "ratio": ""}},
    {**VLLM, "integration": EVENTS_ONLY, "lmCache": {"chunkSizeTokens": 70000}},
    {**VLLM, "lmCache": {"chunkSizeTokens": 70000, "hostMemory": {"capacity": "2Ti"}}},
    {**SGLANG, "lmCache": {"chunkSizeTokens": 65536, "hostMemory": {"capacity": "1024Gi"}}},
    {**VLLM, "remoteStorage": store(endpoint="  ")},
    {**VLLM, "remoteStorage": store(lmCacheServer={"resources": {"claims": []}}), "replicas": 5},
    {**VLLM, "remoteStorage": store("Mooncake"), "replicas": 0, "integration": {"engineHostNetwork": True}},
    {**SGLANG, "remoteStorage": store("Redis"), "replicas": 0},
    {**VLLM, "remoteStorage": external("h:1", "Mooncake"), "replicas": 9, "autoscaling": SCALED},
    *(
        {**VLLM, "remoteStorage": external(endpoint)}
        for endpoint in (
            *("h:1", "LM://h:1", "lm://h:65535", "[2001:db8::1]:8200", "  h:1  ", "user@host:1", "h:00001", "a[b:1"),
            *("[x y]:1".replace(" ", ""), "\u00a0h:1\u2003", "bücher.example:6379"),
        )
    ),
    {**VLLM, "remoteStorage": external("MooncakeStore://h:50051", "Mooncake")},
    *({**HICACHE, "hiCache": {"ratio": ratio}} for ratio in ("2", "1e2", "+2", ".5", "2.", "02.0", "1e0")),
]
"""Specs that no rule holds anything against."""
