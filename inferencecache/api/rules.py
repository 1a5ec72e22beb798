r"""The rules of the schemas beyond types and bounds: in CEL, for the API server, and in Python, for use without one.

The webhook tells all of spec 02 at once, with the values at fault. Rules of shape and value that CEL can state at a
bounded cost are here as well, so that they hold while the webhook is down; each carries the number of its row. But the
API server asks no webhook about an object that its schema refuses, and stores none. So a rule is not here where the
texts say what becomes of an object that breaks it and is stored all the same: clients rely on that answer, and a backup
with such an object can be restored. These are

* the names that no Service can have (F10), external endpoints (V6, V7), more replicas than may run (V12, V12b, V37,
  V37b), and combinations of which what works is run or wired (V1, V13, V22-V22c, V31-V34, V36, V41);
* an endpoint of a managed store, which is not read (V5, spec 03 §6); autoscaling without a floor, which begins at one
  (V11, spec 05 §2.7); HiCache without exactly one good capacity, and settings that the SGLang worker does not take,
  either of which leaves Pods unwired (V24-V28 and A6, spec 04 §4.1 and §5); a lifetime that is not above zero, in whose
  place the server takes its own (P1, spec 06 §5).

Nor are rules here about

* names that the schema does not know: other objects (P3, T2), annotations and the namespace (V35, V10), adapters
  (V38-V40, V47-V50);
* every entry of a list or map without a bound (V9b, V14, V15, V17, V19-V21, V42-V45): their cost has none either.

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


POSITIVE_CAPACITY: Final = Rule(
    "V18",
    "quantity(string(self)).isGreaterThan(quantity('0'))",
    _positive_quantity,
    "capacity must be greater than zero: give an amount such as 20Gi",
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


_EXTERNAL: Final = f"(self.ownership == '{c.OWNERSHIP_EXTERNAL}')"


def _is_external(storage: Block) -> bool:
    return bool(storage["ownership"] == c.OWNERSHIP_EXTERNAL)


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
    *_block_rules(c.PROVIDER_REDIS, "redis"),
    *_block_rules(c.PROVIDER_LMCACHE_SERVER, "lmCacheServer"),
    *_block_rules(c.PROVIDER_MOONCAKE, "mooncake"),
)
"""Rules V8 and V8b, over `spec.remoteStorage`."""


# --------------------------------------------------------------------------------------------- the spec of a backend

_HICACHE: Final = f"(has(self.type) && self.type == '{c.TYPE_HICACHE}')"
_LMCACHE: Final = f"(!has(self.type) || self.type == '{c.TYPE_LMCACHE}')"


def _is_hicache(spec: Block) -> bool:
    return spec.get("type") == c.TYPE_HICACHE


def _is_lmcache(spec: Block) -> bool:
    return spec.get("type") in (None, c.TYPE_LMCACHE)


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
        "V23",
        f"has(self.hiCache) && !{_HICACHE}",
        lambda s: _has(s, "hiCache") and not _is_hicache(s),
        ".hiCache",
        f"hiCache is only valid with spec.type={c.TYPE_HICACHE}: remove it, or change the type",
        FORBIDDEN,
    ),
)
"""Rules over `spec` of a CacheBackend, in the order of their rows."""

ALL: Final[tuple[Rule, ...]] = (
    POSITIVE_CAPACITY,
    NO_CLAIMS,
    ORDERED_REPLICAS,
    CHAIN_NEEDS_MATCHING,
    *STORAGE,
    *BACKEND,
)
"""Every rule of every schema."""
