"""The page of conditions: for each kind, what each reason means and what to do about it.

The decisions live with the controllers; here is what a person is told who meets a reason in `kubectl describe`. A test
holds the rows to the reasons that the controllers know and to those that recorded cases show.
"""

from __future__ import annotations

from typing import Final

from inferencecache.api import constants as c
from inferencecache.cli.reference.markdown import GENERATED, code, table
from inferencecache.cli.reference.pool_conditions import BINDING, POOL
from inferencecache.cli.reference.row import Row
from inferencecache.cli.reference.store_conditions import STORE
from inferencecache.controllers.cachebackend import reasons as r
from inferencecache.controllers.dataplane import served as s
from inferencecache.controllers.policy import tenant_status as t
from inferencecache.controllers.templates.status import INVALID_BODY
from inferencecache.controllers.topologies.status import NO_REPLICAS

_INTRODUCTION: Final = f"""\
# Conditions

{GENERATED}

What the operator says in `status.conditions`, and what to do about it. Programs match on type, status and reason;
messages are for people and may change.
"""

_REPEATS: Final = "see Ready"
_SERVER: Final = (
    "see that `inference-cache-server` runs and takes the controller's token; the message quotes its answer"
)

BACKEND: Final[dict[str, tuple[Row, ...]]] = {
    c.READY: (
        Row("True", r.KV_EVENTS_OBSERVED, "it serves, and engines have reported KV events"),
        Row("True", r.BACKEND_READY, "the store is available; events are not required, by annotation"),
        Row("True", r.HOST_ONLY_ACTIVE, "engines cache in host memory; events are not required, by annotation"),
        Row("True", r.EVENTS_ONLY_ACTIVE, "engines are wired for routing; events are not required, by annotation"),
        Row("True", r.EXTERNAL_ENDPOINT_ACCEPTED, "the address is well-formed; nobody has tried it"),
        Row("False", r.ROLLOUT_IN_PROGRESS, "the store's workload is not there or not up to date yet", "wait"),
        Row(
            "False",
            r.REPLICAS_UNAVAILABLE,
            "it is up to date, but too few replicas are available",
            "look at the Pods of the workload that has the backend's name",
        ),
        Row("False", r.SCALED_TO_ZERO, "no replica is wanted", "raise `spec.replicas`"),
        Row(
            "False",
            r.AWAITING_FIRST_KV_EVENT,
            "all is up and no engine has reported yet; `spec.observation.firstEventTimeout` is running",
            "start engines that the selector matches",
        ),
        Row(
            "False",
            r.NO_KV_EVENTS_OBSERVED,
            "that time is over",
            "check `status.matchedEnginePods`, the Events of the engine Pods, and that engines publish KV events on "
            "the topic `kv-events`; the first event mends it",
        ),
        Row("False", r.EXTERNAL_ENDPOINT_MISSING, "there is no address", "set `spec.remoteStorage.endpoint`"),
        Row(
            "False",
            r.EXTERNAL_ENDPOINT_INVALID,
            "the address is not of the provider's form",
            "correct `spec.remoteStorage.endpoint`; the message says what is wrong",
        ),
        Row("True", r.POOL_BINDING_READY, "it is on a KV cache pool, and its Binding is ready"),
        Row(
            "False",
            r.POOL_BINDING_NOT_FOUND,
            "the namespace has no such Binding",
            "create it, or correct `spec.remoteStorage.poolBindingRef`",
        ),
        Row("False", r.POOL_BINDING_DELETING, "the Binding is being deleted", "name another Binding"),
        Row(
            "False",
            r.POOL_NOT_SERVED,
            "the Binding's pool does not exist, has no address, or does not know whether its master has tenants",
            "see the pool's conditions",
        ),
        Row(
            "False",
            r.POOL_TENANT_NOT_SENT,
            "engines would write in the name of another tenant than the Binding's",
            "let LMCache send it: `mooncake_tenant_id` in `LMCACHE_EXTRA_CONFIG`; or use a Binding of the domain "
            "`default`",
        ),
        Row("False", r.POOL_BINDING_NOT_READY, "the Binding is not Ready", "see the Binding's conditions"),
        Row(
            "False",
            r.CHILD_CONFLICT,
            "an object of a child's name belongs to somebody else, and is not touched",
            "rename or delete one of the two; the message names the object",
        ),
        Row(
            "False",
            r.APPLY_FAILED,
            "a child could not be written",
            "the message has the API server's words: usually a quota, a policy or a missing permission",
        ),
        Row(
            "False",
            r.ENGINE_KERNEL_DEGRADED,
            "native kernels did not load in an engine that was admitted in strict mode",
            "see EngineKernelsHealthy",
        ),
        Row("False", r.PROBE_INGEST_FAILED, "the server's self-test failed for it", "see FunctionalProbeOK"),
        Row("False", r.PROBE_ROUTING_FAILED, "the same", "see FunctionalProbeOK"),
        Row("False", r.PROBE_T2_FAILED, "the same", "see FunctionalProbeOK"),
        Row("False", r.PROBE_ERROR, "the self-test's answer could not be understood", "see FunctionalProbeOK"),
    ),
    c.DEGRADED: (
        Row("False", r.NOT_DEGRADED, "nothing is wrong"),
        Row("True", r.REPLICAS_UNAVAILABLE, "fewer replicas are available than wanted", _REPEATS),
        Row("True", r.NO_KV_EVENTS_OBSERVED, "no engine reports", _REPEATS),
    ),
    c.PROGRESSING: (
        Row("False", r.SYNCED, "nothing is still to come"),
        Row("True", r.ROLLOUT_IN_PROGRESS, "the store is being rolled out", "wait"),
        Row("True", r.AWAITING_FIRST_KV_EVENT, "the first event is awaited", _REPEATS),
        Row("False", r.DEGRADED, "replicas are unavailable, and nothing is under way to change that", _REPEATS),
        Row("False", "any other", "the reason of Ready, where that is why nothing goes on", _REPEATS),
    ),
    c.FUNCTIONAL_PROBE_OK: (
        Row("True", r.PROBE_OK, "the cache server's self-test passes for this backend"),
        Row("True", r.PROBE_BYPASSED, f"not tried: the annotation `{c.ANNOTATION_SKIP_FUNCTIONAL_PROBE}` is `true`"),
        Row("False", r.PROBE_INGEST_FAILED, "a report did not reach the index", "read the server's log"),
        Row("False", r.PROBE_ROUTING_FAILED, "a lookup did not find what was reported", "read the server's log"),
        Row("False", r.PROBE_T2_FAILED, "the second tier did not answer", "see that the store can be reached"),
        Row(
            "False",
            r.PROBE_ERROR,
            "the server answered something that is not understood",
            "run server and controller of the same version",
        ),
        Row("Unknown", r.PROBE_ERROR, "the server could not be asked; Ready is left alone", _SERVER),
    ),
    c.ENGINE_KERNELS_HEALTHY: (
        Row("True", r.KERNELS_HEALTHY, "LMCache's native kernels loaded in every Pod that checks them"),
        Row(
            "False",
            r.KERNEL_LOAD_FAILED,
            "they did not load in some Pod, which falls back to slow ones or fails",
            "use an image whose LMCache was built for its CUDA and PyTorch; the message quotes the loader",
        ),
        Row("Unknown", r.KERNEL_CHECK_ERROR, "a check ended without a finding", "read the log of its init container"),
        Row("Unknown", r.KERNEL_CHECK_PENDING, "checks are still to report", "wait"),
    ),
    c.T2_DEGRADED: (
        Row("False", r.T2_SERVING, "the remote store serves what engines ask it for"),
        Row(
            "True",
            r.T2_ZERO_HIT_RATE,
            "engines ask it and never got anything; Ready is left alone",
            "check the store's address and memory, and that all engines hash alike (`PYTHONHASHSEED`)",
        ),
    ),
    c.ENGINE_COMPATIBILITY: (
        Row(
            "False",
            r.INJECTED_ENGINE_CRASH_LOOPING,
            "an engine that was wired does not get up",
            "read its log; models with hybrid attention need `spec.integration.mode: EventsOnly`",
        ),
    ),
}

TENANT: Final[dict[str, tuple[Row, ...]]] = {
    t.READY: (
        Row("True", t.OBSERVED, "the server's index was read"),
        Row(
            "False",
            t.TENANT_ID_TOO_LONG,
            "the server takes nothing for an id of more than 1,024 characters",
            "give it a shorter `spec.tenantID`",
        ),
        Row(
            "False",
            t.DUPLICATE_TENANT_ID,
            "another CacheTenant with a quota has the same id, and counts",
            "give one of them another `spec.tenantID`; the message names the other",
        ),
        Row(
            "False",
            s.DOCUMENT_FULL,
            "all policies and quotas together exceed the 1 MiB that the server takes; the youngest are left out",
            "shorten or delete some",
        ),
    ),
    t.QUOTA_EXCEEDED: (
        Row("False", t.NO_QUOTA, "there is no quota"),
        Row("False", t.WITHIN_BUDGET, "the tenant holds no more than it may"),
        Row(
            "True",
            t.OVER_ENTRY_BUDGET,
            "it holds more; the server evicts the rest at its next report",
            "wait, or raise `spec.quota.maxIndexEntries`",
        ),
        Row("False", t.NOT_EFFECTIVE, "its quota does not count", _REPEATS),
    ),
}

_PUSHED: Final = (
    Row("True", s.SERVED, "the server was told of its present state"),
    Row("False", s.PUSH_FAILED, "the server could not be told; it is tried again at least twice a minute", _SERVER),
    Row("False", s.NOT_ACCEPTED, "the server is not told of it", "see Accepted"),
)
_FULL: Final = Row(
    "False",
    s.DOCUMENT_FULL,
    "all objects of the kind together exceed the 4 MiB that the server takes; the youngest are left out",
    "shorten or delete some",
)

TEMPLATE: Final[dict[str, tuple[Row, ...]]] = {
    s.ACCEPTED: (
        Row("True", s.ACCEPTED_REASON, "the body can be rendered"),
        Row("False", INVALID_BODY, "it cannot", "correct `spec.body`; the message says where"),
        _FULL,
    ),
    s.READY: _PUSHED,
}

TOPOLOGY: Final[dict[str, tuple[Row, ...]]] = {
    s.ACCEPTED: (Row("True", s.ACCEPTED_REASON, "its pools can be resolved"), _FULL),
    s.READY: (
        *_PUSHED,
        Row(
            "False",
            NO_REPLICAS,
            "no running Pod matches the labels of a prefill or of a decode pool, so no pair can be named",
            "compare `matchLabels` with the labels of the Pods; the message names the role",
        ),
    ),
}

KINDS: Final = {
    "CacheBackend": BACKEND,
    "CacheTenant": TENANT,
    "PromptTemplate": TEMPLATE,
    "PDTopology": TOPOLOGY,
    "KVCacheBackend": STORE,
    "KVCachePool": POOL,
    "KVCachePoolBinding": BINDING,
}


def conditions_page() -> str:
    """The page, in Markdown."""
    sections = []
    for kind, conditions in KINDS.items():
        rows = [
            (code(type_), row.status, code(row.reason) if " " not in row.reason else row.reason, row.means, row.remedy)
            for type_, known in conditions.items()
            for row in known
        ]
        sections.append(f"## {kind}\n\n{table(('Type', 'Status', 'Reason', 'Means', 'To do'), rows)}")
    return "\n".join([_INTRODUCTION, *sections])
