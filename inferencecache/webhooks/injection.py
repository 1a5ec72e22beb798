"""Wiring an engine Pod to its CacheBackend: one pure function over a raw Pod (spec 03 §3–§9).

The order of steps is the contract: opt-out, selection, adapter, binding, then, on a copy, the engine's own settings,
overrides, kernel check, subscriber, and last the annotations that tell who wired the Pod. Any step that cannot go on
leaves the Pod unwired with a reason; nothing half-done ever comes out, and annotations that a Pod brings along without
having earned them are taken off, so that nobody can pass a Pod off as wired.

One backend is responsible for a Pod, the first by name among those that match. If it cannot serve the Pod, no other one
takes its place (decision A5): the reason names it instead. A Pod that asks for a KV cache pool by its label has chosen
another cache, so its engine is left to the webhook of the pool; a backend that only listens to events may still do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog

from inferencecache.adapters.binding import Binding, UnknownProvider, binding_for
from inferencecache.adapters.overrides import apply_overrides
from inferencecache.adapters.pods import KERNEL_CHECK, SUBSCRIBER, engine_container, same_render, upsert_named
from inferencecache.adapters.registry import (
    ChecksKernels,
    InjectionError,
    NoAdapter,
    RuntimeAdapter,
    RuntimeRegistry,
    Settings,
    flag_spelling,
)
from inferencecache.adapters.subscriber import token_volume
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.endpoint import EndpointError, parse_endpoint
from inferencecache.webhooks.kvcache_injection.keys import LABEL_INJECT
from inferencecache.webhooks.kvcache_injection.request import wants_pool
from inferencecache.webhooks.patches import clone
from inferencecache.webhooks.pods import PodView

log = structlog.get_logger(__name__)

Manifest = dict[str, Any]

_EARNED: Final = (c.ANNOTATION_INJECTED_BY, c.ANNOTATION_INJECTED_BY_UID, c.ANNOTATION_INJECT_SKIPPED)


class Outcome(StrEnum):
    """What became of a Pod."""

    WIRED = "wired"
    UNWIRED = "unwired"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Injection:
    """The Pod afterwards (the very argument, if nothing changes), and what was decided.

    `reason` is a short word for metrics, empty for a wired Pod; `message` is for people, empty where nothing needs
    explaining; `backend` is the responsible CacheBackend as `namespace/name`, empty if none matches.
    """

    pod: Manifest
    outcome: Outcome
    reason: str = ""
    message: str = ""
    backend: str = ""


class _Unusable(Exception):
    """The responsible backend cannot serve this Pod."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def inject(
    pod: Manifest,
    view: PodView,
    namespace: str,
    backends: Iterable[CacheBackend],
    runtimes: RuntimeRegistry | None,
    settings: Settings,
    *,
    lookup_failure: str = "",
) -> Injection:
    """Wire `pod`, whose view is `view`, in `namespace`; `backends` are the candidates, those elsewhere do not count.

    The argument is not changed. `lookup_failure` says why the backends are not known, if they are not.
    """
    if view.opted_out:
        return _skipped(pod, view)
    if lookup_failure:
        return _unwired(pod, view, "lookup_failed", f"CacheBackend lookup failed (fail-open): {lookup_failure}")
    backend = select(view.metadata.labels, namespace, backends)
    if backend is None:
        return _unwired(pod, view, "no_match", f"no matching CacheBackend in namespace {namespace}")
    name = f"{backend.metadata.namespace}/{backend.metadata.name}"
    try:
        wired = _wire(pod, view, backend, runtimes, settings)
    except _Unusable as why:
        return _unwired(pod, view, why.reason, f"CacheBackend {name}: {why.message} (fail-open)", name)
    return Injection(wired, Outcome.WIRED, backend=name)


def select(labels: Mapping[str, str], namespace: str, backends: Iterable[CacheBackend]) -> CacheBackend | None:
    """The backend responsible for a Pod with these labels: the first by name that matches, in exactly its namespace."""
    return min(
        (backend for backend in backends if backend.metadata.namespace == namespace and backend.selects(labels)),
        key=lambda backend: backend.metadata.name,
        default=None,
    )


# ------------------------------------------------------------------------------------------------------- wiring


def _wire(
    pod: Manifest, view: PodView, backend: CacheBackend, runtimes: RuntimeRegistry | None, settings: Settings
) -> Manifest:
    """A wired copy of the Pod. Raises `_Unusable`."""
    if wants_pool(view.metadata.labels) and not backend.events_only:
        raise _Unusable(
            "kv_cache_pool",
            f"the Pod's label {LABEL_INJECT} asks for a KV cache pool, and an engine has one connector: remove the "
            "label to have it wired to the CacheBackend",
        )
    if backend.metadata.deletion_timestamp:  # decision F2
        raise _Unusable("backend_deleted", "it is being deleted and wires no new Pods")
    if runtimes is None:
        raise _Unusable("no_registry", "the runtime-adapter registry is not configured")
    try:
        adapter = runtimes.select(backend.runtime_id, backend)
    except NoAdapter as error:
        asked = f"runtime {backend.runtime_id} with type {backend.cache_type}"
        raise _Unusable("no_adapter", f"{asked}: {error}") from error
    binding = _binding(backend, adapter)

    wired: Manifest = clone(pod)
    spec: Manifest = wired.get("spec") or {}
    wired["spec"] = spec
    if not backend.events_only:
        _wire_engine(spec, view, adapter, binding, backend)
    _kernel_check(spec, adapter, backend)
    observed = _subscriber(spec, adapter, backend, settings)
    if backend.events_only and not observed:
        raise _Unusable(
            "nothing_to_wire",
            "an events-only backend wires just the subscriber, and there is none to add: it needs "
            "--kvevent-subscriber-image, spec.observation.modelID, and no other container of that name",
        )
    _annotate(
        wired,
        {
            c.ANNOTATION_INJECTED_BY: f"{backend.metadata.namespace}/{backend.metadata.name}",
            c.ANNOTATION_INJECTED_BY_UID: backend.metadata.uid,
        },
        without=(c.ANNOTATION_INJECT_SKIPPED,),
    )
    return wired


def _binding(backend: CacheBackend, adapter: RuntimeAdapter) -> Binding | None:
    """The store as the engine shall reach it, None for host-only (spec 03 §6)."""
    storage = backend.spec.remote_storage
    problem = ""
    endpoint = ""
    if storage is not None and storage.external:
        endpoint = (storage.endpoint or "").strip()
        try:
            parse_endpoint(storage.provider, endpoint)
        except EndpointError as error:
            endpoint, problem = "", f"spec.remoteStorage.endpoint is unusable: {error}"
    elif storage is not None:
        endpoint = (backend.status.endpoint or "").strip()
        problem = "status.endpoint is not published yet"
        if backend.pool_binding:
            problem = f"KVCachePoolBinding {backend.pool_binding} gives it no address; its condition Ready says why"
    try:
        binding = binding_for(storage, endpoint)
    except UnknownProvider as error:
        raise _Unusable("unknown_provider", str(error)) from error
    if not adapter.supports_binding(binding):
        spoken = f"protocol {binding.protocol}" if binding else "host-only operation"
        raise _Unusable(
            "unsupported_binding",
            f"runtime {backend.runtime_id} with type {backend.cache_type} does not support {spoken}",
        )
    if binding is not None and not endpoint and not backend.events_only:
        raise _Unusable("no_endpoint", problem)
    return binding


def _wire_engine(
    spec: Manifest, view: PodView, adapter: RuntimeAdapter, binding: Binding | None, backend: CacheBackend
) -> None:
    """The engine's args and environment, then the overrides of what was injected."""
    overrides = backend.spec.integration.engine_overrides if backend.spec.integration else None
    target = _override_target(spec, adapter) if overrides is not None else None
    before = clone(target)
    try:
        adapter.inject_engine_config(spec, binding, backend)
    except InjectionError as error:
        raise _Unusable("rejected", str(error)) from error
    if target is None:
        return
    after = _override_target(spec, adapter)
    if after is not None:
        wired_before = view.metadata.annotations.get(c.ANNOTATION_INJECTED_BY_UID) == backend.metadata.uid
        apply_overrides(before, after, overrides, spelling=flag_spelling(adapter), wired_before=wired_before)


def _override_target(spec: Manifest, adapter: RuntimeAdapter) -> Manifest | None:
    name = adapter.engine_container_name()
    if not name:
        return None
    try:
        return engine_container(spec, name)
    except InjectionError:
        return None


def _kernel_check(spec: Manifest, adapter: RuntimeAdapter, backend: CacheBackend) -> None:
    """Add, replace or remove the kernel check; only for adapters whose check it is (spec 03 §7.2)."""
    if not isinstance(adapter, ChecksKernels):
        return
    check = None
    if not backend.events_only:
        try:
            check = adapter.kernel_check_init_container(backend, spec)
        except Exception:
            log.exception("kernel check not rendered", namespace=backend.metadata.namespace, name=backend.metadata.name)
            return
    if check is not None:
        upsert_named(spec, "initContainers", check)
        return
    present: list[Manifest] = spec.get("initContainers") or []
    kept = [container for container in present if container.get("name") != KERNEL_CHECK]
    if kept:
        spec["initContainers"] = kept
    elif present:
        del spec["initContainers"]


def _subscriber(spec: Manifest, adapter: RuntimeAdapter, backend: CacheBackend, settings: Settings) -> bool:
    """Append the subscriber unless a container of its name is there; whether ours is in the Pod afterwards."""
    try:
        sidecar = adapter.observation_sidecar(backend, settings)
    except Exception:
        log.exception("subscriber not rendered", namespace=backend.metadata.namespace, name=backend.metadata.name)
        return False
    if sidecar is None:
        return False
    containers: list[Manifest] = spec.get("containers") or []
    present = next((container for container in containers if container.get("name") == SUBSCRIBER), None)
    if present is not None:
        return same_render(sidecar, present)
    spec["containers"] = [*containers, sidecar]
    volume = token_volume(settings)
    if volume is not None:
        upsert_named(spec, "volumes", volume)
    return True


# -------------------------------------------------------------------------------------------------- annotations


def _skipped(pod: Manifest, view: PodView) -> Injection:
    """The Pod's owner opted out: mark that, so that it can be told from a selector that matches nothing."""
    annotations = view.metadata.annotations
    message = f"skipped via {c.ANNOTATION_SKIP_INJECT}"
    claimed = annotations.get(c.ANNOTATION_INJECTED_BY) or annotations.get(c.ANNOTATION_INJECTED_BY_UID)
    if annotations.get(c.ANNOTATION_INJECT_SKIPPED) == c.INJECT_SKIPPED_VALUE and not claimed:
        return Injection(pod, Outcome.SKIPPED, "opt_out", message)
    marked = _with_own_annotations(pod)
    _annotate(
        marked,
        {c.ANNOTATION_INJECT_SKIPPED: c.INJECT_SKIPPED_VALUE},
        without=(c.ANNOTATION_INJECTED_BY, c.ANNOTATION_INJECTED_BY_UID),
    )
    return Injection(marked, Outcome.SKIPPED, "opt_out", message)


def _unwired(pod: Manifest, view: PodView, reason: str, message: str, backend: str = "") -> Injection:
    """The Pod without the annotations it did not earn. The reason is given in any case (decision A12)."""
    if any(view.metadata.annotations.get(name) for name in _EARNED):
        pod = _with_own_annotations(pod)
        _annotate(pod, {}, without=_EARNED)
    return Injection(pod, Outcome.UNWIRED, reason, message, backend)


def _with_own_annotations(pod: Manifest) -> Manifest:
    """A shallow copy whose metadata and annotations may be changed."""
    metadata = dict(pod.get("metadata") or {})
    metadata["annotations"] = dict(metadata.get("annotations") or {})
    return {**pod, "metadata": metadata}


def _annotate(pod: Manifest, added: Mapping[str, str], *, without: Iterable[str]) -> None:
    """Change annotations in place; a map that becomes empty goes, too."""
    metadata: Manifest = pod.get("metadata") or {}
    pod["metadata"] = metadata
    annotations: dict[str, str] = metadata.get("annotations") or {}
    for name in without:
        annotations.pop(name, None)
    annotations.update(added)
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
