r"""The rules of the schemas beyond types and bounds: in CEL, for the API server, and in Python, for use without one.

The webhook tells all of spec 02 at once, with the values at fault. What CEL can state at a bounded cost is here as
well, so that it holds while the webhook is down; each rule carries the number of its row. Not here are rules about

* names that the schema does not know: other objects (P3, T2), annotations and the namespace (V35, V10), adapters
  (V38–V40, V47–V50);
* text whose length has no bound, taken apart (the largest capacity of a worker, A6);
* every entry of a list or map without a bound (V9b, V14, V15, V17, V19–V21, V42–V45): their cost has none either;
* what the operator itself answers once it is stored, so that it does no harm and a backup with it can be restored:
  names that no Service can have (F10), external endpoints (V6, V7), more replicas than may run (V12, V12b, V37, V37b),
  and combinations of which it runs or wires only what works (V1, V13, V22–V22c, V31–V34, V36, V41).

A stored object that broke a rule before the rule came stays editable (decision A7). The API server sees to that where
a rule is about one value that did not change; a rule over a whole block has an `excuse` for what the stored block
broke already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.api import constants as c
from inferencecache.api.quantity import Quantity

Block = Mapping[str, Any]

FORBIDDEN: Final = "FieldValueForbidden"
REQUIRED: Final = "FieldValueRequired"
INVALID: Final = "FieldValueInvalid"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a schema node (`x-kubernetes-validations`).

    `cel` says when `self` is good, and `holds` says the same of the JSON value. `row` is its number in spec 02. The
    finding is about `field` below the node, if that is given, and `reason` is the reason of its `metav1.StatusCause`.
    `excuse` says, in CEL, when what is stored (`oldSelf.value()`) excuses a breach.
    """

    row: str
    cel: str
    holds: Callable[[Any], bool]
    message: str
    field: str = ""
    reason: str = INVALID
    excuse: str = ""

    @property
    def text(self) -> str:
        """The rule as the API server evaluates it."""
        return f"({self.cel}) || (oldSelf.hasValue() && {self.excuse})" if self.excuse else self.cel


def _broken_before(cel: str) -> str:
    """The excuse that the stored block breaks the rule as well."""
    stored = re.sub(r"\bself\b", "oldSelf.value()", cel)
    return f"!({stored})"


def _at(value: Any, *path: str) -> Any:
    """A field below a block; None if it, or a block above it, is absent."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _has(value: Any, *path: str) -> bool:
    return _at(value, *path) is not None


# ----------------------------------------------------------------------------------------------------- single values


def _positive_quantity(value: Any) -> bool:
    try:
        return Quantity(value) > Quantity(0)
    except ValueError:
        return False


_NUMBER: Final = "[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"
_EXTREME: Final = "[eE][+-]?[0-9]{3}"
_LONGEST_NUMBER: Final = 100
_LIFETIME: Final = "[+]?(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+"


def _positive_number(value: str) -> bool:
    if not value or re.fullmatch(_NUMBER, value) is None:
        return not value
    return len(value) > _LONGEST_NUMBER or re.search(_EXTREME, value) is not None or float(value) > 0


def _positive_lifetime(value: str) -> bool:
    return re.fullmatch(_LIFETIME, value) is not None and re.search("[1-9]", value) is not None


POSITIVE_CAPACITY: Final = Rule(
    "V18",
    "quantity(string(self)).isGreaterThan(quantity('0'))",
    _positive_quantity,
    "capacity must be greater than zero: give an amount such as 20Gi",
)
POSITIVE_RATIO: Final = Rule(
    "V28",
    # What is too long or too extreme for double() would be an error, which no stored value is forgiven: the webhook's.
    f"self == '' || (self.matches('^{_NUMBER}$') && (size(self) > {_LONGEST_NUMBER}"
    f" || self.matches('{_EXTREME}') || double(self) > 0.0))",
    _positive_number,
    "ratio must be a finite number greater than zero, such as 2.0",
)
POSITIVE_LIFETIME: Final = Rule(
    "P1",
    f"self.matches('^{_LIFETIME}$') && self.matches('[1-9]')",
    _positive_lifetime,
    "evictionTTL must be greater than zero, such as 30m: the index would quietly use its default",
)
UNRESERVED_TENANT: Final = Rule(
    "T1",
    f"self != '{c.RESERVED_PROBE_TENANT}'",
    lambda value: bool(value != c.RESERVED_PROBE_TENANT),
    "tenantID is reserved for the self-test: pick another id",
)
NO_CLAIMS: Final = Rule(
    "V16",
    "size(self) == 0",
    lambda value: not value,
    "claims are not supported, the rendered Pod would not declare them: remove claims",
    reason=FORBIDDEN,
)


# ---------------------------------------------------------------------------------------------------- blocks, by kind


def _never(
    row: str,
    cel: str,
    broken: Callable[[Block], bool],
    field: str,
    message: str,
    reason: str = INVALID,
    excuse: str = "",
) -> Rule:
    """A combination that may not be; `cel` and `broken` say when it is there."""
    good = f"!({cel})"
    return Rule(row, good, lambda block: not broken(block), message, field, reason, excuse or _broken_before(good))


ORDERED_REPLICAS: Final = _never(
    "",
    "has(self.minReplicas) && self.minReplicas > self.maxReplicas",
    lambda block: _has(block, "minReplicas") and block["minReplicas"] > block["maxReplicas"],
    "",
    "minReplicas must be less than or equal to maxReplicas: lower it, or raise maxReplicas",
)


CHAIN_NEEDS_MATCHING: Final = _never(
    "P2",
    "has(self.strategy) && has(self.strategy.requireChain) && self.strategy.requireChain"
    " && has(self.strategy.enableChainMatching) && !self.strategy.enableChainMatching",
    lambda spec: bool(_at(spec, "strategy", "requireChain")) and _at(spec, "strategy", "enableChainMatching") is False,
    "",
    "strategy.requireChain needs strategy.enableChainMatching: enable it, or remove requireChain",
)


_MANAGED: Final = f"(self.ownership == '{c.OWNERSHIP_MANAGED}')"
_EXTERNAL: Final = f"(self.ownership == '{c.OWNERSHIP_EXTERNAL}')"
_BLANK: Final = "(!has(self.endpoint) || self.endpoint.trim() == '')"


def _is_external(storage: Block) -> bool:
    return bool(storage["ownership"] == c.OWNERSHIP_EXTERNAL)


def _is_blank(storage: Block) -> bool:
    return not (_at(storage, "endpoint") or "").strip()


def _block_rules(provider: str, block: str) -> tuple[Rule, Rule]:
    """Whose settings a typed block holds."""
    return (
        _never(
            "V8",
            f"has(self.{block}) && self.provider != '{provider}'",
            lambda s: _has(s, block) and s["provider"] != provider,
            f".{block}",
            f"{block} belongs to provider {provider}: remove it, or select that provider",
            FORBIDDEN,
        ),
        _never(
            "V8b",
            f"has(self.{block}) && {_EXTERNAL}",
            lambda s: _has(s, block) and _is_external(s),
            f".{block}",
            f"{block} configures a store we run: remove it, or set ownership Managed",
            FORBIDDEN,
        ),
    )


STORAGE: Final[tuple[Rule, ...]] = (
    _never(
        "V5",
        f"{_MANAGED} && !{_BLANK}",
        lambda s: not _is_external(s) and not _is_blank(s),
        ".endpoint",
        "managed providers publish their observed endpoint in status.endpoint: remove it, or set ownership External",
        FORBIDDEN,
    ),
    *_block_rules(c.PROVIDER_REDIS, "redis"),
    *_block_rules(c.PROVIDER_LMCACHE_SERVER, "lmCacheServer"),
    *_block_rules(c.PROVIDER_MOONCAKE, "mooncake"),
)
"""Rules V5–V8b, over `spec.remoteStorage`."""


# --------------------------------------------------------------------------------------------- the spec of a backend

_HICACHE: Final = f"(has(self.type) && self.type == '{c.TYPE_HICACHE}')"
_LMCACHE: Final = f"(!has(self.type) || self.type == '{c.TYPE_LMCACHE}')"
_SGLANG: Final = f"(self.runtime == '{c.RUNTIME_SGLANG}')"
_EVENTS_ONLY: Final = (
    f"(has(self.integration) && has(self.integration.mode) && self.integration.mode == '{c.MODE_EVENTS_ONLY}')"
)


def _is_hicache(spec: Block) -> bool:
    return spec.get("type") == c.TYPE_HICACHE


def _is_lmcache(spec: Block) -> bool:
    return spec.get("type") in (None, c.TYPE_LMCACHE)


def _is_sglang_lmcache(spec: Block) -> bool:
    return spec["runtime"] == c.RUNTIME_SGLANG and _is_lmcache(spec)


def _is_events_only(spec: Block) -> bool:
    return bool(_at(spec, "integration", "mode") == c.MODE_EVENTS_ONLY)


def _has_worker(spec: Block) -> bool:
    return _is_sglang_lmcache(spec) and not _is_events_only(spec)


BACKEND: Final[tuple[Rule, ...]] = (
    _never(
        "V2",
        f"has(self.lmCache) && !{_LMCACHE}",
        lambda s: _has(s, "lmCache") and not _is_lmcache(s),
        ".lmCache",
        f"lmCache is only valid with spec.type={c.TYPE_LMCACHE}: remove it, or change the type",
        FORBIDDEN,
    ),
    _never(
        "V11",
        "has(self.replicas) && self.replicas == 0 && has(self.autoscaling) && !has(self.autoscaling.minReplicas)",
        lambda s: s.get("replicas") == 0 and _has(s, "autoscaling") and not _has(s, "autoscaling", "minReplicas"),
        ".autoscaling.minReplicas",
        "spec.replicas=0 gives no floor to autoscaling: set minReplicas, or remove autoscaling to scale to zero",
        REQUIRED,
    ),
    _never(
        "A6",
        f"{_SGLANG} && {_LMCACHE} && !{_EVENTS_ONLY} && has(self.lmCache)"
        " && has(self.lmCache.chunkSizeTokens) && self.lmCache.chunkSizeTokens > 65536",
        lambda s: _has_worker(s) and (_at(s, "lmCache", "chunkSizeTokens") or 0) > 65536,
        ".lmCache.chunkSizeTokens",
        "the SGLang worker accepts 1-65536 tokens: choose a smaller chunkSizeTokens",
    ),
    _never(
        "V23",
        f"has(self.hiCache) && !{_HICACHE}",
        lambda s: _has(s, "hiCache") and not _is_hicache(s),
        ".hiCache",
        f"hiCache is only valid with spec.type={c.TYPE_HICACHE}: remove it, or change the type",
        FORBIDDEN,
    ),
    _never(
        "V24",
        f"{_HICACHE} && !has(self.hiCache)",
        lambda s: _is_hicache(s) and not _has(s, "hiCache"),
        ".hiCache",
        f"hiCache is needed for spec.type={c.TYPE_HICACHE}: set sizeGB or ratio in it",
        REQUIRED,
    ),
    _never(
        "V25",
        f"{_HICACHE} && has(self.hiCache) && !has(self.hiCache.sizeGB)"
        " && (!has(self.hiCache.ratio) || self.hiCache.ratio == '')",
        lambda s: (
            _is_hicache(s)
            and _has(s, "hiCache")
            and not _has(s, "hiCache", "sizeGB")
            and not _at(s, "hiCache", "ratio")
        ),
        ".hiCache",
        "hiCache needs exactly one of sizeGB and ratio: set one",
        REQUIRED,
    ),
    _never(
        "V26",
        f"{_HICACHE} && has(self.hiCache) && has(self.hiCache.sizeGB)"
        " && has(self.hiCache.ratio) && self.hiCache.ratio != ''",
        lambda s: _is_hicache(s) and _has(s, "hiCache", "sizeGB") and bool(_at(s, "hiCache", "ratio")),
        ".hiCache",
        "sizeGB and ratio of hiCache are mutually exclusive: set exactly one",
    ),
)
"""Rules over `spec` of a CacheBackend, in the order of their rows."""

ALL: Final[tuple[Rule, ...]] = (
    POSITIVE_CAPACITY,
    POSITIVE_RATIO,
    POSITIVE_LIFETIME,
    UNRESERVED_TENANT,
    NO_CLAIMS,
    ORDERED_REPLICAS,
    CHAIN_NEEDS_MATCHING,
    *STORAGE,
    *BACKEND,
)
"""Every rule of every schema."""
