"""Checks 10–12: the stores, pools and bindings of the KV cache pool (spec 10 §5–§11).

The controller has already worked out what is wrong and says so in `status`; what these checks add is the remedy, and
what only shows when the objects are laid side by side: claims of pools that are gone, bindings to pools that are not
there, and domains that sit at their grant and so lose objects with every write. A phase that says nothing is wrong is
not doubted.

Cluster-scoped kinds are left out when one namespace was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import Condition
from inferencecache.doctor.checks.reads import unread
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.observe import Observations
from inferencecache.kube.resource import Key

HOLD_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "InUse": "delete the pools that claim it first",
        "HeldByBindings": "delete the KVCachePoolBindings it names",
        "HeldByWorkloads": "remove the workloads it names; nothing has to be drained",
        "LedgerNotReleased": "let the domains it names be drained, or, if the master does not answer, bring that back; "
        "it is tried again every 30 seconds. docs/doctor.md says how to give it up",
        "LedgerRequestFailed": "draining changes nothing: see what the conditions of the pool say of the master",
    }
)
"""What ends a held deletion, by the reason of its condition (spec 10 §10, §11)."""

_TROUBLED: Final = frozenset({k.PHASE_ERROR, k.PHASE_DEGRADED})


@dataclass(frozen=True, slots=True)
class _Family:
    """The codes of one kind, and the condition that tells of a held deletion."""

    check: Check
    kind: str
    trouble: str
    coming: str
    held: str
    hold: str


_STORES: Final = _Family(Check.STORES, "kvcachebackend", "KB001", "KB002", "KB003", k.DELETABLE)
_POOLS: Final = _Family(Check.POOLS, "kvcachepool", "KP001", "KP002", "KP003", k.RELEASABLE)
_BINDINGS: Final = _Family(Check.BINDINGS, "kvcachepoolbinding", "KN001", "KN002", "KN003", k.RELEASABLE)


def check_stores(seen: Observations) -> Iterator[Finding]:
    """KB001 to KB005 for every KVCacheBackend, in the order of their names."""
    if seen.stores is None or not seen.stores.served:
        return
    yield from unread(Check.STORES, KVCacheBackend.resource.kind, seen.stores)
    pools = None
    if seen.pools is not None and not seen.pools.failure:
        pools = {pool.metadata.name for pool in seen.pools.items}
    for store in sorted(seen.stores.items, key=Key.of):
        name = _STORES.kind + "/" + str(Key.of(store))
        found = list(_progress(_STORES, name, store))
        if pools is not None:
            gone = [used.name for used in store.status.used_by if used.kind == "KVCachePool" and used.name not in pools]
            if gone:
                found.append(
                    Finding(
                        "KB004",
                        Check.STORES,
                        name,
                        f"status.usedBy names pools that do not exist: {', '.join(gone)}. Such a claim holds no "
                        "deletion, and their entries may still be in the store's ledger, where nothing takes them away",
                    )
                )
        yield from found or [Finding("KB005", Check.STORES, name, _phase(store))]


def check_pools(seen: Observations) -> Iterator[Finding]:
    """KP001 to KP005 for every KVCachePool, in the order of their names."""
    if seen.pools is None or not seen.pools.served:
        return
    yield from unread(Check.POOLS, KVCachePool.resource.kind, seen.pools)
    for pool in sorted(seen.pools.items, key=Key.of):
        name = _POOLS.kind + "/" + str(Key.of(pool))
        found = list(_progress(_POOLS, name, pool))
        within = _condition(pool.status.conditions, k.QUOTA_WITHIN_TOTAL)
        if within is not None and within.status == "False":
            found.append(
                Finding(
                    "KP004",
                    Check.POOLS,
                    name,
                    f"{within.reason}: {within.message}. Grants may be cut in proportion: raise spec.quota.total, or "
                    "lower ceilings",
                )
            )
        yield from found or [Finding("KP005", Check.POOLS, name, _phase(pool))]


def check_bindings(seen: Observations) -> Iterator[Finding]:
    """KN001 to KN006 for every KVCachePoolBinding, in the order of their names."""
    if not seen.bindings.served:
        return
    yield from unread(Check.BINDINGS, KVCachePoolBinding.resource.kind, seen.bindings)
    pools = None
    if seen.pools is not None and not seen.pools.failure:
        pools = {pool.metadata.name for pool in seen.pools.items}
    for binding in sorted(seen.bindings.items, key=Key.of):
        name = _BINDINGS.kind + "/" + str(Key.of(binding))
        found = list(_progress(_BINDINGS, name, binding))
        if pools is not None and binding.pool not in pools:
            found.append(
                Finding(
                    "KN005",
                    Check.BINDINGS,
                    name,
                    f"there is no KVCachePool {binding.pool}: nothing is granted. Create it, or delete the binding",
                )
            )
        found += _filled(name, binding)
        found += _claimed_by_nobody(name, binding, seen)
        yield from found or [Finding("KN006", Check.BINDINGS, name, _phase(binding))]


def _progress(family: _Family, name: str, obj: KVCacheBackend | KVCachePool | KVCachePoolBinding) -> Iterator[Finding]:
    """What the phase says, and if the object is going, what holds it."""
    status = obj.status
    if obj.metadata.deletion_timestamp:
        hold = _condition(status.conditions, family.hold)
        if hold is not None and hold.status != "True":
            told = f"deletion is held, {hold.reason}: {hold.message}"
            remedy = HOLD_REMEDIES.get(hold.reason)
            yield Finding(family.held, family.check, name, f"{told}. Remedy: {remedy}" if remedy else told)
    elif status.phase in _TROUBLED:
        yield Finding(family.trouble, family.check, name, _phase(obj))
    elif status.phase != k.PHASE_READY:
        yield Finding(
            family.coming,
            family.check,
            name,
            _phase(obj) if status.phase else "no phase yet: the controller has not come to it, or does not run",
        )


def _filled(name: str, binding: KVCachePoolBinding) -> Iterator[Finding]:
    """A quota is where the store starts to discard, not where it refuses; no counter tells of it (seed: Full-quota)."""
    usage, grant = binding.status.usage, binding.status.effective_quota
    if usage is None or grant is None or not grant.value or usage < grant:
        return
    over = binding.status.over_quota
    yield Finding(
        "KN004",
        Check.BINDINGS,
        name,
        f"domain {binding.spec.domain.name} holds {usage.text} of {grant.text} granted: the store discards its objects "
        f"to admit new ones{', and the grant was cut below what it held' if over else ''}. Raise spec.quota.ceiling "
        "if hits are lost by it",
    )


def _claimed_by_nobody(name: str, binding: KVCachePoolBinding, seen: Observations) -> Iterator[Finding]:
    """Consumers write their claims themselves, and one that is gone without a word holds a deletion for ever."""
    if seen.backends.failure:
        return
    namespace = binding.metadata.namespace
    here = {backend.metadata.name for backend in seen.backends.items if backend.metadata.namespace == namespace}
    gone = [used.name for used in binding.status.used_by if used.kind == "CacheBackend" and used.name not in here]
    if gone:
        yield Finding(
            "KN007",
            Check.BINDINGS,
            name,
            f"status.usedBy names CacheBackends that do not exist: {', '.join(gone)}. Deleting the binding would be "
            "held by them: take them out of its status",
        )


def _phase(obj: KVCacheBackend | KVCachePool | KVCachePoolBinding) -> str:
    phase, message = obj.status.phase or "no phase", obj.status.phase_message
    return f"{phase}: {message}" if message else phase


def _condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((one for one in conditions if one.type == kind), None)
