"""A pool as its administrator wants to see it: who holds how much of it, under which grant, and what holds it back.

Everything shown is what the objects say; no master is asked, so the view works wherever the API server can be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.quantity import Quantity

_PHASES_TO_EXPLAIN: Final = (k.PHASE_ERROR, k.PHASE_PROVISIONING)


@dataclass(frozen=True, slots=True)
class DomainRow:
    """One reuse domain of a pool.

    Amounts are spelled as the objects spell them, empty where they were not observed. `fill` is usage relative to the
    grant, 1.0 for a full one and more for one that was cut below what the domain holds; None where either is unknown
    or nothing is granted. `note` says what a reader should know: why a deletion is held, why the phase is what it is.
    """

    domain: str
    binding: str
    ceiling: str
    grant: str
    usage: str
    fill: float | None
    phase: str
    used_by: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool and its domains, in the order of their names."""

    name: str
    phase: str
    note: str
    total: str
    usage: str
    fill: float | None
    ceilings: int
    endpoint: str
    rows: tuple[DomainRow, ...]

    def as_json(self) -> dict[str, Any]:
        """The view as plain JSON values."""
        return asdict(self)


def pool_view(pool: KVCachePool, bindings: Iterable[KVCachePoolBinding]) -> PoolView:
    """The view of a pool; `bindings` may be those of all pools.

    A domain that only the status still lists is shown too: its Binding was forced away, and its tenant may be left.
    """
    own = [one for one in bindings if one.pool == pool.metadata.name]
    rows = [_row(one) for one in own]
    claimed = {one.spec.domain.name for one in own}
    rows += [_orphan(domain) for domain in pool.status.domains if domain.name not in claimed]
    usage = pool.status.usage.total if pool.status.usage is not None else None
    return PoolView(
        name=pool.metadata.name,
        phase=pool.status.phase,
        note=_note(pool.status.phase, pool.status.phase_message, pool.status.conditions),
        total=str(pool.spec.quota.total),
        usage=_spelled(usage),
        fill=_fill(usage, pool.spec.quota.total),
        ceilings=sum(int(one.spec.quota.ceiling) for one in own),
        endpoint=pool.status.client_endpoint,
        rows=tuple(sorted(rows, key=lambda row: (row.domain, row.binding))),
    )


def _row(binding: KVCachePoolBinding) -> DomainRow:
    status = binding.status
    return DomainRow(
        domain=binding.spec.domain.name,
        binding=f"{binding.metadata.namespace}/{binding.metadata.name}",
        ceiling=str(binding.spec.quota.ceiling),
        grant=_spelled(status.effective_quota),
        usage=_spelled(status.usage),
        fill=_fill(status.usage, status.effective_quota),
        phase=status.phase,
        used_by=tuple(str(user) for user in status.used_by),
        note=_note(status.phase, status.phase_message, status.conditions),
    )


def _orphan(domain: Any) -> DomainRow:
    return DomainRow(
        domain=domain.name,
        binding=f"{domain.binding.namespace}/{domain.binding.name}",
        ceiling="",
        grant="",
        usage="",
        fill=None,
        phase="",
        used_by=(),
        note="the Binding is gone; the pool's next pass, or its deletion, takes the tenant off the master",
    )


def _note(phase: str, message: str, conditions: Sequence[k.PoolCondition]) -> str:
    for condition in conditions:
        if condition.type == k.RELEASABLE and condition.status != "True":
            return f"{condition.reason}: {condition.message}"
    if phase in _PHASES_TO_EXPLAIN and message:
        return message
    for condition in conditions:
        if condition.type == k.QUOTA_WITHIN_TOTAL and condition.status == "False":
            return f"{condition.reason}: {condition.message}"
    return ""


def _spelled(amount: Quantity | None) -> str:
    return "" if amount is None else str(amount)


def _fill(usage: Quantity | None, grant: Quantity | None) -> float | None:
    if usage is None or grant is None or int(grant) <= 0:
        return None
    return int(usage) / int(grant)
