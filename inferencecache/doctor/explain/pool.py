"""A Pod that asks for a KV cache pool by its label: what it was given, and what it would be given now (spec 10 §12.1).

Such a Pod is injected once, whole or not at all, and what it got is frozen. So there is no admitting it again to
compare with; what is compared is the client's configuration in the Pod with the one that its Binding leads to today.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from inferencecache.api.kvcachechain import Chain
from inferencecache.doctor.explain.drift import Change, changes
from inferencecache.kube.resource import Manifest
from inferencecache.webhooks.kvcache_injection import Refused, inject, keys, read_request, wants_pool
from inferencecache.webhooks.kvcache_injection.client import StoreClient, document, variables
from inferencecache.webhooks.kvcache_injection.connection import connect
from inferencecache.webhooks.kvcache_injection.engines import Vehicle
from inferencecache.webhooks.pods import PodView


class PoolState(StrEnum):
    """What became of the wish."""

    GIVEN = "given"
    NOT_GIVEN = "not given"


@dataclass(frozen=True, slots=True)
class PoolExplanation:
    """The wish for a pool. `record` is what admission noted; `against` is what stands against giving it now."""

    state: PoolState
    summary: str
    record: Mapping[str, Any]
    against: tuple[str, ...]
    drift: tuple[Change, ...]


def explain_pool(pod: Manifest, view: PodView, chain: Chain, *, dtype_owned: bool) -> PoolExplanation | None:
    """Explain the wish of a Pod, whose Binding leads to `chain`; None if it has none and never had one."""
    annotations = view.metadata.annotations
    recorded = annotations.get(keys.ANNOTATION_INJECTED, "")
    if recorded:
        return _given(pod, view, chain, _record(recorded))
    if not wants_pool(view.metadata.labels):
        return None
    against: tuple[str, ...] = ()
    try:
        inject(pod, annotations, view.metadata.namespace, chain, dtype_owned=dtype_owned)
    except Refused as refused:
        against = tuple(f"{one.field}: {one.message}" for one in refused.violations)
    summary = (
        f"asks for a pool by the label {keys.LABEL_INJECT}, and was not given one: the label came after the Pod, or "
        f"the webhook is not installed. Created now, it would be {'refused' if against else 'given one'}"
    )
    return PoolExplanation(PoolState.NOT_GIVEN, summary, {}, against, ())


def _given(pod: Manifest, view: PodView, chain: Chain, record: Mapping[str, Any]) -> PoolExplanation:
    annotations = view.metadata.annotations
    request, _ = read_request(annotations)  # complains of the record itself, which is in order here
    connection, problems = connect(request, chain, view.metadata.namespace)
    drift: tuple[Change, ...] = ()
    if connection is not None and request.engine is not None:
        by_file = request.engine.vehicle is Vehicle.FILE
        compared = (
            _of_file(annotations, connection.client)
            if by_file
            else _of_variables(pod, request.container, connection.client)
        )
        drift = tuple(compared)
    summary = (
        f"given the pool of KVCachePoolBinding {record.get('binding', '?')}, domain {record.get('domain', '?')}, as "
        f"{record.get('engine', '?')} by {record.get('vehicle', '?')}, "
        f"{'with' if record.get('tenantInjected') else 'without'} a tenant"
    )
    against = tuple(f"{one.field}: {one.message}" for one in problems)
    return PoolExplanation(PoolState.GIVEN, summary, record, against, drift)


def _of_file(annotations: Mapping[str, str], client: StoreClient) -> Iterator[Change]:
    written = annotations.get(keys.ANNOTATION_CLIENT_CONFIG, "")
    path = f"metadata.annotations[{keys.ANNOTATION_CLIENT_CONFIG}]"
    yield from changes(_record(written), _record(document(client)), path)


def _of_variables(pod: Manifest, container: str | None, client: StoreClient) -> Iterator[Change]:
    containers: list[Manifest] = (pod.get("spec") or {}).get("containers") or []
    chosen = next((one for one in containers if container in (None, one.get("name"))), {})
    wanted = variables(client)
    ours = {entry["name"] for entry in wanted}
    present = [entry for entry in chosen.get("env") or () if entry.get("name") in ours]
    yield from changes(present, wanted, f"spec.containers[{chosen.get('name', '?')}].env")


def _record(text: str) -> dict[str, Any]:
    """A JSON object in an annotation; empty if it is none."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
