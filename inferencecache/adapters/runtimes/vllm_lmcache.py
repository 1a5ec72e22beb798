"""vLLM with the LMCache connector: over an LMCache server, over Mooncake, or in host memory only (spec 04 §3).

LMCache reads its settings from the environment; vLLM is told to use it by one flag. Existing values of exactly these
are overwritten where they stand; everything else in the engine container belongs to its owner.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from inferencecache.adapters import pods
from inferencecache.adapters.binding import Binding
from inferencecache.adapters.flags import dashes, flag_of
from inferencecache.adapters.kernel_check import kernel_check_container
from inferencecache.adapters.registry import Container, InjectionError, PodSpec, Settings, runtimes
from inferencecache.adapters.subscriber import subscriber_container
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, EngineOverrides, LMCacheSpec
from inferencecache.api.endpoint import remote_url

RUNTIME_ID: Final = "vllm"
ENGINE: Final = "vllm"
CONNECTOR_FLAG: Final = "--kv-transfer-config"
REMOTE_URL: Final = "LMCACHE_REMOTE_URL"

_PROTOCOLS: Final = frozenset({"lm", "mooncakestore"})
_KV_ROLES: Final = {c.ROLE_READ_ONLY: "kv_consumer", c.ROLE_WRITE_ONLY: "kv_producer"}
_DEFAULT_SERDE: Final = "naive"
_DEFAULT_CHUNK: Final = 256
_DEFAULT_HOST_GIB: Final = 20
_GIB: Final = 2**30


@runtimes.register
class VLLMLMCache:
    """The adapter for (vllm, LMCache)."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return runtime_id == RUNTIME_ID and backend.cache_type == c.TYPE_LMCACHE

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [(RUNTIME_ID, c.TYPE_LMCACHE)]

    def supports_binding(self, binding: Binding | None) -> bool:
        return binding is None or binding.protocol in _PROTOCOLS

    def reserved_args(self) -> list[str]:
        return [CONNECTOR_FLAG]

    def reserved_env(self) -> list[str]:
        return [REMOTE_URL, "VLLM_USE_V1", "INFERENCECACHE_FAIL_OPEN", "PYTHONHASHSEED"]

    def engine_container_name(self) -> str:
        return ENGINE

    def flag_meant(self, flag: str) -> str:
        return dashes(flag)

    def inject_engine_config(self, pod_spec: PodSpec, binding: Binding | None, backend: CacheBackend) -> None:
        if backend.events_only:
            return
        engine = pods.engine_container(pod_spec, ENGINE)
        if not self.supports_binding(binding):
            raise InjectionError(f"vLLM with LMCache cannot use the protocol {binding.protocol if binding else None}")
        if binding is not None and not binding.endpoint:
            raise InjectionError("the remote store has no endpoint yet")
        pods.require_extensible(engine)
        integration = backend.spec.integration
        overrides = (integration and integration.engine_overrides) or EngineOverrides()
        _check_connector([*pods.strings(engine, "command"), *pods.strings(engine, "args"), *(overrides.args or ())])

        if binding is None:
            pods.remove_env(engine, REMOTE_URL)
        else:
            pods.upsert_env(engine, REMOTE_URL, remote_url(binding.protocol, binding.endpoint))
        for name, value in _environment(backend).items():
            pods.upsert_env(engine, name, value)
        pods.upsert_flag_pair(engine, CONNECTOR_FLAG, _connector(backend.role), spelling=dashes)

        on_host = integration is not None and integration.engine_host_network
        if on_host and binding is not None and binding.protocol == "mooncakestore":
            pod_spec["hostNetwork"] = True
            pod_spec["dnsPolicy"] = "ClusterFirstWithHostNet"

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> Container | None:
        return subscriber_container(backend, settings, hash_scheme="vllm")

    def kernel_check_init_container(self, backend: CacheBackend, pod_spec: PodSpec) -> Container | None:
        try:
            engine = pods.engine_container(pod_spec, ENGINE)
        except InjectionError:
            return None
        return kernel_check_container(backend.kernel_check_mode, engine)


def _check_connector(argv: Sequence[str]) -> None:
    """Refuse a connector in parts (`--kv-transfer-config.kv_role`), which vLLM would take in the place of ours."""
    for flag in map(flag_of, argv):
        if dashes(flag).startswith(f"{CONNECTOR_FLAG}."):
            raise InjectionError(f"{flag} is a part of another connector than the one that is wired: remove it")


def _environment(backend: CacheBackend) -> dict[str, str]:
    """The variables besides the address, in the order they are appended."""
    lmcache = backend.spec.lm_cache or LMCacheSpec()
    capacity = lmcache.host_memory.capacity if lmcache.host_memory else None
    local = capacity is not None or backend.spec.remote_storage is None
    gib = capacity.ceil_div(_GIB) if capacity is not None and capacity.value > 0 else _DEFAULT_HOST_GIB
    return {
        "LMCACHE_REMOTE_SERDE": lmcache.remote_serde or _DEFAULT_SERDE,
        "LMCACHE_CHUNK_SIZE": str(lmcache.chunk_size_tokens or _DEFAULT_CHUNK),
        "LMCACHE_LOCAL_CPU": str(local),
        "LMCACHE_MAX_LOCAL_CPU_SIZE": str(gib),
        "VLLM_USE_V1": "1",
        "INFERENCECACHE_FAIL_OPEN": "true" if backend.fail_open else "false",
        "PYTHONHASHSEED": "0",
    }


def _connector(role: str) -> str:
    config = {"kv_connector": "LMCacheConnectorV1", "kv_role": _KV_ROLES.get(role, "kv_both")}
    return json.dumps(config, separators=(",", ":"))
