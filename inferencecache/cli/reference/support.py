"""The support matrix: every pair of runtime and cache over every store and in every mode, and engines on pools.

Nothing is listed by hand. The values come from the schema, the smallest backend of each combination is judged by the
webhook's own rules with the registered adapters, and what the operator would run is asked of the reconciler.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from inferencecache.adapters.registry import RuntimeRegistry, StorageRegistry
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.schema import apply_defaults, object_schema
from inferencecache.cli.reference.markdown import GENERATED, code, table
from inferencecache.cli.reference.pool_support import pods_on_pools
from inferencecache.controllers.cachebackend.children import children_for
from inferencecache.controllers.cachebackend.plan import plan_for
from inferencecache.webhooks.validation import validate_cache_backend

_INTRODUCTION = f"""\
# What works with what

{GENERATED}

Each cell is the answer of the admission rules to the smallest CacheBackend of that combination. Numbers are the reasons
for which it is refused, below its table. *On a pool* is a backend with `remoteStorage.poolBindingRef`.
"""
_MODES: Final[dict[str, dict[str, Any]]] = {
    "Offload": {},
    "role ReadOnly": {"role": c.ROLE_READ_ONLY},
    "role WriteOnly": {"role": c.ROLE_WRITE_ONLY},
    "EventsOnly": {"mode": c.MODE_EVENTS_ONLY},
}
_ADDRESS: Final = "store.example.com:1234"


def support_page(runtimes: RuntimeRegistry, storage: StorageRegistry) -> str:
    """The page, in Markdown, for what is registered."""
    spec = object_schema(CacheBackend)["properties"]["spec"]["properties"]
    stores = spec["remoteStorage"]["properties"]
    listed = product(stores["provider"]["enum"], stores["ownership"]["enum"])
    choices = [None, *(Store(*one) for one in listed), Store(c.PROVIDER_MOONCAKE, c.OWNERSHIP_MANAGED, pooled=True)]
    pairs = product(spec["runtime"]["enum"], spec["type"]["enum"])
    sections = (_section(runtime, cache, choices, runtimes, storage) for runtime, cache in pairs)
    return "\n".join([_INTRODUCTION, *sections, pods_on_pools()])


class Store(NamedTuple):
    """A remote tier; a `pooled` one is a KV cache pool's (`poolBindingRef`)."""

    provider: str
    ownership: str
    pooled: bool = False


def smallest(runtime: str, cache: str, store: Store | None, integration: dict[str, Any]) -> CacheBackend:
    """The smallest backend of a combination, with the schema's defaults."""
    spec: dict[str, Any] = {
        "runtime": runtime,
        "type": cache,
        "integration": dict(integration),
        "engineSelector": {"matchLabels": {"app": "engine"}},
    }
    if cache == c.TYPE_HICACHE:
        spec["hiCache"] = {"ratio": "2.0"}
    if store is not None:
        spec["remoteStorage"] = {"provider": store.provider, "ownership": store.ownership}
        if store.pooled:
            spec["remoteStorage"]["poolBindingRef"] = {"name": "binding"}
        elif store.ownership == c.OWNERSHIP_EXTERNAL:
            spec["remoteStorage"]["endpoint"] = _ADDRESS
    metadata = {"name": "backend", "namespace": "default"}
    return CacheBackend.decode(apply_defaults(CacheBackend, {"metadata": metadata, "spec": spec}))


def _section(
    runtime: str,
    cache: str,
    stores: list[Store | None],
    runtimes: RuntimeRegistry,
    storage: StorageRegistry,
) -> str:
    refusals: list[str] = []
    rows = []
    for store in stores:
        answers = []
        for integration in _MODES.values():
            found = list(dict.fromkeys(_refusals(smallest(runtime, cache, store, integration), runtimes)))
            refusals += [refusal for refusal in found if refusal not in refusals]
            numbers = sorted(refusals.index(refusal) + 1 for refusal in found)
            answers.append(", ".join(map(str, numbers)) or "yes")
        runs = _runs(smallest(runtime, cache, store, {}), runtimes, storage) if answers[0] == "yes" else ""
        rows.append([_name(store), *answers, runs])
    reasons = "".join(f"{number}. {text}\n" for number, text in enumerate(refusals, 1))
    return f"## {runtime} with {cache}\n\n{table(['Store', *_MODES, 'The operator runs'], rows)}\n{reasons}"


def _name(store: Store | None) -> str:
    if store is None:
        return "none"
    return f"{code(store.provider)} {code(store.ownership)}{', on a pool' if store.pooled else ''}"


def _refusals(backend: CacheBackend, runtimes: RuntimeRegistry) -> Iterator[str]:
    for violation in validate_cache_backend(backend, runtimes=runtimes).violations:
        yield f"{code(violation.field)}: {violation.message}"


def _runs(backend: CacheBackend, runtimes: RuntimeRegistry, storage: StorageRegistry) -> str:
    store = plan_for(backend, runtimes, storage).store
    if store is None:
        return "nothing"
    children = children_for(backend, store, live_replicas=None)
    return ", ".join(child["kind"] for child in (children.workload, children.service, children.autoscaler) if child)
