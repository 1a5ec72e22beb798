"""Spec 02 §5.1 and §5.3 written a second time, as plain conditions, against the table of rules: every combination.

The rows are tested one by one in `test_validation`; here is what an object draws that breaks several at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.webhooks.validation import validate_cache_backend

Spec = dict[str, Any]
Cause = tuple[str, str]

_STORE = "spec.remoteStorage"
_BLOCKS = {"redis": "Redis", "lmCacheServer": "LMCacheServer", "mooncake": "Mooncake"}
_TAKEN: dict[tuple[str, str], tuple[str | None, ...]] = {
    ("VLLM", "LMCache"): (None, "LMCacheServer", "Mooncake"),
    ("SGLang", "LMCache"): (None, "Redis"),
    ("SGLang", "SGLangHiCache"): (None,),
}
"""The stores that each pair takes; None is host-only."""


def causes(spec: Spec) -> Iterator[Cause]:
    """Field and kind of every finding, with R(equired), I(nvalid), F(orbidden) and N(ot supported)."""
    store, scaled, replicas = spec.get("remoteStorage"), "autoscaling" in spec, spec.get("replicas", 1)
    given_type, cache = spec["type"], spec["type"] or "LMCache"
    integration = spec["integration"]
    role = integration.get("role", "ReadWrite")
    events_only = integration.get("mode") == "EventsOnly"
    provider = store["provider"] if store else None
    managed = bool(store) and store["ownership"] == "Managed"
    if scaled and not store:
        yield "spec.autoscaling", "F"  # V1
    if "lmCache" in spec and cache != "LMCache":
        yield "spec.lmCache", "F"  # V2
    if store:
        yield from storage_causes(store)
    if replicas == 0 and scaled and "minReplicas" not in spec["autoscaling"]:
        yield "spec.autoscaling.minReplicas", "R"  # V11
    redis = provider == "Redis" and spec["runtime"] == "SGLang" and cache == "LMCache" and not events_only
    if managed and (provider == "Mooncake" or redis):
        if replicas > 1:
            yield "spec.replicas", "I"  # V12, V37
        if scaled:
            yield "spec.autoscaling", "I"  # V12b, V37b
    if integration.get("engineHostNetwork") and provider != "Mooncake":
        yield "spec.integration.engineHostNetwork", "I"  # V13
    if events_only:
        if cache != "LMCache":
            yield "spec.integration.mode", "F"  # V22
        if scaled:
            yield "spec.autoscaling", "F"  # V22b
        if store:
            yield _STORE, "F"  # V22c
    yield from hicache_causes(spec, events_only=events_only, role=role, scaled=scaled)
    if spec["runtime"] == "SGLang" and given_type == "LMCache" and role != "ReadWrite":
        yield "spec.integration.role", "I"  # V36
    taken = _TAKEN.get((spec["runtime"], given_type))
    if given_type and taken is None:
        yield "spec.runtime", "I"  # V39
    elif taken is not None and provider not in taken:
        yield f"{_STORE}.provider", "I"  # V40, V41


def storage_causes(store: Spec) -> Iterator[Cause]:
    endpoint = store.get("endpoint", "").strip()
    if not store["provider"]:
        yield f"{_STORE}.provider", "R"  # V3
    if not store["ownership"]:
        yield f"{_STORE}.ownership", "R"  # V4
    if store["ownership"] == "Managed" and endpoint:
        yield f"{_STORE}.endpoint", "F"  # V5
    if store["ownership"] == "External" and endpoint != "h:1":
        yield f"{_STORE}.endpoint", "I" if endpoint else "R"  # V7, V6
    for block, owner in _BLOCKS.items():
        if block in store and store["provider"] != owner:
            yield f"{_STORE}.{block}", "F"  # V8
        if block in store and store["ownership"] == "External":
            yield f"{_STORE}.{block}", "F"  # V8b


def hicache_causes(spec: Spec, *, events_only: bool, role: str, scaled: bool) -> Iterator[Cause]:
    block = spec.get("hiCache")
    if spec["type"] != "SGLangHiCache":
        if block is not None:
            yield "spec.hiCache", "F"  # V23
        return
    if block is None:
        yield "spec.hiCache", "R"  # V24
    else:
        sized, ratio = "sizeGB" in block, block.get("ratio", "")
        if sized == bool(ratio):
            yield "spec.hiCache", "I" if sized else "R"  # V26, V25
        if block.get("sizeGB") == 0:
            yield "spec.hiCache.sizeGB", "I"  # V27
        if ratio in ("0", "x"):
            yield "spec.hiCache.ratio", "I"  # V28
        if block.get("ioBackend") == "x":
            yield "spec.hiCache.ioBackend", "N"  # V30
    if spec["runtime"] != "SGLang":
        yield "spec.runtime", "I"  # V31
    if not spec.get("engineSelector", {}).get("matchLabels"):
        yield "spec.engineSelector.matchLabels", "R"  # V32
    if scaled:
        yield "spec.autoscaling", "F"  # V33
    for field, wrong in (
        ("mode", events_only),
        ("role", role != "ReadWrite"),
        ("failOpen", spec["integration"].get("failOpen") is False),
    ):
        if wrong:
            yield f"spec.integration.{field}", "N"  # V34


def _one(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_STORES = st.fixed_dictionaries(
    {
        "provider": _one(*_BLOCKS.values(), *_BLOCKS.values(), "", "Memcached"),
        "ownership": _one("Managed", "External", ""),
    },
    optional={"endpoint": _one("h:1", "  ", "h"), **dict.fromkeys(_BLOCKS, st.just({}))},
)
_SPECS = st.fixed_dictionaries(
    {
        "runtime": _one("VLLM", "SGLang", "SGLang", "TensorRT"),
        "type": _one("LMCache", "SGLangHiCache", ""),
        "integration": st.fixed_dictionaries(
            {},
            optional={
                "mode": _one("Offload", "EventsOnly"),
                "role": _one("ReadOnly", "WriteOnly", "ReadWrite"),
                "failOpen": st.booleans(),
                "engineHostNetwork": st.booleans(),
            },
        ),
    },
    optional={
        "lmCache": st.just({}),
        "remoteStorage": _STORES,
        "replicas": _one(0, 1, 2),
        "autoscaling": _one({"maxReplicas": 3}, {"minReplicas": 1, "maxReplicas": 3}),
        "hiCache": st.fixed_dictionaries(
            {}, optional={"sizeGB": _one(0, 8), "ratio": _one("", "2", "0", "x"), "ioBackend": _one("", "kernel", "x")}
        ),
        "engineSelector": _one({}, {"matchLabels": {}}, {"matchLabels": {"app": "llm"}}),
    },
)


@given(_SPECS)
@settings(max_examples=600, deadline=None)
def test_any_combination_draws_exactly_the_findings_of_its_rows(spec: Spec) -> None:
    """Spec 02 §2: all rules run, and none keeps another from being told."""
    backend = CacheBackend.decode({"metadata": {"name": "kv", "namespace": "ns"}, "spec": spec})
    verdict = validate_cache_backend(backend, runtimes=load_adapters()[0])
    letters = {
        "FieldValueRequired": "R",
        "FieldValueInvalid": "I",
        "FieldValueForbidden": "F",
        "FieldValueNotSupported": "N",
    }
    found = [(violation.field, letters[violation.kind.value]) for violation in verdict.violations]
    assert sorted(found) == sorted(causes(spec))
