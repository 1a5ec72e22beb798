"""Tenant rules that a test sets as it goes."""

from __future__ import annotations

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Rules:
    """Every tenant as it is without a policy, until a test says otherwise."""

    def __init__(self, ttl_us: int = 30 * MINUTE) -> None:
        self.default_ttl_us = ttl_us
        self.ttls: dict[str, int] = {}
        self.lfu: set[str] = set()
        self.quotas: dict[str, int] = {}

    def ttl_us(self, tenant: str) -> int:
        return self.ttls.get(tenant, self.default_ttl_us)

    def is_lfu(self, tenant: str) -> bool:
        return tenant in self.lfu

    def max_entries(self, tenant: str) -> int | None:
        return self.quotas.get(tenant)
