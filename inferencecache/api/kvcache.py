"""What the kinds of the KV cache pool share: shapes of their status, and names that other people's clients depend on.

A KVCacheBackend runs or reaches one Mooncake store, a KVCachePool publishes it, and a KVCachePoolBinding gives a
namespace a quota on it under one reuse domain. The API says *reuse domain* where the store says *tenant*, and *leader*
where the store says *master* (spec 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from inferencecache.api.model import Condition, Model, Schema, Text

GROUP: Final = "worker.gpustack.ai"
VERSION: Final = "v1"
CATEGORY: Final = "gpustack"

FINALIZER: Final = "gpustack.ai/controlled"
"""Held by this operator on backends, pools and Bindings."""

# Marks of what is rendered for a backend (spec 10 §2.4).
LABEL_TYPE: Final = "resource.gpustack.ai/type"
TYPE_BACKENDS: Final = "kvcachebackends"
ANNOTATION_BACKEND: Final = "note.gpustack.ai/backend"
ANNOTATION_ROLE: Final = "note.gpustack.ai/role"
ROLE_LEADER: Final = "leader"
ROLE_MEMBER: Final = "member"
ROLE_QUOTA_POLICY: Final = "tenant-quota-policy"

POLICY_KEY: Final = "tenant-quota-policy.yaml"
"""Where in its ConfigMap the policy document of a backend is, and the name of the file that a leader starts from."""

DEFAULT_DOMAIN: Final = "default"
ENDPOINT_CLIENT: Final = "Client"
ENDPOINT_ADMIN: Final = "Admin"

MAX_BYTES: Final = 2**63 - 1
"""The most bytes that a quota can have: the store counts them in an int64."""

# Phases; a pool and a Binding are never Degraded.
PHASE_PROVISIONING: Final = "Provisioning"
PHASE_READY: Final = "Ready"
PHASE_DEGRADED: Final = "Degraded"
PHASE_ERROR: Final = "Error"
PHASE_DELETING: Final = "Deleting"

# Condition types of a backend.
LEADER_AVAILABLE: Final = "LeaderAvailable"
MEMBERS_MOUNTED: Final = "MembersMounted"
CAPACITY_OBSERVED: Final = "CapacityObserved"
DELETABLE: Final = "Deletable"
ROLLOUT_COMPLETE: Final = "RolloutComplete"
ELECTION_OBSERVED: Final = "ElectionObserved"

# Condition types of a pool (spec 10 §7.1).
BACKEND_RESOLVED: Final = "BackendResolved"
QUOTA_LEDGER_AVAILABLE: Final = "QuotaLedgerAvailable"
QUOTA_POLICY_WRITABLE: Final = "QuotaPolicyWritable"
CAPACITY_ALLOCATABLE: Final = "CapacityAllocatable"
QUOTA_WITHIN_TOTAL: Final = "QuotaWithinTotal"

# Condition types of a Binding (spec 10 §7.2).
DOMAIN_EXCLUSIVE: Final = "DomainExclusive"
QUOTA_OBSERVED: Final = "QuotaObserved"
QUOTA_GRANTED: Final = "QuotaGranted"

RELEASABLE: Final = "Releasable"
"""On a pool and on a Binding, while a deletion is held."""

MULTI_TENANCY_DISABLED: Final = "MultiTenancyDisabled"
"""The reason that tells a store without tenants from a broken one; admission and injection decide by it."""

TRANSPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Auto": "tcp",
        "TCP": "tcp",
        "RDMA": "rdma",
        "EFA": "efa",
        "CANN": "ascend",
        "ROCM": "hip",
        "MUSA": "musa",
        "MACA": "maca",
    }
)
"""What the store calls each protocol of the API (spec 10 §12)."""

ADDRESS_LENGTH: Final = 259
"""A DNS name, a colon and a port."""

HIT_RATE: Final = r"^(0(\.[0-9]{1,4})?|1(\.0{1,4})?)$"

_REASON: Final = r"^$|^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class PoolCondition(Condition):
    """A condition of this group, whose reason may be empty (spec 10 §2.3)."""

    reason: Annotated[Text, Schema(required=True, max_length=1024, pattern=_REASON)] = ""


class Endpoint(Model):
    """One address of a store."""

    name: Annotated[Text, Schema(required=True, enum=(ENDPOINT_CLIENT, ENDPOINT_ADMIN))] = ""
    """Client: where engines connect. Admin: HTTP, where quotas and metrics are."""
    address: Annotated[Text, Schema(required=True, min_length=1, max_length=ADDRESS_LENGTH)] = ""
    """host:port."""


class UsedBy(Model):
    """One consumer; an object of this group."""

    kind: Annotated[Text, Schema(required=True)] = ""
    """The consumer's kind."""
    namespace: Annotated[Text, Schema(required=True)] = ""
    """The consumer's namespace; empty for the scope of the object that holds this list."""
    name: Annotated[Text, Schema(required=True)] = ""
    """The consumer's name."""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def policy_config_map(backend: str) -> str:
    """The name of the ConfigMap with a backend's policy document (spec 10 §9.2)."""
    return f"{backend}-tenant-quota-policy"


USED_BY_KEYS: Final = ("kind", "namespace", "name")


def used_by_patch(users: Iterable[UsedBy]) -> dict[str, Any]:
    """The merge patch of a status for these consumers: sorted, and no field where there are none (spec 10 §2.3)."""
    listed = sorted(users, key=lambda user: (user.kind, user.namespace, user.name))
    return {"usedBy": [user.manifest() for user in listed] or None}


_MOST_NAMES: Final = 20


def listed(names: Iterable[object]) -> str:
    """Names as a message lists them: twenty at most, and how many more there are (spec 10 §2.3)."""
    texts = [str(name) for name in names]
    told = ", ".join(texts[:_MOST_NAMES])
    more = len(texts) - _MOST_NAMES
    return f"{told} and {more} more" if more > 0 else told
