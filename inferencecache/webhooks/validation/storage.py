"""Rules V1–V13, the structure of a backend and its remote storage (spec 02 §5.1), and those of a backend on a pool."""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.api import constants as c
from inferencecache.api.endpoint import EndpointError, namespace_in, parse_endpoint
from inferencecache.webhooks.validation.findings import Violation, forbidden, invalid, required
from inferencecache.webhooks.validation.kubernetes import is_subdomain
from inferencecache.webhooks.validation.table import RuleTable, Subject

TABLE = RuleTable()
_STORAGE = "spec.remoteStorage"
_ENDPOINT = f"{_STORAGE}.endpoint"
_BLOCKS = (
    (c.PROVIDER_REDIS, "redis", "redis"),
    (c.PROVIDER_LMCACHE_SERVER, "lmCacheServer", "lm_cache_server"),
    (c.PROVIDER_MOONCAKE, "mooncake", "mooncake"),
)


def managed_mooncake(subject: Subject) -> bool:
    """The controller would run a Mooncake master."""
    storage = subject.storage
    return (
        storage is not None
        and storage.managed
        and storage.provider == c.PROVIDER_MOONCAKE
        and storage.pool_binding_ref is None
    )


@TABLE.rule("V1")
def host_only_does_not_scale(s: Subject) -> Iterator[Violation]:
    """Without remote storage there is no workload to scale."""
    if s.storage is None and s.spec.autoscaling is not None:
        yield forbidden(
            "V1",
            "spec.autoscaling",
            "a host-only backend (no spec.remoteStorage) has no provider workload to scale: remove autoscaling",
        )


@TABLE.rule("V2")
def lmcache_block_needs_its_type(s: Subject) -> Iterator[Violation]:
    """`lmCache` configures type LMCache."""
    if s.spec.lm_cache is not None and s.backend.cache_type != c.TYPE_LMCACHE:
        yield forbidden("V2", "spec.lmCache", f"only valid with spec.type={c.TYPE_LMCACHE}")


@TABLE.rule("V3")
def storage_needs_a_provider(s: Subject) -> Iterator[Violation]:
    """A remote store names its technology."""
    if s.storage is not None and not s.storage.provider:
        yield required("V3", f"{_STORAGE}.provider", "pick a provider: Redis, LMCacheServer or Mooncake")


@TABLE.rule("V4")
def storage_needs_an_owner(s: Subject) -> Iterator[Violation]:
    """A remote store names who runs it."""
    if s.storage is not None and not s.storage.ownership:
        yield required("V4", f"{_STORAGE}.ownership", "pick Managed or External")


@TABLE.rule("V5")
def managed_storage_publishes_its_endpoint(s: Subject) -> Iterator[Violation]:
    """A managed endpoint is observed, never given."""
    if s.storage is not None and s.storage.managed and (s.storage.endpoint or "").strip():
        yield forbidden(
            "V5",
            _ENDPOINT,
            "managed providers publish their observed endpoint in status.endpoint: remove it, or be External",
        )


@TABLE.rule("V6")
def external_storage_needs_an_endpoint(s: Subject) -> Iterator[Violation]:
    """An external store has an address."""
    if s.storage is not None and s.storage.external and not (s.storage.endpoint or "").strip():
        yield required("V6", _ENDPOINT, "required when remoteStorage.ownership=External: set host:port")


@TABLE.rule("V7")
def external_endpoint_is_well_formed(s: Subject) -> Iterator[Violation]:
    """The address follows the grammar of spec 02 §5.4."""
    if s.storage is None or not s.storage.external or not (s.storage.endpoint or "").strip():
        return
    try:
        parse_endpoint(s.storage.provider, s.storage.endpoint or "")
    except EndpointError as error:
        yield invalid("V7", _ENDPOINT, s.storage.endpoint, str(error))


@TABLE.rule("V8", "V8b")
def typed_blocks_belong_to_the_managed_provider(s: Subject) -> Iterator[Violation]:
    """A provider block needs its provider, and Managed ownership."""
    storage = s.storage
    if storage is None:
        return
    for provider, name, attribute in _BLOCKS:
        if getattr(storage, attribute) is None:
            continue
        field = f"{_STORAGE}.{name}"
        if storage.provider != provider:
            yield forbidden(
                "V8",
                field,
                f"belongs to provider {provider}, but the selected provider is {storage.provider or 'none'}",
            )
        if storage.external:
            yield forbidden("V8b", field, "provider blocks configure a store we run: they need ownership Managed")


@TABLE.rule("V9", "V9b")
def command_override_is_a_command(s: Subject) -> Iterator[Violation]:
    """A command override has an executable, and no blank words."""
    storage = s.storage
    if storage is None or not storage.managed:
        return
    for provider, name, attribute in _BLOCKS:
        command = getattr(getattr(storage, attribute), "command", None)
        if storage.provider != provider or command is None:
            continue
        field = f"{_STORAGE}.{name}.command"
        if not command:
            yield invalid("V9", field, [], "needs an executable as its first entry: add one, or remove command")
        for index, entry in enumerate(command):
            if not entry.strip():
                yield invalid("V9b", f"{field}[{index}]", entry, "an entry may not be empty")


@TABLE.rule("V10")
def endpoint_stays_in_its_namespace(s: Subject) -> Iterator[Violation]:
    """Crossing a namespace is a tenancy boundary that has to be acknowledged, whoever owns the store."""
    if s.storage is None or s.spec.allow_cross_namespace:
        return
    other = namespace_in(s.storage.endpoint or "")
    own = s.backend.metadata.namespace
    if other and other != own:
        yield forbidden(
            "V10",
            _ENDPOINT,
            f'names a Service in namespace "{other}", but this CacheBackend is in "{own}": '
            "set spec.allowCrossNamespace=true to permit that",
        )


@TABLE.rule("V11")
def zero_replicas_need_an_explicit_floor(s: Subject) -> Iterator[Violation]:
    """Autoscaling from zero would silently start at one."""
    autoscaling = s.spec.autoscaling
    if s.spec.replicas == 0 and autoscaling is not None and autoscaling.min_replicas is None:
        yield required(
            "V11",
            "spec.autoscaling.minReplicas",
            "spec.replicas=0 gives no floor to autoscaling: set minReplicas, or remove autoscaling to scale to zero",
        )


@TABLE.rule("V12")
def mooncake_is_a_singleton(s: Subject) -> Iterator[Violation]:
    """One Mooncake master only."""
    if managed_mooncake(s) and (s.spec.replicas or 0) > 1:
        yield invalid(
            "V12",
            "spec.replicas",
            s.spec.replicas,
            "a managed Mooncake master is a singleton on the host network; a second one clashes on ports or splits "
            "the store: use 0 or 1",
        )


@TABLE.rule("V12b")
def mooncake_does_not_scale(s: Subject) -> Iterator[Violation]:
    """Nor may it be autoscaled."""
    if managed_mooncake(s) and s.spec.autoscaling is not None:
        yield invalid(
            "V12b",
            "spec.autoscaling",
            s.spec.autoscaling,
            "a managed Mooncake master is a singleton on the host network and cannot be scaled: remove autoscaling",
        )


@TABLE.rule("V13")
def only_mooncake_needs_the_host_network(s: Subject) -> Iterator[Violation]:
    """`engineHostNetwork` rewrites a Pod's networking; only Mooncake's mesh needs that."""
    integration = s.spec.integration
    if integration is None or not integration.engine_host_network:
        return
    if s.storage is None or s.storage.provider != c.PROVIDER_MOONCAKE:
        found = f"this one's is {s.storage.provider or 'not set'}" if s.storage else "this backend is host-only"
        yield invalid(
            "V13",
            "spec.integration.engineHostNetwork",
            True,
            f"only provider Mooncake needs engines on the host network, {found}: remove it",
        )


# --------------------------------------------------------------------------------------------------- on a KV cache pool

_BINDING = f"{_STORAGE}.poolBindingRef"


@TABLE.rule("pool-store")
def a_pool_is_a_mooncake_store_of_the_operators(s: Subject) -> Iterator[Violation]:
    """A Binding stands for the store that its pool publishes, so it goes with nobody else's and no other technology."""
    if s.storage is None or s.storage.pool_binding_ref is None:
        return
    if s.storage.external:
        yield forbidden(
            "pool-store", _BINDING, "an External store is at spec.remoteStorage.endpoint: set ownership Managed"
        )
    if s.storage.provider and s.storage.provider != c.PROVIDER_MOONCAKE:
        yield forbidden(
            "pool-store", _BINDING, f"a pool is a Mooncake store, this provider is {s.storage.provider}: set Mooncake"
        )


@TABLE.rule("pool-name")
def a_binding_has_a_name(s: Subject) -> Iterator[Violation]:
    """The Binding may come later, but under this name it could never come."""
    if s.storage is None or s.storage.pool_binding_ref is None:
        return
    name = s.storage.pool_binding_ref.name
    if not is_subdomain(name):
        yield invalid("pool-name", f"{_BINDING}.name", name, "name a KVCachePoolBinding of this namespace")


@TABLE.rule("pool-server")
def a_pool_has_no_server_of_this_backend(s: Subject) -> Iterator[Violation]:
    """Nothing runs for this backend alone, so there is nothing to configure and nothing to scale."""
    if s.storage is None or s.storage.pool_binding_ref is None:
        return
    detail = "the pool's store is configured by its KVCacheBackend: remove this, or remoteStorage.poolBindingRef"
    if s.storage.mooncake is not None:
        yield forbidden("pool-server", f"{_STORAGE}.mooncake", detail)
    for field, given in (("autoscaling", s.spec.autoscaling), ("template", s.spec.template)):
        if given is not None:
            yield forbidden("pool-server", f"spec.{field}", detail)
    if (s.spec.replicas or 0) > 1:
        yield invalid("pool-server", "spec.replicas", s.spec.replicas, detail)
