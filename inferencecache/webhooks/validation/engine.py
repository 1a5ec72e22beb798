"""Rules V22–V41: mode, HiCache, the kernel check, and what the adapters can serve (spec 02 §5.3), and ranges (A6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inferencecache.adapters.binding import Binding, known_protocols
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import (
    HICACHE_IO_BACKENDS,
    HICACHE_MEMORY_LAYOUTS,
    HICACHE_WRITE_POLICIES,
    parse_ratio,
)
from inferencecache.webhooks.validation.findings import (
    Violation,
    forbidden,
    internal,
    invalid,
    not_supported,
    required,
)
from inferencecache.webhooks.validation.table import RuleTable, Subject

TABLE = RuleTable()
_GIB: Final = 2**30
_LARGEST_CHUNK: Final = 65536
_LARGEST_L1_GIB: Final = 1024
_HIGHEST_PORT: Final = 65535


def _hicache(s: Subject) -> bool:
    return s.backend.cache_type == c.TYPE_HICACHE


def _sglang_lmcache(s: Subject) -> bool:
    return s.spec.runtime == c.RUNTIME_SGLANG and s.backend.cache_type == c.TYPE_LMCACHE


def _managed_redis_of_sglang(s: Subject) -> bool:
    storage = s.storage
    return (
        _sglang_lmcache(s)
        and not s.backend.events_only
        and storage is not None
        and storage.managed
        and storage.provider == c.PROVIDER_REDIS
    )


@TABLE.rule("A6")
def lmcache_numbers_are_in_range(s: Subject) -> Iterator[Violation]:
    """What the SGLang worker cannot take is refused here, not replaced while rendering (decision A6, spec 04 §4.1)."""
    lm_cache = s.spec.lm_cache
    if lm_cache is None:
        return
    chunk, port = lm_cache.chunk_size_tokens, lm_cache.worker_port
    worker = _sglang_lmcache(s) and not s.backend.events_only
    if chunk is not None and chunk < 1:
        yield invalid("A6", "spec.lmCache.chunkSizeTokens", chunk, "must be at least 1")
    if worker and chunk is not None and chunk > _LARGEST_CHUNK:
        yield invalid(
            "A6",
            "spec.lmCache.chunkSizeTokens",
            chunk,
            f"the SGLang worker accepts 1-{_LARGEST_CHUNK} tokens: choose a smaller chunk",
        )
    if port is not None and not 1 <= port <= _HIGHEST_PORT:
        yield invalid("A6", "spec.lmCache.workerPort", port, f"must be in 1-{_HIGHEST_PORT}")
    capacity = lm_cache.host_memory and lm_cache.host_memory.capacity
    if worker and capacity and capacity.ceil_div(_GIB) > _LARGEST_L1_GIB:
        yield invalid(
            "A6",
            "spec.lmCache.hostMemory.capacity",
            capacity,
            f"the SGLang worker accepts at most {_LARGEST_L1_GIB}Gi: choose less",
        )


@TABLE.rule("V22")
def events_only_needs_lmcache(s: Subject) -> Iterator[Violation]:
    """Only LMCache comes with the subscriber that routing needs."""
    if s.backend.events_only and s.backend.cache_type != c.TYPE_LMCACHE:
        yield forbidden(
            "V22",
            "spec.integration.mode",
            f"{c.MODE_EVENTS_ONLY} works only with spec.type={c.TYPE_LMCACHE}, not {s.spec.type}",
        )


@TABLE.rule("V22b")
def events_only_does_not_scale(s: Subject) -> Iterator[Violation]:
    """Routing alone has no server."""
    if s.backend.events_only and s.spec.autoscaling is not None:
        yield forbidden(
            "V22b", "spec.autoscaling", "an EventsOnly backend has no server workload to scale: remove autoscaling"
        )


@TABLE.rule("V22c")
def events_only_has_no_storage(s: Subject) -> Iterator[Violation]:
    """Routing alone has no store."""
    if s.backend.events_only and s.storage is not None:
        yield forbidden(
            "V22c", "spec.remoteStorage", "an EventsOnly backend provisions no provider: remove remoteStorage"
        )


@TABLE.rule("V23")
def hicache_block_needs_its_type(s: Subject) -> Iterator[Violation]:
    """`hiCache` configures type SGLangHiCache."""
    if not _hicache(s) and s.spec.hi_cache is not None:
        yield forbidden("V23", "spec.hiCache", f"only for spec.type={c.TYPE_HICACHE}")


@TABLE.rule("V24")
def hicache_needs_its_block(s: Subject) -> Iterator[Violation]:
    """The type has no defaults."""
    if _hicache(s) and s.spec.hi_cache is None:
        yield required("V24", "spec.hiCache", f"needed for spec.type={c.TYPE_HICACHE}")


@TABLE.rule("V25", "V26")
def hicache_has_one_capacity(s: Subject) -> Iterator[Violation]:
    """Exactly one of size and ratio."""
    block = s.spec.hi_cache
    if not _hicache(s) or block is None:
        return
    if block.size_gb is None and not block.ratio:
        yield required("V25", "spec.hiCache", "exactly one of sizeGB and ratio is needed")
    elif block.size_gb is not None and block.ratio:
        yield invalid("V26", "spec.hiCache", block, "sizeGB and ratio are mutually exclusive: set exactly one")


@TABLE.rule("V27")
def hicache_size_is_positive(s: Subject) -> Iterator[Violation]:
    """A cache has a size."""
    block = s.spec.hi_cache
    if _hicache(s) and block is not None and block.size_gb is not None and block.size_gb < 1:
        yield invalid("V27", "spec.hiCache.sizeGB", block.size_gb, "must be at least 1")


@TABLE.rule("V28")
def hicache_ratio_is_a_positive_number(s: Subject) -> Iterator[Violation]:
    """The ratio reaches a command line, where the engine parses it."""
    ratio = s.spec.hi_cache and s.spec.hi_cache.ratio
    if _hicache(s) and ratio and parse_ratio(ratio) is None:
        yield invalid("V28", "spec.hiCache.ratio", ratio, "must be a finite number greater than zero, such as 2.0")


@TABLE.rule("V29", "V30")
def hicache_options_are_known(s: Subject) -> Iterator[Violation]:
    """Options come from closed lists."""
    block = s.spec.hi_cache
    if not _hicache(s) or block is None:
        return
    for rule, name, value, accepted in (
        ("V29", "writePolicy", block.write_policy, HICACHE_WRITE_POLICIES),
        ("V30", "ioBackend", block.io_backend, HICACHE_IO_BACKENDS),
        ("V30", "memoryLayout", block.memory_layout, HICACHE_MEMORY_LAYOUTS),
    ):
        if value and value not in accepted:
            yield not_supported(rule, f"spec.hiCache.{name}", value, accepted)


@TABLE.rule("V31")
def hicache_is_sglangs(s: Subject) -> Iterator[Violation]:
    """HiCache is part of SGLang."""
    if _hicache(s) and s.spec.runtime != c.RUNTIME_SGLANG:
        yield invalid("V31", "spec.runtime", s.spec.runtime, f"spec.type={c.TYPE_HICACHE} needs runtime SGLang")


@TABLE.rule("V32")
def hicache_selects_its_engines(s: Subject) -> Iterator[Violation]:
    """An engine-local cache without engines does nothing."""
    if _hicache(s) and not s.backend.selector:
        yield required("V32", "spec.engineSelector.matchLabels", "must select the engine Pods of an engine-local cache")


@TABLE.rule("V33")
def hicache_does_not_scale(s: Subject) -> Iterator[Violation]:
    """An engine-local cache has no workload of its own."""
    if _hicache(s) and s.spec.autoscaling is not None:
        yield forbidden("V33", "spec.autoscaling", "HiCache is engine-local, there is nothing to scale: remove it")


@TABLE.rule("V34")
def hicache_integration_is_plain(s: Subject) -> Iterator[Violation]:
    """HiCache has no other modes, roles or failure policy."""
    if not _hicache(s):
        return
    if s.backend.mode != c.MODE_OFFLOAD:
        yield not_supported("V34", "spec.integration.mode", s.backend.mode, (c.MODE_OFFLOAD,))
    if s.backend.role != c.ROLE_READ_WRITE:
        yield not_supported("V34", "spec.integration.role", s.backend.role, (c.ROLE_READ_WRITE,))
    if not s.backend.fail_open:
        yield not_supported("V34", "spec.integration.failOpen", False, ("true",))


@TABLE.rule("V35")
def kernel_check_mode_is_known(s: Subject) -> Iterator[Violation]:
    """A typo must not silently relax strict enforcement."""
    value = s.backend.metadata.annotations.get(c.ANNOTATION_KERNEL_CHECK, "")
    if value and value not in c.KERNEL_CHECK_MODES:
        yield invalid(
            "V35",
            f"metadata.annotations[{c.ANNOTATION_KERNEL_CHECK}]",
            value,
            f"must be one of {', '.join(c.KERNEL_CHECK_MODES)}, or unset",
        )


@TABLE.rule("V36")
def sglang_reads_and_writes(s: Subject) -> Iterator[Violation]:
    """SGLang's LMCache integration has no producers and consumers."""
    if s.spec.runtime == c.RUNTIME_SGLANG and s.spec.type == c.TYPE_LMCACHE and s.backend.role != c.ROLE_READ_WRITE:
        yield invalid(
            "V36",
            "spec.integration.role",
            s.backend.role,
            f"SGLang has no producer/consumer split: only {c.ROLE_READ_WRITE}",
        )


@TABLE.rule("V37")
def redis_is_a_singleton(s: Subject) -> Iterator[Violation]:
    """The managed Redis is not clustered."""
    if _managed_redis_of_sglang(s) and (s.spec.replicas or 0) > 1:
        yield invalid(
            "V37",
            "spec.replicas",
            s.spec.replicas,
            "the managed Redis is a single, non-clustered one; a second replica partitions the cache: use 0 or 1",
        )


@TABLE.rule("V37b")
def redis_does_not_scale(s: Subject) -> Iterator[Violation]:
    """Nor may it be autoscaled."""
    if _managed_redis_of_sglang(s) and s.spec.autoscaling is not None:
        yield invalid(
            "V37b",
            "spec.autoscaling",
            s.spec.autoscaling,
            "the managed Redis is a single, non-clustered one and cannot be scaled: remove autoscaling",
        )


@TABLE.rule("V38", "V39")
def the_pair_has_an_adapter(s: Subject) -> Iterator[Violation]:
    """Somebody must wire this runtime to this cache."""
    if not s.spec.type:
        return
    if s.runtimes is None:
        yield internal("V38", "spec.runtime", "the runtime-adapter registry is not configured")
    elif s.adapter is None:
        supported = ", ".join(sorted(f"{runtime}/{kind}" for runtime, kind in s.runtimes.supported_pairs()))
        yield invalid(
            "V39",
            "spec.runtime",
            s.spec.runtime,
            f'no adapter for engine="{s.backend.runtime_id}", backend="{s.spec.type}"; '
            f"supported pairs: {supported or '(none)'}",
        )


@TABLE.rule("V40", "V41")
def the_adapter_takes_the_binding(s: Subject) -> Iterator[Violation]:
    """The engine must speak the store's protocol."""
    if not s.spec.type or s.adapter is None:
        return
    binding = None
    if s.storage is not None:
        protocol = known_protocols().get(s.storage.provider)
        if protocol is None:
            yield invalid(
                "V40",
                "spec.remoteStorage.provider",
                s.storage.provider,
                f"unknown provider; use {', '.join(known_protocols())}",
            )
            return
        binding = Binding(protocol=protocol, endpoint="")
    if s.adapter.supports_binding(binding):
        return
    taken = [name for name, protocol in known_protocols().items() if s.adapter.supports_binding(Binding(protocol))]
    remedy = f"choose provider {' or '.join(taken)}" if taken else "remove remoteStorage"
    pair = f"runtime {s.backend.runtime_id} with type {s.spec.type}"
    if s.storage is None or binding is None:
        yield invalid(
            "V41", "spec.remoteStorage", None, f"{pair} does not support host-only (no remoteStorage): {remedy}"
        )
    else:
        yield invalid(
            "V41",
            "spec.remoteStorage.provider",
            s.storage.provider,
            f'{pair} does not accept remote-storage protocol "{binding.protocol}": {remedy}',
        )
