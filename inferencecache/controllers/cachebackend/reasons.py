"""Reasons that a CacheBackend's conditions and Events carry (spec 01 §4, spec 05 §1.7). Other clients match on them."""

from __future__ import annotations

from typing import Final

# Ready.
BACKEND_READY: Final = "BackendReady"
HOST_ONLY_ACTIVE: Final = "HostOnlyActive"
EVENTS_ONLY_ACTIVE: Final = "EventsOnlyActive"
KV_EVENTS_OBSERVED: Final = "KVEventsObserved"
SCALED_TO_ZERO: Final = "ScaledToZero"
ROLLOUT_IN_PROGRESS: Final = "RolloutInProgress"
REPLICAS_UNAVAILABLE: Final = "ReplicasUnavailable"
AWAITING_FIRST_KV_EVENT: Final = "AwaitingFirstKVEvent"
NO_KV_EVENTS_OBSERVED: Final = "NoKVEventsObserved"
EXTERNAL_ENDPOINT_ACCEPTED: Final = "ExternalEndpointAccepted"
EXTERNAL_ENDPOINT_MISSING: Final = "ExternalEndpointMissing"
EXTERNAL_ENDPOINT_INVALID: Final = "ExternalEndpointInvalid"
POOL_BINDING_READY: Final = "PoolBindingReady"
POOL_BINDING_NOT_FOUND: Final = "PoolBindingNotFound"
POOL_BINDING_DELETING: Final = "PoolBindingDeleting"
POOL_NOT_SERVED: Final = "PoolNotServed"
"""The pool of the Binding does not exist, has no address, or does not know whether its master has tenants."""
POOL_TENANT_NOT_SENT: Final = "PoolTenantNotSent"
"""Engines would write in the name of another tenant than the Binding's."""
POOL_BINDING_NOT_READY: Final = "PoolBindingNotReady"
CHILD_CONFLICT: Final = "ChildConflict"
"""A foreign object has the name of a child (decision F1)."""
APPLY_FAILED: Final = "ApplyFailed"
"""A child could not be written, or the store could not be rendered (decision F16)."""

ENGINE_KERNEL_DEGRADED: Final = "EngineKernelDegraded"

# FunctionalProbeOK, and Ready where it fails.
PROBE_OK: Final = "ProbeOK"
PROBE_BYPASSED: Final = "ProbeBypassed"
PROBE_ERROR: Final = "ProbeError"
PROBE_INGEST_FAILED: Final = "ProbeIngestFailed"
PROBE_ROUTING_FAILED: Final = "ProbeRoutingFailed"
PROBE_T2_FAILED: Final = "ProbeT2Failed"

# EngineKernelsHealthy.
KERNELS_HEALTHY: Final = "KernelsHealthy"
KERNEL_LOAD_FAILED: Final = "KernelLoadFailed"
KERNEL_CHECK_ERROR: Final = "KernelCheckError"
KERNEL_CHECK_PENDING: Final = "KernelCheckPending"

# T2Degraded.
T2_ZERO_HIT_RATE: Final = "T2ZeroHitRate"
T2_SERVING: Final = "T2Serving"

# Degraded and Progressing, where they do not repeat Ready's.
NOT_DEGRADED: Final = "NotDegraded"
SYNCED: Final = "Synced"
DEGRADED: Final = "Degraded"

# Events.
BACKEND_DEGRADED: Final = "BackendDegraded"
BACKEND_RECOVERED: Final = "BackendRecovered"
FAIL_CLOSED_ENABLED: Final = "FailClosedEnabled"
FAIL_OPEN_RESTORED: Final = "FailOpenRestored"
ENGINE_SELECTOR_UNMATCHED: Final = "EngineSelectorUnmatched"
INJECTED_ENGINE_CRASH_LOOPING: Final = "InjectedEngineCrashLooping"
"""Also the reason of EngineCompatibility."""
