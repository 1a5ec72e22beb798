"""Rules V14–V21: resources of the provider's container, and host memory (spec 02 §5.2).

Kubernetes judges the rendered Pod by the same rules, but hours later and on an object the user never wrote; here the
answer names the field that the user wrote. Of a CacheBackend only the block of the selected provider is judged, whoever
owns the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from inferencecache.api import constants as c
from inferencecache.api.core import ResourceRequirements
from inferencecache.api.quantity import Quantity
from inferencecache.webhooks.validation.findings import Violation, forbidden, invalid
from inferencecache.webhooks.validation.kubernetes import is_qualified_name
from inferencecache.webhooks.validation.table import RuleTable, Subject

TABLE = RuleTable()
_OVERCOMMITTABLE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGEPAGES: Final = "hugepages-"
_BLOCK: Final = {
    c.PROVIDER_REDIS: "redis",
    c.PROVIDER_LMCACHE_SERVER: "lmCacheServer",
    c.PROVIDER_MOONCAKE: "mooncake",
}


def _resources(s: Subject) -> tuple[str, ResourceRequirements] | None:
    block = s.storage.provider_block if s.storage is not None else None
    if s.storage is None or block is None or block.resources is None:
        return None
    return f"spec.remoteStorage.{_BLOCK[s.storage.provider]}.resources", block.resources


_ContainerRule: TypeAlias = Callable[[str, ResourceRequirements], Iterator[Violation]]
_OF_A_CONTAINER: Final[list[_ContainerRule]] = []


def container_findings(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """What is wrong with the resources of any container; `base` is the path of their field."""
    for rule in _OF_A_CONTAINER:
        yield from rule(base, resources)


def _container_rule(row: str) -> Callable[[_ContainerRule], _ContainerRule]:
    """Register a rule for all containers, and so for the provider's."""

    def register(rule: _ContainerRule) -> _ContainerRule:
        _OF_A_CONTAINER.append(rule)

        @TABLE.rule(row)
        def of_the_provider(s: Subject) -> Iterator[Violation]:
            found = _resources(s)
            if found is not None:
                yield from rule(*found)

        return rule

    return register


def _entries(base: str, resources: ResourceRequirements) -> Iterator[tuple[str, str, Quantity]]:
    """Field, resource name and amount of every entry, requests before limits, names sorted."""
    for half, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, amount in sorted((amounts or {}).items()):
            yield f"{base}.{half}[{name}]", name, amount


def _page_size(name: str) -> Quantity | None:
    """The page size in `hugepages-<size>`, if it is a positive quantity."""
    if not name.startswith(_HUGEPAGES):
        return None
    try:
        size = Quantity(name.removeprefix(_HUGEPAGES))
    except ValueError:
        return None
    return size if size.value > 0 else None


def _vendor_name(name: str) -> bool:
    """Whether a name is an extended resource such as nvidia.com/gpu."""
    prefix, slash, _ = name.partition("/")
    return bool(slash) and prefix not in ("kubernetes.io", "requests.kubernetes.io") and is_qualified_name(name)


@_container_rule("V14")
def limits_and_requests_agree(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """A limit covers its request; for what cannot be overcommitted both are equal."""
    requests = resources.requests or {}
    for name, limit in sorted((resources.limits or {}).items()):
        request = requests.get(name)
        if request is None:
            continue
        where = f"{base}.requests[{name}]={request}"
        if name in _OVERCOMMITTABLE:
            if limit < request:
                detail = f"must be greater than or equal to {where}"
                yield invalid("V14", f"{base}.limits[{name}]", limit, detail, quoted=request)
        elif limit != request:
            yield invalid(
                "V14",
                f"{base}.limits[{name}]",
                limit,
                f"must equal {where}: Kubernetes does not overcommit {name}, every unit is dedicated",
                quoted=request,
            )


@_container_rule("V15")
def dedicated_resources_need_a_limit(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """Hugepages and devices are declared in both halves."""
    for name, request in sorted((resources.requests or {}).items()):
        if name not in _OVERCOMMITTABLE and name not in (resources.limits or {}):
            yield invalid(
                "V15",
                f"{base}.requests[{name}]",
                request,
                f"{name} must also be in limits with the same amount: Kubernetes does not overcommit it",
            )


@_container_rule("V16")
def no_resource_claims(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """The renderer declares no Pod-level claims, so a container's could not resolve."""
    if resources.claims:
        yield forbidden(
            "V16",
            f"{base}.claims",
            "dynamic resource claims are not supported: the rendered Pod would not declare them; remove claims",
        )


@_container_rule("V17")
def no_negative_amounts(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """Amounts are not negative."""
    for field, _, amount in _entries(base, resources):
        if amount.value < 0:
            yield invalid("V17", field, amount, "must not be negative")


@TABLE.rule("V18")
def host_memory_is_positive(s: Subject) -> Iterator[Violation]:
    """A host cache has a size."""
    memory = s.spec.lm_cache and s.spec.lm_cache.host_memory
    if memory and memory.capacity is not None and memory.capacity.value <= 0:
        yield invalid("V18", "spec.lmCache.hostMemory.capacity", memory.capacity, "must be greater than zero")


@_container_rule("V19")
def resource_names_are_known_to_kubernetes(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """Only names that a container may ask for."""
    for field, name, _ in _entries(base, resources):
        if name not in _OVERCOMMITTABLE and _page_size(name) is None and not _vendor_name(name):
            yield invalid(
                "V19",
                field,
                name,
                "is not a container resource: use cpu, memory, ephemeral-storage, hugepages-<size> such as "
                "hugepages-2Mi, or a vendor's name such as nvidia.com/gpu",
            )


@_container_rule("V20")
def devices_come_whole(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """Devices are counted; the number decides, not its spelling (`1000m` is one)."""
    for field, name, amount in _entries(base, resources):
        if name not in _OVERCOMMITTABLE and not name.startswith(_HUGEPAGES) and amount.value.denominator != 1:
            yield invalid("V20", field, amount, f"{name} is allocated in whole units only: use an integer")


@_container_rule("V21")
def hugepages_come_whole(base: str, resources: ResourceRequirements) -> Iterator[Violation]:
    """Huge pages are allocated as pages."""
    for field, name, amount in _entries(base, resources):
        size = _page_size(name)
        if size is not None and amount.value > 0 and int(amount) % int(size):
            yield invalid("V21", field, amount, f"must be a multiple of the page size {size}")
