"""Rules K1–K2: what the API server would refuse in the Pods that are made or changed from a spec.

Beyond the table of spec 02. A bad value would otherwise be admitted here and fail later, on an object its author never
wrote: the managed store's Pod, or, worse, every engine Pod that the backend selects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from inferencecache.api.cachebackend import RemoteStorage
from inferencecache.api.core import EnvVarSource, KeySelector, ObjectFieldSelector, ResourceFieldSelector
from inferencecache.api.quantity import Quantity
from inferencecache.webhooks.validation.findings import Violation, invalid, required
from inferencecache.webhooks.validation.table import RuleTable, Subject

TABLE = RuleTable()

_FIELDS: Final = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_KEYED_FIELD: Final = re.compile(r"metadata\.(?:labels|annotations)\['([^']+)'\]")
_RESOURCE: Final = re.compile(r"(?:limits|requests)\.(?:(cpu)|memory|ephemeral-storage|hugepages-[0-9A-Za-z]+)")
_CPU_DIVISORS: Final = frozenset(map(Quantity, ("0", "1", "1m")))
_SIZE_DIVISORS: Final = frozenset(
    map(Quantity, ("0", "1", *(f"1{unit}" for unit in "kMGTPE"), *(f"1{unit}i" for unit in "KMGTPE")))
)
_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PREFIX: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_SUBDOMAIN: Final = re.compile(_PREFIX)
_QUALIFIED: Final = re.compile(rf"(?:{_PREFIX}/)?{_NAME}")
_LABEL_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_LONGEST_PREFIX: Final = 253
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def is_subdomain(text: str) -> bool:
    """Whether a text can be the name of an object of any of our kinds."""
    return len(text) <= _LONGEST_PREFIX and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether a text can be the key of a label or an annotation."""
    return len(text.rpartition("/")[0]) <= _LONGEST_PREFIX and _QUALIFIED.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text can be the value of a label."""
    return _LABEL_VALUE.fullmatch(text) is not None


@TABLE.rule("K1")
def images_have_no_blanks_around(s: Subject) -> Iterator[Violation]:
    """Kubernetes takes almost any text for an image, but not with blanks around it."""
    storage = s.storage or RemoteStorage()
    images = (
        ("spec.lmCache.workerImage", s.spec.lm_cache and s.spec.lm_cache.worker_image),
        ("spec.remoteStorage.redis.image", storage.redis and storage.redis.image),
        ("spec.remoteStorage.lmCacheServer.image", storage.lm_cache_server and storage.lm_cache_server.image),
        ("spec.remoteStorage.mooncake.image", storage.mooncake and storage.mooncake.image),
    )
    for field, image in images:
        if image and image != image.strip():
            yield invalid("K1", field, image, "an image may not have blanks around it: remove them")


@TABLE.rule("K2")
def env_sources_exist(s: Subject) -> Iterator[Violation]:
    """A variable takes its value from what a Pod, a container, a ConfigMap or a Secret has."""
    overrides = s.spec.integration.engine_overrides if s.spec.integration else None
    for index, entry in enumerate((overrides and overrides.env) or ()):
        if entry.value_from is not None:
            yield from _source(f"spec.integration.engineOverrides.env[{index}].valueFrom", entry.value_from)


def _source(field: str, source: EnvVarSource) -> Iterator[Violation]:
    if source.field_ref is not None:
        yield from _pod_field(f"{field}.fieldRef", source.field_ref)
    if source.resource_field_ref is not None:
        yield from _resource(f"{field}.resourceFieldRef", source.resource_field_ref)
    if source.config_map_key_ref is not None:
        yield from _key(f"{field}.configMapKeyRef", source.config_map_key_ref)
    if source.secret_key_ref is not None:
        yield from _key(f"{field}.secretKeyRef", source.secret_key_ref)


def _pod_field(field: str, ref: ObjectFieldSelector) -> Iterator[Violation]:
    keyed = _KEYED_FIELD.fullmatch(ref.field_path)
    if not (ref.field_path in _FIELDS or (keyed and is_qualified_name(keyed[1]))):
        yield invalid(
            "K2",
            f"{field}.fieldPath",
            ref.field_path,
            f"is no field of a Pod that a variable can have: use one of {', '.join(_FIELDS)}, "
            "metadata.labels['<key>'] or metadata.annotations['<key>']",
        )
    if ref.api_version not in (None, "", "v1"):
        yield invalid("K2", f"{field}.apiVersion", ref.api_version, "must be v1, or unset")


def _resource(field: str, ref: ResourceFieldSelector) -> Iterator[Violation]:
    found = _RESOURCE.fullmatch(ref.resource)
    if found is None:
        yield invalid(
            "K2",
            f"{field}.resource",
            ref.resource,
            "must be limits. or requests. followed by cpu, memory, ephemeral-storage or hugepages-<size>",
        )
    elif ref.divisor is not None and ref.divisor not in (_CPU_DIVISORS if found[1] else _SIZE_DIVISORS):
        accepted = "1 or 1m" if found[1] else "1, or 1 with a unit, such as 1Mi"
        yield invalid("K2", f"{field}.divisor", ref.divisor, f"use {accepted}")


def _key(field: str, ref: KeySelector) -> Iterator[Violation]:
    if not ref.name:
        yield required("K2", f"{field}.name", "name the object that holds the key")
    if not _KEY.fullmatch(ref.key) or ref.key in (".", "..") or ref.key.startswith(".."):
        yield invalid("K2", f"{field}.key", ref.key, "must be a key: letters, digits, '-', '_' and '.'")
