"""SGLang with LMCache in its multi-process mode: a worker beside the engine, over Redis or host-only (spec 04 §4).

SGLang reads one configuration file that says where its worker listens. The worker is a native sidecar, so it runs
before the engine starts and until after it ends; the two share the file's volume and `/dev/shm`, over which the data
moves. The worker alone knows the remote store.

Everything is checked before anything is changed. Objects of our names count as ours, and are rendered anew, only if the
worker carries our marker.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.adapters import pods
from inferencecache.adapters.binding import Binding
from inferencecache.adapters.registry import Container, InjectionError, PodSpec, Settings, runtimes
from inferencecache.adapters.subscriber import subscriber_container
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend, LMCacheSpec
from inferencecache.api.endpoint import Endpoint, EndpointError, parse_endpoint

RUNTIME_ID: Final = "sglang"
ENGINE: Final = "sglang"
ENABLE_FLAG: Final = "--enable-lmcache"
CONFIG_FLAG: Final = "--lmcache-config-file"

WORKER: Final = "lmcache-mp-worker"
MARKER: Final = "INFERENCECACHE_MP_WORKER"
CONFIG_VOLUME: Final = "lmcache-config"
CONFIG_DIRECTORY: Final = "/etc/lmcache"
CONFIG_FILE: Final = f"{CONFIG_DIRECTORY}/config.yaml"
SHM_VOLUME: Final = "lmcache-dshm"
SHM_DIRECTORY: Final = "/dev/shm"

_GIB: Final = 2**30
_ALWAYS_READ_ONLY: Final = ("configMap", "secret", "downwardAPI", "projected", "image")
_MAY_BE_READ_ONLY: Final = (
    *("persistentVolumeClaim", "csi", "nfs", "cephfs", "rbd", "iscsi", "azureFile", "azureDisk", "quobyte"),
    *("portworxVolume", "scaleIO", "storageos", "glusterfs", "cinder", "flexVolume", "gcePersistentDisk"),
    *("awsElasticBlockStore", "fc"),
)
_SHARED_IDENTITY: Final = ("runAsNonRoot", "runAsUser", "runAsGroup")


@runtimes.register
class SGLangLMCache:
    """The adapter for (sglang, LMCache)."""

    def supports(self, runtime_id: str, backend: CacheBackend) -> bool:
        return runtime_id == RUNTIME_ID and backend.cache_type == c.TYPE_LMCACHE

    def supported_pairs(self) -> list[tuple[str, str]]:
        return [(RUNTIME_ID, c.TYPE_LMCACHE)]

    def supports_binding(self, binding: Binding | None) -> bool:
        return binding is None or binding.protocol == "resp"

    def reserved_args(self) -> list[str]:
        return [ENABLE_FLAG, CONFIG_FLAG]

    def reserved_env(self) -> list[str]:
        return ["LMCACHE_USE_EXPERIMENTAL", "INFERENCECACHE_FAIL_OPEN"]

    def engine_container_name(self) -> str:
        return ENGINE

    def inject_engine_config(self, pod_spec: PodSpec, binding: Binding | None, backend: CacheBackend) -> None:
        if backend.events_only:
            return
        if not self.supports_binding(binding):
            raise InjectionError(f"SGLang with LMCache cannot use the protocol {binding.protocol if binding else None}")
        if backend.spec.remote_storage is not None and (binding is None or not binding.endpoint):
            raise InjectionError("the remote store has no endpoint yet")
        engine = pods.engine_container(pod_spec, ENGINE)
        pods.require_extensible(engine)
        tuning = _Tuning.of(backend)
        store = _store(binding)
        owned = _owns_worker(pod_spec)
        _check_config_mount(engine)
        _check_names(pod_spec, owned, CONFIG_VOLUME, "volumes")
        shared = _shared_memory(pod_spec, engine, owned)
        if shared is None:
            _check_names(pod_spec, owned, SHM_VOLUME, "volumes")
        _check_names(pod_spec, owned, WORKER, "initContainers")
        _check_names(pod_spec, False, WORKER, "containers")

        pods.upsert_named(pod_spec, "volumes", {"name": CONFIG_VOLUME, "emptyDir": {}})
        if shared is None:
            shared = {"name": SHM_VOLUME, "mountPath": SHM_DIRECTORY}
            memory = {"medium": "Memory", "sizeLimit": tuning.memory}
            pods.upsert_named(pod_spec, "volumes", {"name": SHM_VOLUME, "emptyDir": memory})
            pods.upsert_named(engine, "volumeMounts", dict(shared), key="mountPath")
        config = {"name": CONFIG_VOLUME, "mountPath": CONFIG_DIRECTORY}
        if _mount_at(engine, CONFIG_DIRECTORY) is None:
            engine["volumeMounts"] = [*(engine.get("volumeMounts") or ()), dict(config)]
        pods.upsert_named(pod_spec, "initContainers", _worker(engine, tuning, store, [config, shared]))

        pods.upsert_flag(engine, ENABLE_FLAG)
        pods.upsert_flag_pair(engine, CONFIG_FLAG, CONFIG_FILE)
        pods.upsert_env(engine, "LMCACHE_USE_EXPERIMENTAL", "True")
        pods.upsert_env(engine, "INFERENCECACHE_FAIL_OPEN", "true" if backend.fail_open else "false")

    def observation_sidecar(self, backend: CacheBackend, settings: Settings) -> Container | None:
        return subscriber_container(backend, settings, hash_scheme="sglang")


# ------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class _Tuning:
    """The worker's settings: plain integers, because they become part of a shell script."""

    image: str
    chunk: int
    port: int
    gib: int

    @property
    def memory(self) -> str:
        """The worker's memory: the cache and a gibibyte for itself."""
        return f"{self.gib + 1}Gi"

    @classmethod
    def of(cls, backend: CacheBackend) -> _Tuning:
        """Settings of a backend. One out of range is an error, never replaced (decision A6)."""
        lmcache = backend.spec.lm_cache or LMCacheSpec()
        capacity = lmcache.host_memory.capacity if lmcache.host_memory else None
        return cls(
            image=lmcache.worker_image or "",
            chunk=_within("chunkSizeTokens", lmcache.chunk_size_tokens, 256, 65536),
            port=_within("workerPort", lmcache.worker_port, 5555, 65535),
            gib=_within("hostMemory.capacity (in GiB)", capacity.ceil_div(_GIB) if capacity else None, 4, 1024),
        )


def _within(field: str, value: int | None, default: int, highest: int) -> int:
    if value is None:
        return default
    if not 1 <= value <= highest:
        raise InjectionError(f"spec.lmCache.{field} is {value}: SGLang with LMCache takes 1 to {highest}")
    return value


def _store(binding: Binding | None) -> Endpoint | None:
    if binding is None:
        return None
    try:
        return parse_endpoint(c.PROVIDER_REDIS, binding.endpoint)
    except EndpointError as error:
        raise InjectionError(f'the store\'s address "{binding.endpoint}" is unusable: {error}') from error


# ----------------------------------------------------------------------------------------------------- ownership


def _owns_worker(pod_spec: PodSpec) -> bool:
    """Whether the Pod already has a worker that this adapter rendered."""
    return any(
        container.get("name") == WORKER
        and any(entry.get("name") == MARKER and entry.get("value") == "true" for entry in container.get("env") or ())
        for container in pod_spec.get("initContainers") or ()
    )


def _check_names(pod_spec: PodSpec, owned: bool, name: str, field: str) -> None:
    if not owned and any(item.get("name") == name for item in pod_spec.get(field) or ()):
        raise InjectionError(f'spec.{field} already has "{name}", which this operator did not make: rename yours')


def _mount_at(container: Container, path: str) -> dict[str, Any] | None:
    mounts: list[dict[str, Any]] = container.get("volumeMounts") or []
    return next((mount for mount in mounts if mount.get("mountPath") == path), None)


def _check_config_mount(engine: Container) -> None:
    mount = _mount_at(engine, CONFIG_DIRECTORY)
    if mount is not None and mount.get("name") != CONFIG_VOLUME:
        raise InjectionError(f'volume "{mount.get("name")}" is mounted at {CONFIG_DIRECTORY}: mount it elsewhere')


def _shared_memory(pod_spec: PodSpec, engine: Container, owned: bool) -> dict[str, Any] | None:
    """The mount through which the worker shares the engine's own `/dev/shm`, or None if it needs one of ours."""
    mount = _mount_at(engine, SHM_DIRECTORY)
    if mount is None or (owned and mount.get("name") == SHM_VOLUME):
        return None
    if mount.get("name") == SHM_VOLUME:
        # Once wired, it would pass for ours and be replaced.
        raise InjectionError(
            f'{SHM_DIRECTORY} is mounted from a volume named "{SHM_VOLUME}", a name reserved for the worker; rename it'
        )
    name = mount.get("name")
    volume: dict[str, Any] = next((v for v in pod_spec.get("volumes") or () if v.get("name") == name), {})
    if problem := _unusable(mount, volume):
        raise InjectionError(f'volume "{name}" at {SHM_DIRECTORY} cannot be shared with the worker: {problem}')
    shared = {"name": name, "mountPath": SHM_DIRECTORY}
    return {**shared, "subPath": mount["subPath"]} if mount.get("subPath") else shared


def _unusable(mount: dict[str, Any], volume: dict[str, Any]) -> str:
    if mount.get("readOnly"):
        return "it is mounted read-only"
    if mount.get("subPathExpr"):
        return "its subPathExpr depends on the container"
    for source in _ALWAYS_READ_ONLY:
        if volume.get(source) is not None:
            return f"a {source} volume cannot be written"
    for source in _MAY_BE_READ_ONLY:
        settings = volume.get(source)
        if isinstance(settings, dict) and settings.get("readOnly"):
            return f"its {source} is read-only"
    return ""


# -------------------------------------------------------------------------------------------------------- worker


def _worker(engine: Container, tuning: _Tuning, store: Endpoint | None, mounts: list[dict[str, Any]]) -> Container:
    """The native sidecar. It sees the GPUs (it copies from their memory) but requests none of its own."""
    identity = engine.get("securityContext") or {}
    probe = f"import socket; socket.create_connection(('127.0.0.1',{tuning.port}),1)"
    return {
        "name": WORKER,
        "image": tuning.image or engine.get("image") or "",
        "restartPolicy": "Always",
        "command": ["sh", "-c"],
        "args": [_script(tuning, store)],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": MARKER, "value": "true"}],
        "resources": {"requests": {"memory": tuning.memory}, "limits": {"memory": tuning.memory}},
        "volumeMounts": copy.deepcopy(mounts),
        "startupProbe": {"exec": {"command": ["python3", "-c", probe]}, "periodSeconds": 3, "failureThreshold": 40},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            **{field: identity[field] for field in _SHARED_IDENTITY if identity.get(field) is not None},
        },
    }


def _script(tuning: _Tuning, store: Endpoint | None) -> str:
    """Write the file that both sides read, then become the server."""
    config = rf'chunk_size: {tuning.chunk}\nmp_host: "127.0.0.1"\nmp_port: {tuning.port}\n'
    server = (
        f"python3 -m lmcache.v1.multiprocess.server --host 127.0.0.1 --port {tuning.port} "
        f"--chunk-size {tuning.chunk} --l1-size-gb {tuning.gib} --eviction-policy LRU"
    )
    if store is not None:
        described = json.dumps({"type": "resp", "host": store.host, "port": store.port}, separators=(",", ":"))
        quoted = described.replace("'", r"'\''")
        server += f" --l2-adapter '{quoted}'"
    return f"set -e; printf '{config}' > {CONFIG_FILE}; exec {server}"
