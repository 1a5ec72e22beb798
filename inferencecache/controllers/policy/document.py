"""All CachePolicies and quotas as the body of `/policy`, version 7 (spec 05 §8).

Numbers that are zero are left out, and an absent `minimumMatchedTokens` switches that floor off, as a zero does. The
score floor is the exception: its absence means the server's default, so a zero is sent.

A body that is too long the server refuses as a whole, so no more is sent than it takes. There is one policy for a
namespace, but there may be any number of quotas in one, and of any length: policies go first, and a quota of an id that
the server takes no reports for is not sent at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.dataplane.push import Fitted, Row, fit
from inferencecache.controllers.policy.owners import owners, quota_of
from inferencecache.kube.resource import Key
from inferencecache.wire.limits import LARGEST_POLICIES, LONGEST_NAME

VERSION: Final = 7
TENANTS: Final = "tenants"
"""The list of the quotas; there is none without quotas."""
DEFAULT_FLOOR: Final = 0.1
"""What a floor that cannot be used becomes. Never 0, which would switch it off."""

_LARGEST_FLOAT32: Final = float.fromhex("0x1.fffffep+127")


def policy_document(policies: Iterable[CachePolicy], tenants: Iterable[CacheTenant]) -> Fitted:
    """The body. Of several policies in a namespace the smallest name counts; rows come in a fixed order."""
    effective: dict[str, CachePolicy] = {}
    for policy in sorted(policies, key=Key.of):
        effective.setdefault(policy.metadata.namespace, policy)
    quotas = [one for tenant_id, one in owners(tenants).items() if len(tenant_id) <= LONGEST_NAME]
    lists = {"policies": [_row(one, _policy(one)) for one in effective.values()]}
    if quotas:
        lists[TENANTS] = [_row(one, _tenant(one)) for one in quotas]
    return fit(VERSION, lists, LARGEST_POLICIES)


def _row(obj: CachePolicy | CacheTenant, value: dict[str, Any]) -> Row:
    return Row(Key.of(obj), obj.metadata.creation_timestamp or "", value)


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
