"""SGLang with HiCache, its native host cache: nothing but flags of the engine (spec 04 §5).

What the Pod's owner wrote is never changed: a flag that agrees with the backend stays as it is, one that contradicts it
leaves the Pod unwired. HiCache has no store, no worker and no settings in the environment. Only backends that admission
would accept are wired, because a wrong flag keeps the engine from starting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from inferencecache.adapters import pods
from inferencecache.adapters.binding import Binding
from inferencecache.adapters.flags import flag_of, tokens
from inferencecache.adapters.registry import Container, InjectionError, PodSpec, Settings, runtimes
from inferencecache.adapters.subscriber import subscriber_container
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import (
    HICACHE_IO_BACKENDS,
    HICACHE_MEMORY_LAYOUTS,
    HICACHE_WRITE_POLICIES,
    CacheBackend,
    EngineOverrides,
    HiCache,
    parse_ratio,
)

RUNTIME_ID: Final = "sglang"
ENGINE: Final = "sglang"
ENABLE: Final = "--enable-hierarchical-cache"
SIZE: Final = "--hicache-size"
RATIO: Final = "--hicache-ratio"
OPTIONS: Final = {
    "--hicache-write-policy": ("write_policy", HICACHE_WRITE_POLICIES),
    "--hicache-io-backend": ("io_backend", HICACHE_IO_BACKENDS),
    "--hicache-mem-layout": ("memory_layout", HICACHE_MEMORY_LAYOUTS),
}
"""Optional flags, in the order they are appended, with the field that asks for each and the values that it takes."""

_LMCACHE_FLAGS: Final = ("--enable-lmcache", "--lmcache-config-file")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


@runtimes.register
class SGLangHiCache:
    """The adapter for (sglang, SGLangHiCache)."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return runtime_id == RUNTIME_ID and backend.cache_type == c.TYPE_HICACHE

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [(RUNTIME_ID, c.TYPE_HICACHE)]

    def supports_binding(self, binding: Binding | None) -> bool:
        return binding is None

    def reserved_args(self) -> list[str]:
        return [ENABLE, SIZE, RATIO, *OPTIONS]

    def reserved_env(self) -> list[str]:
        return []

    def engine_container_name(self) -> str:
        return ENGINE

    def inject_engine_config(self, pod_spec: PodSpec, binding: Binding | None, backend: CacheBackend) -> None:
        if binding is not None:
            raise InjectionError("HiCache keeps its cache in the engine's host and takes no remote store")
        wanted = self._wanted(backend)
        engine = pods.engine_container(pod_spec, ENGINE)
        pods.require_extensible(engine)
        args = pods.strings(engine, "args")
        missing = _missing([*pods.strings(engine, "command"), *args], wanted)
        if missing:
            engine["args"] = [*args, *missing]

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> Container | None:
        return subscriber_container(backend, settings, hash_scheme="sglang")

    def _wanted(self, backend: CacheBackend) -> dict[str, str]:
        """The flags a backend asks for, with their values. Raises `InjectionError` for one admission would refuse."""
        for broken, message in _REQUIREMENTS:
            if broken(backend):
                raise InjectionError(message)
        integration = backend.spec.integration
        overrides = (integration and integration.engine_overrides) or EngineOverrides()
        added = {token.flag for token in tokens(overrides.args or ())}
        touched = added | set(overrides.suppress_args or ())
        if reserved := sorted(touched & set(self.reserved_args())):
            raise InjectionError(f"spec.integration.engineOverrides touches {', '.join(reserved)}: use spec.hiCache")
        if others := sorted(added & set(_LMCACHE_FLAGS)):  # the Pod would be refused when it is admitted again
            raise InjectionError(
                f"spec.integration.engineOverrides adds {', '.join(others)}: LMCache and HiCache exclude each other"
            )
        return _flags(backend.spec.hi_cache)


_REQUIREMENTS: Final[tuple[tuple[Callable[[CacheBackend], bool], str], ...]] = (
    (lambda b: b.runtime_id != RUNTIME_ID, "HiCache needs spec.runtime SGLang"),
    (lambda b: b.cache_type != c.TYPE_HICACHE, "HiCache needs spec.type SGLangHiCache"),
    (lambda b: b.mode != c.MODE_OFFLOAD, "HiCache needs spec.integration.mode Offload"),
    (lambda b: b.role != c.ROLE_READ_WRITE, "HiCache needs spec.integration.role ReadWrite"),
    (lambda b: not b.fail_open, "HiCache cannot fail closed: spec.integration.failOpen must not be false"),
    (lambda b: b.spec.autoscaling is not None, "HiCache runs no workload that spec.autoscaling could scale"),
    (lambda b: not b.selector, "HiCache needs spec.engineSelector.matchLabels"),
)


def _flags(hi_cache: HiCache | None) -> dict[str, str]:
    if hi_cache is None:
        raise InjectionError("spec.hiCache is missing")
    if (hi_cache.size_gb is None) == (not hi_cache.ratio):  # as for admission, an empty text is none
        raise InjectionError("spec.hiCache needs exactly one of sizeGB and ratio")
    wanted = {ENABLE: ""}
    if hi_cache.size_gb is not None:
        if hi_cache.size_gb < 1:
            raise InjectionError(f"spec.hiCache.sizeGB is {hi_cache.size_gb}: it must be at least 1")
        wanted[SIZE] = str(hi_cache.size_gb)
    elif hi_cache.ratio:
        if parse_ratio(hi_cache.ratio) is None:
            raise InjectionError(f'spec.hiCache.ratio is "{hi_cache.ratio}": it must be a finite number above zero')
        wanted[RATIO] = hi_cache.ratio
    for flag, (field, allowed) in OPTIONS.items():
        value: str | None = getattr(hi_cache, field)
        if not value:
            continue
        if value not in allowed:
            raise InjectionError(f'spec.hiCache.{field} "{value}" is unknown: use one of {", ".join(allowed)}')
        wanted[flag] = value
    return wanted


def _missing(argv: Sequence[str], wanted: dict[str, str]) -> list[str]:
    """What must be appended to a command line for it to say what is wanted. Raises `InjectionError` on a conflict."""
    for flag in _LMCACHE_FLAGS:
        if any(flag_of(entry) == flag for entry in argv):
            raise InjectionError(f"the engine has {flag}: LMCache and HiCache exclude each other")
    enabled = [entry for entry in argv if flag_of(entry) == ENABLE]
    if enabled not in ([], [ENABLE]):
        raise InjectionError(f"the engine has {' '.join(enabled)}: give {ENABLE} once, without a value")
    missing = [] if enabled else [ENABLE]
    for flag in (SIZE, RATIO, *OPTIONS):
        present = _value(argv, flag)
        if present is not None and flag in (SIZE, RATIO) and flag not in wanted:
            raise InjectionError(f"the engine has {flag}, but the backend gives its capacity the other way")
        if flag not in wanted:
            continue
        if present is None:
            missing += [flag, wanted[flag]]
        elif not _equal(flag, present, wanted[flag]):
            raise InjectionError(f"the engine has {flag} {present}, but the backend says {wanted[flag]}")
    return missing


def _value(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag that may be given once. Raises `InjectionError` for a second one, or one without a value."""
    found = [index for index, entry in enumerate(argv) if flag_of(entry) == flag]
    if not found:
        return None
    if len(found) > 1:
        raise InjectionError(f"the engine has {flag} more than once")
    index = found[0]
    _, equals, value = argv[index].partition("=")
    if not equals:
        following = argv[index + 1 : index + 2]
        value = following[0] if following and not following[0].startswith("--") else ""
    if not value:
        raise InjectionError(f"the engine has {flag} without a value")
    return value


def _equal(flag: str, present: str, wanted: str) -> bool:
    if flag == SIZE:
        return bool(_INTEGER.fullmatch(present)) and int(present) == int(wanted)
    if flag == RATIO:
        return parse_ratio(present) is not None and parse_ratio(present) == parse_ratio(wanted)
    return present == wanted
