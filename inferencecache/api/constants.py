"""Reserved strings: annotations, labels, condition types, enum values (spec 01 §4, §8). Other clients match on them."""

from __future__ import annotations

from typing import Final

GROUP: Final = "inferencecache.io"
VERSION: Final = "v1alpha1"

# Annotations a user sets on a CacheBackend.
ANNOTATION_KERNEL_CHECK: Final = f"{GROUP}/lmcache-kernel-check"
ANNOTATION_REQUIRE_KV_EVENTS: Final = f"{GROUP}/require-kv-events"
ANNOTATION_SKIP_FUNCTIONAL_PROBE: Final = f"{GROUP}/skip-functional-probe"

# Annotations on Pods: the first is the user's, the others are the Pod webhook's.
ANNOTATION_SKIP_INJECT: Final = f"{GROUP}/skip-inject"
ANNOTATION_INJECTED_BY: Final = f"{GROUP}/injected-by"
ANNOTATION_INJECTED_BY_UID: Final = f"{GROUP}/injected-by-uid"
ANNOTATION_INJECT_SKIPPED: Final = f"{GROUP}/inject-skipped"
INJECT_SKIPPED_VALUE: Final = "skip-inject-annotation"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_BACKEND_TYPE: Final = f"{GROUP}/backend-type"
CHILD_NAME: Final = "cachebackend"
CHILD_MANAGED_BY: Final = "inference-cache-controller"

RESERVED_PROBE_TENANT: Final = f"{GROUP}/probe"

# Values of the closed enums.
RUNTIME_VLLM: Final = "VLLM"
RUNTIME_SGLANG: Final = "SGLang"
TYPE_LMCACHE: Final = "LMCache"
TYPE_HICACHE: Final = "SGLangHiCache"
PROVIDER_REDIS: Final = "Redis"
PROVIDER_LMCACHE_SERVER: Final = "LMCacheServer"
PROVIDER_MOONCAKE: Final = "Mooncake"
OWNERSHIP_MANAGED: Final = "Managed"
OWNERSHIP_EXTERNAL: Final = "External"
MODE_OFFLOAD: Final = "Offload"
MODE_EVENTS_ONLY: Final = "EventsOnly"
ROLE_READ_ONLY: Final = "ReadOnly"
ROLE_WRITE_ONLY: Final = "WriteOnly"
ROLE_READ_WRITE: Final = "ReadWrite"
KIND_DEPLOYMENT: Final = "Deployment"
KIND_STATEFUL_SET: Final = "StatefulSet"
KERNEL_CHECK_MODES: Final = ("auto", "report-only", "strict", "off")

# Condition types of a CacheBackend.
READY: Final = "Ready"
DEGRADED: Final = "Degraded"
PROGRESSING: Final = "Progressing"
FUNCTIONAL_PROBE_OK: Final = "FunctionalProbeOK"
ENGINE_KERNELS_HEALTHY: Final = "EngineKernelsHealthy"
T2_DEGRADED: Final = "T2Degraded"
ENGINE_COMPATIBILITY: Final = "EngineCompatibility"
