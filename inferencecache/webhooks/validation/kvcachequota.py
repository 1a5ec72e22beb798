"""Amounts of the KV cache pool: bytes that a store can count (spec 10 §4.1, §4.2)."""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.api.kvcache import MAX_BYTES
from inferencecache.api.quantity import Quantity
from inferencecache.webhooks.validation.findings import Violation, invalid


def positive_bytes(rule: str, field: str, amount: Quantity) -> Iterator[Violation]:
    """An amount above zero that fits into an int64; whether it fits is asked first, so a huge negative one does not."""
    if not -MAX_BYTES - 1 <= int(amount) <= MAX_BYTES:
        yield invalid(rule, field, amount, f"does not fit into 64 bits: at most {MAX_BYTES} bytes")
    elif amount.value <= 0:
        yield invalid(rule, field, amount, "must be greater than zero: give an amount such as 20Gi")
