"""What each tenant may ask of lookups and of the index (spec 06 §4.3, §5).

The controller pushes one document with every CachePolicy and every quota. It is parsed strictly, resolved once into one
frozen `TenantPolicy` per tenant, and takes the place of the whole document before it in one assignment: whatever the
new one does not mention is back at its default, and no reader ever sees half of each.

A request's tenant is the namespace of its engines, so a policy counts for the tenant of that name. Quotas name their
tenant themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from inferencecache.server import bodies
from inferencecache.server.index import RESERVED_TENANT
from inferencecache.wire.limits import LARGEST_POLICIES

OLDEST_VERSION: Final = 3
NEWEST_VERSION: Final = 7

_DEFAULT_TTL_US: Final = 30 * 60 * 1_000_000
_DEFAULT_MATCHED_TOKENS: Final = 64
_DEFAULT_FLOOR: Final = 0.1
_BARE_MATCHED_TOKENS_UNTIL: Final = 4
"""Bodies below this version could not say "off": their zero means the default."""

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def _float32(value: float) -> float:
    return array("f", (value,))[0]


class PolicyError(ValueError):
    """A pushed document cannot be used; the message names the field. Nothing has changed."""


class Strategy(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """Which ways to an answer a policy allows; None is the default of §5."""

    enable_chain_matching: bool | None = None
    require_chain: bool | None = None
    enable_tenant_hot: bool | None = None


class PolicyRow(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """One namespace's CachePolicy as it travels. `eviction_ttl` is in nanoseconds, `lookup_timeout_ms` says itself."""

    namespace: str
    eviction_ttl: Int64 = field(default=0, name="evictionTTL")
    minimum_prefix_tokens: Int32 = 0
    minimum_matched_tokens: Int32 = 0
    routing_floor_score: float | None = None
    lookup_timeout_ms: Int32 = 0
    eviction: str = ""
    affinity_routing: bool | None = None
    strategy: Strategy | None = None


class TenantRow(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """One CacheTenant's quota as it travels. The only isolation there is, Fairness, is what a quota does."""

    tenant_id: str = field(name="tenantID")
    max_index_entries: Int64
    isolation_mode: str = ""


class PolicyDocument(Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """The body of a push."""

    version: int = 0
    policies: list[PolicyRow] | None = None
    tenants: list[TenantRow] | None = None


class TenantPolicy(NamedTuple):
    """The rules for one tenant, with every default filled in. The defaults here are those of a tenant without policy.

    Attributes:
        ttl_us: how long a hold stays usable after its last report.
        lfu: evict the least used holds at the cap, not the oldest.
        minimum_prefix_tokens: shorter requests get no match; 0 is off.
        minimum_matched_tokens: shorter matches are no match; 0 is off.
        routing_floor_score: a best score below it is no match; 0 is off. Rounded to float32, as scores are, so that a
            score equal to it passes.
        lookup_timeout_s: budget of one lookup; None is unbounded.
        chain_matching: match chains of blocks; else only the last block is looked up.
        require_chain: answer nothing but whole explicit chains.
        tenant_hot: fall back to replicas that are warm for the tenant.
        affinity: send equal novel prompts to one replica.
    """

    ttl_us: int = _DEFAULT_TTL_US
    lfu: bool = False
    minimum_prefix_tokens: int = 0
    minimum_matched_tokens: int = _DEFAULT_MATCHED_TOKENS
    routing_floor_score: float = _float32(_DEFAULT_FLOOR)
    lookup_timeout_s: float | None = None
    chain_matching: bool = True
    require_chain: bool = False
    tenant_hot: bool = True
    affinity: bool = True


_NO_POLICY: Final = TenantPolicy()


class _Resolved(NamedTuple):
    policies: Mapping[str, TenantPolicy]
    quotas: Mapping[str, int]


class PolicyStore:
    """The rules in force: one document's, replaced as a whole. Implements the index's `TenantRules`."""

    def __init__(self) -> None:
        self._now = _Resolved({}, {})

    def replace(self, document: PolicyDocument) -> None:
        """Put `document` in force in place of everything before it."""
        self._now = _resolved(document)

    def of(self, tenant: str) -> TenantPolicy:
        """The rules for `tenant`."""
        return self._now.policies.get(tenant, _NO_POLICY)

    def ttl_us(self, tenant: str) -> int:
        """How long the tenant's holds stay usable, in microseconds."""
        return self.of(tenant).ttl_us

    def longest_ttl_us(self) -> int:
        """The longest TTL of any tenant, in microseconds: what is older holds nothing usable."""
        return max([_DEFAULT_TTL_US, *(rules.ttl_us for rules in self._now.policies.values())])

    def is_lfu(self, tenant: str) -> bool:
        """Whether the tenant's least used holds go first."""
        return self.of(tenant).lfu

    def max_entries(self, tenant: str) -> int | None:
        """The tenant's quota of distinct keys; None is unbounded, 0 admits nothing."""
        return self._now.quotas.get(tenant)


def parse(body: bytes) -> PolicyDocument:
    """The document in the body of a push.

    Raises:
        PolicyError: over `LARGEST_POLICIES`, not exactly one JSON object of this shape, or of an unknown version.
    """
    document = bodies.decode(body, _decoder, what="policy snapshot", max_bytes=LARGEST_POLICIES, error=PolicyError)
    if not OLDEST_VERSION <= document.version <= NEWEST_VERSION:
        raise PolicyError(
            f"unsupported policy snapshot version {document.version}:"
            f" this server speaks {OLDEST_VERSION} to {NEWEST_VERSION}"
        )
    return document


_decoder: Final = msgspec.json.Decoder(PolicyDocument)


def _resolved(document: PolicyDocument) -> _Resolved:
    return _Resolved(
        policies={
            row.namespace: _policy(row, document.version)
            for row in document.policies or ()
            if row.namespace not in ("", RESERVED_TENANT)
        },
        quotas={
            row.tenant_id: max(row.max_index_entries, 0)
            for row in document.tenants or ()
            if row.tenant_id not in ("", RESERVED_TENANT)
        },
    )


def _policy(row: PolicyRow, version: int) -> TenantPolicy:
    """One row of §5's table per argument; of the back-fills of §4.3 only that of version 3 differs from it."""
    strategy = row.strategy or Strategy()
    matched_tokens = row.minimum_matched_tokens
    if version < _BARE_MATCHED_TOKENS_UNTIL and matched_tokens == 0:
        matched_tokens = _DEFAULT_MATCHED_TOKENS
    floor = _DEFAULT_FLOOR if row.routing_floor_score is None else row.routing_floor_score
    return TenantPolicy(
        ttl_us=max(row.eviction_ttl // 1000, 1) if row.eviction_ttl > 0 else _DEFAULT_TTL_US,
        lfu=row.eviction.lower() == "lfu",
        minimum_prefix_tokens=max(row.minimum_prefix_tokens, 0),
        minimum_matched_tokens=max(matched_tokens, 0),
        routing_floor_score=_float32(max(floor, 0.0)),
        lookup_timeout_s=row.lookup_timeout_ms / 1000 if row.lookup_timeout_ms > 0 else None,
        chain_matching=strategy.enable_chain_matching is not False,
        require_chain=strategy.require_chain is True,
        tenant_hot=strategy.enable_tenant_hot is not False,
        affinity=row.affinity_routing is not False,
    )
