"""All CachePolicies and quotas as the body of `/policy`, version 7 (spec 05 §8).

Numbers that are zero are left out, and an absent `minimumMatchedTokens` switches that floor off, as a zero does. The
score floor is the exception: its absence means the server's default, so a zero is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.policy.owners import owners, quota_of
from inferencecache.kube.resource import Key

VERSION: Final = 7
DEFAULT_FLOOR: Final = 0.1
"""What a floor that cannot be used becomes. Never 0, which would switch it off."""

_LARGEST_FLOAT32: Final = float.fromhex("0x1.fffffep+127")


def policy_document(policies: Iterable[CachePolicy], tenants: Iterable[CacheTenant]) -> bytes:
    """The body. Of several policies in a namespace the smallest name counts; rows come in a fixed order."""
    effective: dict[str, CachePolicy] = {}
    for policy in sorted(policies, key=Key.of):
        effective.setdefault(policy.metadata.namespace, policy)
    document: dict[str, Any] = {"version": VERSION, "policies": [_policy(one) for one in effective.values()]}
    quotas = [_tenant(one) for one in sorted(owners(tenants).values(), key=Key.of)]
    if quotas:
        document["tenants"] = quotas
    return msgspec.json.encode(document)


def _policy(policy: CachePolicy) -> dict[str, Any]:
    spec = policy.spec
    numbers = {
        "evictionTTL": spec.eviction_ttl.nanoseconds if spec.eviction_ttl is not None else 0,
        "minimumPrefixTokens": spec.minimum_prefix_tokens,
        "minimumMatchedTokens": spec.minimum_matched_tokens,
        "lookupTimeoutMs": spec.lookup_timeout_ms,
    }
    row: dict[str, Any] = {"namespace": policy.metadata.namespace, **{k: v for k, v in numbers.items() if v}}
    if spec.routing_floor_score:
        row["routingFloorScore"] = floor_score(spec.routing_floor_score)
    if spec.affinity_routing:
        row["affinityRouting"] = spec.affinity_routing == "Enabled"
    row["eviction"] = (spec.eviction or "LRU").lower()
    if spec.strategy is not None:
        switches = {
            "enableChainMatching": spec.strategy.enable_chain_matching,
            "requireChain": spec.strategy.require_chain,
            "enableTenantHot": spec.strategy.enable_tenant_hot,
        }
        row["strategy"] = {name: on for name, on in switches.items() if on is not None}
    return row


def floor_score(text: str) -> float | int:
    """A score floor as a number: `DEFAULT_FLOOR` for what is not a finite number from 0 up that float32 can hold."""
    try:
        value = float(text)
    except ValueError:
        return DEFAULT_FLOOR
    if not math.isfinite(value) or not 0 <= value <= _LARGEST_FLOAT32:
        return DEFAULT_FLOOR
    return int(value) if value.is_integer() else value


def _tenant(tenant: CacheTenant) -> dict[str, Any]:
    row: dict[str, Any] = {"tenantID": tenant.spec.tenant_id, "maxIndexEntries": quota_of(tenant)}
    if tenant.spec.isolation_mode:
        row["isolationMode"] = tenant.spec.isolation_mode
    return row
