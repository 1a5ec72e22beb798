"""The verdicts on CachePolicy and CacheTenant: a few rules, and uniqueness in the namespace (spec 02 §7–§8).

The siblings are an argument: whoever calls has looked them up live, and has refused the request if that failed. Racing
creates may both pass; the controllers then go by the smallest name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.api.constants import RESERVED_PROBE_TENANT
from inferencecache.webhooks.validation.findings import Verdict, Violation, forbidden, invalid, newly_introduced


def validate_cache_policy(
    new: CachePolicy, old: CachePolicy | None = None, *, siblings: Iterable[CachePolicy] = ()
) -> Verdict:
    """Judge a policy. `siblings` matter only where `old` is None: two that exist may both be edited (P3)."""
    found = list(_policy_rules(new))
    if old is not None:
        return Verdict(newly_introduced(found, _policy_rules(old)))
    others = [one.metadata.name for one in siblings if one.metadata.name != new.metadata.name]
    if others:
        found.append(
            forbidden(
                "P3",
                "metadata.name",
                f'namespace "{new.metadata.namespace}" already has CachePolicy "{min(others)}"; '
                "there is one per namespace: edit that one",
            )
        )
    return Verdict(tuple(found))


def _policy_rules(policy: CachePolicy) -> Iterator[Violation]:
    lifetime, strategy = policy.spec.eviction_ttl, policy.spec.strategy
    if lifetime is not None and lifetime.nanoseconds <= 0:
        yield invalid(
            "P1", "spec.evictionTTL", lifetime, "must be greater than zero: the index would quietly use its default"
        )
    if strategy is not None and strategy.enable_chain_matching is False and strategy.require_chain:
        yield invalid("P2", "spec.strategy.requireChain", True, "needs spec.strategy.enableChainMatching")


def needs_tenant_siblings(new: CacheTenant, old: CacheTenant | None) -> bool:
    """Whether uniqueness is in question: on create, and when an update changes the id (T2)."""
    return old is None or old.spec.tenant_id != new.spec.tenant_id


def validate_cache_tenant(
    new: CacheTenant, old: CacheTenant | None = None, *, siblings: Iterable[CacheTenant] = ()
) -> Verdict:
    """Judge a tenant. `siblings` are those of its namespace, where `needs_tenant_siblings` says so."""
    found = list(_tenant_rules(new))
    if old is not None:
        found = list(newly_introduced(found, _tenant_rules(old)))
    if needs_tenant_siblings(new, old):
        holders = [
            one.metadata.name
            for one in siblings
            if one.metadata.name != new.metadata.name and one.spec.tenant_id == new.spec.tenant_id
        ]
        if holders:
            found.append(
                invalid(
                    "T2",
                    "spec.tenantID",
                    new.spec.tenant_id,
                    f'already claimed by CacheTenant "{min(holders)}" in namespace "{new.metadata.namespace}": '
                    "pick another id",
                )
            )
    return Verdict(tuple(found))


def _tenant_rules(tenant: CacheTenant) -> Iterator[Violation]:
    if tenant.spec.tenant_id == RESERVED_PROBE_TENANT:
        yield invalid("T1", "spec.tenantID", RESERVED_PROBE_TENANT, "is reserved for the self-test: pick another id")
