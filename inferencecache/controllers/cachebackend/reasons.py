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
CHILD_CONFLICT: Final = "ChildConflict"
"""A foreign object has the name of a child (decision F1)."""
APPLY_FAILED: Final = "ApplyFailed"
"""A child could not be written, or the store could not be rendered (decision F16)."""

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
