"""The verdict on a CacheBackend: the table of rules, what an update may keep, and warnings (spec 02 §4–§6).

One rule holds for new objects only, because a stored object could not mend what it objects to: its name (F10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from inferencecache.adapters.registry import RuntimeRegistry
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.webhooks.validation import engine, kubernetes, overrides, resources, storage
from inferencecache.webhooks.validation.findings import Verdict, Violation, invalid, newly_introduced
from inferencecache.webhooks.validation.table import Rule, Subject
from inferencecache.webhooks.validation.text import warning

RULES: Final[tuple[tuple[tuple[str, ...], Rule], ...]] = tuple(
    row for table in (storage, resources, engine, overrides, kubernetes) for row in table.TABLE.rows
)
"""Every rule with the rows it covers, of spec 02 §5 or our own, in the order in which findings are reported."""

LONGEST_NAME: Final = 63
"""Children bear the backend's own name, without a suffix, and the Service's is the strictest."""

_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")


def validate_cache_backend(
    new: CacheBackend,
    old: CacheBackend | None = None,
    *,
    runtimes: RuntimeRegistry | None,
    neighbours: Iterable[CacheBackend] = (),
) -> Verdict:
    """Judge a backend; with `old`, judge only what the update introduces.

    `neighbours` are the other backends of the namespace, as far as known; they lead to warnings only.
    """
    found = _judge(new, runtimes)
    if old is None:
        found = [*_name(new), *found]
        return Verdict(tuple(found), tuple(_warnings(new, neighbours)))
    return Verdict(newly_introduced(found, _judge(old, runtimes)), tuple(_warnings(new, neighbours)))


def _judge(backend: CacheBackend, runtimes: RuntimeRegistry | None) -> list[Violation]:
    subject = Subject(backend, runtimes)
    return [finding for _, rule in RULES for finding in rule(subject)]


def _name(backend: CacheBackend) -> Iterator[Violation]:
    """Decision F10: the children include a Service of the same name. A generated name is judged by its prefix."""
    meta = backend.metadata
    name = meta.name or (f"{meta.generate_name}x" if meta.generate_name else "")
    if name and (len(name) > LONGEST_NAME or not _DNS_1035.fullmatch(name)):
        yield invalid(
            "F10",
            "metadata.name",
            meta.name or meta.generate_name,
            f"must be usable as a Service name: at most {LONGEST_NAME} characters of a-z, 0-9 and '-', starting with a "
            "letter and ending with a letter or digit; choose another name",
        )


def _warnings(backend: CacheBackend, neighbours: Iterable[CacheBackend]) -> Iterator[str]:
    store, integration = backend.spec.remote_storage, backend.spec.integration
    host_network = bool(integration and integration.engine_host_network)
    # W1; the members of a pool are dialled where they listen, which engines can do from the Pod network as well.
    own_mesh = store is not None and store.provider == c.PROVIDER_MOONCAKE and store.pool_binding_ref is None
    if own_mesh and not host_network:
        yield "set spec.integration.engineHostNetwork=true, or engines cannot join the mesh: Ready, but no KV moves"
    rivals = sorted(
        other.metadata.name
        for other in neighbours
        if other.metadata.name != backend.metadata.name and backend.competes_with(other)
    )
    if rivals:  # decision A11
        yield overlap_warning(backend.metadata.name, rivals[0])


def overlap_warning(name: str, rival: str) -> str:
    """Who else may match the same Pods, and who wins; names are cut where the limit of 120 characters needs it."""
    return warning("engineSelector overlaps CacheBackend {}: Pods matching both go to {}", rival, min(name, rival))
