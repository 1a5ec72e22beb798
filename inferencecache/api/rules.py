"""The rules of the schemas beyond types, bounds and closed lists: in CEL, for the API server, and in Python.

There are three, and clients count on that (spec 01 §1). Every other rule is the webhook's. The API server asks no
webhook about an object that its schema refuses, so a fourth rule would keep users from being told all at once; and a
backup with an object that slipped past admission could not be restored, although the operator has an answer to it.
While the webhook is down nothing gets past it either (`failurePolicy: Fail`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferencecache.api.quantity import Quantity

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a schema node: `cel` says when `self` is good, and `holds` says the same of the JSON value."""

    cel: str
    holds: Callable[[Any], bool]
    message: str


def _positive_quantity(value: Any) -> bool:
    try:
        return Quantity(value) > Quantity(0)
    except ValueError:
        return False


def _ordered_replicas(block: Block) -> bool:
    lowest = block.get("minReplicas")
    return lowest is None or bool(lowest <= block["maxReplicas"])


def _chain_has_matching(spec: Block) -> bool:
    strategy = spec.get("strategy") or {}
    return not strategy.get("requireChain") or strategy.get("enableChainMatching") is not False


POSITIVE_CAPACITY: Final = Rule(
    "quantity(string(self)).isGreaterThan(quantity('0'))",
    _positive_quantity,
    "capacity must be greater than zero: give an amount such as 20Gi",
)
ORDERED_REPLICAS: Final = Rule(
    "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
    _ordered_replicas,
    "minReplicas must be less than or equal to maxReplicas: lower it, or raise maxReplicas",
)
CHAIN_NEEDS_MATCHING: Final = Rule(
    "!has(self.strategy) || !has(self.strategy.requireChain) || !self.strategy.requireChain"
    " || !has(self.strategy.enableChainMatching) || self.strategy.enableChainMatching",
    _chain_has_matching,
    "strategy.requireChain needs strategy.enableChainMatching: enable it, or remove requireChain",
)

ALL: Final[tuple[Rule, ...]] = (POSITIVE_CAPACITY, ORDERED_REPLICAS, CHAIN_NEEDS_MATCHING)
"""Every rule of every schema."""
