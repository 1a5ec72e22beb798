"""What works with what (seed: Spec; spec 02 §5.3): every combination is served end to end, or refused with a remedy.

Served means: admitted by the API server and by the webhook, its children and its wired engine Pod taken by the API
server, and the engine told what the combination promises. There is no third outcome.
"""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from inferencecache.adapters.registry import load_adapters
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.plan import Path, plan_for
from inferencecache.kube.client import Client
from inferencecache.kube.envtest import ControlPlane
from inferencecache.kube.errors import Invalid
from inferencecache.kube.resource import Manifest
from inferencecache.webhooks.injection import Outcome
from inferencecache.webhooks.validation import validate_cache_backend
from tests.integration.api.installed import install_once
from tests.integration.controllers.test_any_backend import dry_run
from tests.unit.webhooks.pipeline import engine_pod, readable, rendered, stored, wired

Pair = tuple[str, str]
Store = tuple[str, str] | None

PAIRS: list[Pair] = list(product(("VLLM", "SGLang"), ("LMCache", "SGLangHiCache")))
STORES: list[Store] = [None, *product(("Redis", "LMCacheServer", "Mooncake"), ("Managed", "External"))]
MODES: dict[str, dict[str, Any]] = {
    "offload": {},
    "fail closed": {"failOpen": False},
    "decode": {"role": "ReadOnly"},
    "prefill": {"role": "WriteOnly"},
    "on the host network": {"engineHostNetwork": True},
    "events only": {"mode": "EventsOnly"},
}
PROVIDERS: dict[Pair, set[str | None]] = {
    ("VLLM", "LMCache"): {None, "LMCacheServer", "Mooncake"},
    ("SGLang", "LMCache"): {None, "Redis"},
    ("SGLang", "SGLangHiCache"): {None},
    ("VLLM", "SGLangHiCache"): set(),
}
_REMEDY = re.compile(r"\b(remove|set|use|choose|pick|only|supported|supports|needs|needed|must)\b")


def is_supported(pair: Pair, store: Store, mode: str) -> bool:
    """The support matrix of the design, in words of its own."""
    provider = store[0] if store else None
    if provider not in PROVIDERS[pair]:
        return False
    match mode:
        case "events only":
            return pair[1] == "LMCache" and store is None
        case "decode" | "prefill":
            return pair == ("VLLM", "LMCache")
        case "fail closed":
            return pair[1] == "LMCache"
        case "on the host network":
            return provider == "Mooncake"
    return True


def spec_of(pair: Pair, store: Store, mode: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "runtime": pair[0],
        "type": pair[1],
        "integration": MODES[mode],
        "engineSelector": {"matchLabels": {"app": "engine"}},
        "observation": {"modelID": "m"},
    }
    if pair[1] == "SGLangHiCache":
        spec["hiCache"] = {"ratio": "2.0"}
    if store is not None:
        address = {"endpoint": "store.example.com:1234"} if store[1] == "External" else {}
        spec["remoteStorage"] = {"provider": store[0], "ownership": store[1], **address}
    return spec


@pytest.fixture
async def server(client: Client, control_plane: ControlPlane) -> Client:
    await install_once(client, control_plane)
    return client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("store", STORES, ids=lambda store: " ".join(store) if store else "host only")
@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
async def test_served_end_to_end_or_refused_with_a_remedy(
    server: Client, namespace: str, pair: Pair, store: Store, mode: str
) -> None:
    manifest = stored(spec_of(pair, store, mode))
    backend = readable(manifest)
    assert backend is not None
    verdict = validate_cache_backend(backend, runtimes=load_adapters()[0])
    as_sent = {"apiVersion": CacheBackend.resource.api_version, "kind": "CacheBackend", **manifest}
    assert verdict.allowed is is_supported(pair, store, mode)
    if verdict.allowed:
        await dry_run(server, as_sent, namespace)
        await serves(server, namespace, backend, pair, store, mode)
        return
    for violation in verdict.violations:
        assert violation.field.startswith("spec.")
        assert _REMEDY.search(violation.message), violation.message
    # What the schema alone refuses, the webhook refuses for the same fields.
    assert await held_against(server, as_sent, namespace) <= {violation.field for violation in verdict.violations}


async def held_against(server: Client, manifest: Manifest, namespace: str) -> set[str]:
    """The fields that the API server, without a webhook, refuses an object for."""
    try:
        await dry_run(server, manifest, namespace)
    except Invalid as refusal:
        return {cause["field"] for cause in refusal.details["causes"]}
    return set()


async def serves(server: Client, namespace: str, backend: CacheBackend, pair: Pair, store: Store, mode: str) -> None:
    """The path, the children and the engine Pod are what the combination promises, and the API server takes them."""
    managed = store is not None and store[1] == "Managed"
    children = rendered(backend)
    for child in children:
        await dry_run(server, child, namespace)
    assert [child["kind"] for child in children] == (["Deployment", "Service"] if managed else [])
    done = wired(engine_pod(), backend)
    assert done.outcome is Outcome.WIRED, done.message
    await dry_run(server, done.pod, namespace)

    spec = done.pod["spec"]
    engine, *beside = spec["containers"]
    flags = [arg for arg in engine.get("args", ()) if arg.startswith("--")]
    env = {entry["name"]: entry.get("value") for entry in engine.get("env", ())}
    first = {container["name"]: container for container in spec.get("initContainers", ())}
    assert [container["name"] for container in beside] == ["kvevent-subscriber"]
    assert bool(spec.get("hostNetwork")) is (mode == "on the host network")
    if mode == "events only":
        assert plan_for(backend, *load_adapters()).path is Path.EVENTS_ONLY
        assert (flags, env, first) == ([], {}, {})
        return
    if pair[1] == "LMCache":
        assert env["INFERENCECACHE_FAIL_OPEN"] == str(mode != "fail closed").lower()
    address = "kv.ns.svc.cluster.local:" if managed else "store.example.com:1234"
    if pair == ("VLLM", "LMCache"):
        assert flags == ["--kv-transfer-config"]
        roles = {"decode": "kv_consumer", "prefill": "kv_producer"}
        assert json.loads(engine["args"][-1])["kv_role"] == roles.get(mode, "kv_both")
        scheme = {"LMCacheServer": "lm", "Mooncake": "mooncakestore"}
        url = env.get("LMCACHE_REMOTE_URL", "")
        assert url.startswith(f"{scheme[store[0]]}://{address}") if store else url == ""
        assert set(first) == {"lmcache-kernel-check"}
    elif pair == ("SGLang", "LMCache"):
        assert flags == ["--enable-lmcache", "--lmcache-config-file"]
        script = first["lmcache-mp-worker"]["args"][0]
        assert (f'"host":"{address.partition(":")[0]}"' in script) is (store is not None)
    else:
        assert flags == ["--enable-hierarchical-cache", "--hicache-ratio"]
        assert (env, first) == ({}, {})
