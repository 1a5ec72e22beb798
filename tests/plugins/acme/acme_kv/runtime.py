"""The Acme engine with its own cache: one flag, and the address of the store in one variable."""

from __future__ import annotations

from inferencecache.adapters.binding import Binding
from inferencecache.adapters.pods import engine_container, upsert_env, upsert_flag
from inferencecache.adapters.registry import Container, PodSpec, Settings, runtimes
from inferencecache.api.cachebackend import CacheBackend


@runtimes.register
class Acme:
    """The adapter for (acme, AcmeCache)."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return (runtime_id, backend.cache_type) in self.supported_pairs()

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [("acme", "AcmeCache")]

    def supports_binding(self, binding: Binding | None) -> bool:
        return binding is None or binding.protocol == "acme"

    def inject_engine_config(self, pod_spec: PodSpec, binding: Binding | None, backend: CacheBackend) -> None:
        engine = engine_container(pod_spec, self.engine_container_name())
        upsert_flag(engine, "--acme-cache")
        if binding is not None:
            upsert_env(engine, "ACME_STORE", binding.endpoint)

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> Container | None:
        return None

    def reserved_args(self) -> list[str]:
        return ["--acme-cache"]

    def reserved_env(self) -> list[str]:
        return ["ACME_STORE"]

    def engine_container_name(self) -> str:
        return "acme"
