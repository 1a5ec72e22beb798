"""Everything that is claimed on one master (spec 10 §6.1).

Ledger and policy file belong to the master, not to a pool. So a pass over one pool looks at all pools that name its
backend and at all their Bindings; whichever of the pools is looked at, the answer is the same.

A Binding that is being deleted and that no workload uses any longer is *releasing*: its quota is to go. A domain that
several other Bindings claim is *contested*: it is managed for none of them, so that no entry is written for the one and
deleted for the other. Admission refuses a second claim; only creations that race get past it. A claim of which nobody
can read what it asks for, which no master would take, or that cannot be kept from vanishing, is *set aside*: it is left
as it stands in the same way, and holds up no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from inferencecache.api import kvcache as k
from inferencecache.api.kvcachechain import ledger_of
from inferencecache.api.kvcachepool import DomainStatus, KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.mooncake.policy import errors_of
from inferencecache.kube.resource import Key


@dataclass(frozen=True)
class Snapshot:
    """The pools that name one backend, by name, and the Bindings of each in the order of their keys."""

    pools: Mapping[str, KVCachePool]
    bindings: Mapping[str, tuple[KVCachePoolBinding, ...]]
    unheld: Mapping[Key, str] = field(default_factory=dict)
    """Bindings that could not be given the finalizer, and why."""

    @classmethod
    def of(cls, pools: Iterable[KVCachePool], bindings: Iterable[KVCachePoolBinding]) -> Snapshot:
        """Gather it; Bindings of other pools are left out."""
        by_name = {pool.metadata.name: pool for pool in pools}
        grouped: dict[str, list[KVCachePoolBinding]] = {name: [] for name in by_name}
        for binding in bindings:
            if binding.pool in grouped:
                grouped[binding.pool].append(binding)
        return cls(by_name, {name: tuple(sorted(group, key=Key.of)) for name, group in grouped.items()})

    @cached_property
    def publishers(self) -> tuple[KVCachePool, ...]:
        """The pools that use the backend, those aside that are leaving it."""
        return tuple(
            pool
            for _, pool in sorted(self.pools.items())
            if pool.backend is not None and pool.metadata.deletion_timestamp is None
        )

    @cached_property
    def bare_publishers(self) -> tuple[KVCachePool, ...]:
        """Those of them that could vanish at any time."""
        return tuple(pool for pool in self.publishers if k.FINALIZER not in pool.metadata.finalizers)

    @cached_property
    def bare_bindings(self) -> tuple[KVCachePoolBinding, ...]:
        """The live Bindings that could vanish at any time."""
        return tuple(
            binding
            for binding in self.served
            if binding.metadata.deletion_timestamp is None and k.FINALIZER not in binding.metadata.finalizers
        )

    def without(self, bindings: Iterable[KVCachePoolBinding]) -> Snapshot:
        """The same, when these are gone."""
        gone = {Key.of(binding) for binding in bindings}
        left = Snapshot.of(self.pools.values(), (one for one in self.all_bindings if Key.of(one) not in gone))
        return left.but(self.unheld)

    def but(self, unheld: Mapping[Key, str]) -> Snapshot:
        """The same, when these could not be given the finalizer."""
        return replace(self, unheld={**self.unheld, **unheld})

    def only(self, pools: Collection[str]) -> Snapshot:
        """The same with these pools alone."""
        left = Snapshot.of((one for name, one in self.pools.items() if name in pools), self.all_bindings)
        return left.but(self.unheld)

    @cached_property
    def all_bindings(self) -> tuple[KVCachePoolBinding, ...]:
        """The Bindings of all pools."""
        return tuple(binding for group in self.bindings.values() for binding in group)

    @cached_property
    def served(self) -> tuple[KVCachePoolBinding, ...]:
        """All but those that came to a pool which was being deleted already, and which says that it takes none.

        When such a pool is gone, nobody would take out again what a sibling's pass had written for them.
        """
        return tuple(
            binding
            for binding in self.all_bindings
            if self.pools[binding.pool].metadata.deletion_timestamp is None
            or k.FINALIZER in binding.metadata.finalizers
        )

    @cached_property
    def claims(self) -> Mapping[str, tuple[KVCachePoolBinding, ...]]:
        """The Bindings that claim each domain, without those that are releasing theirs."""
        found: dict[str, list[KVCachePoolBinding]] = {}
        for binding in self.served:
            if not binding.releasing and binding.spec.domain.name:
                found.setdefault(binding.spec.domain.name, []).append(binding)
        return {domain: tuple(claimants) for domain, claimants in found.items()}

    @cached_property
    def contested(self) -> frozenset[str]:
        """The domains that several Bindings claim, or one that is set aside."""
        return frozenset(domain for domain, claimants in self.claims.items() if len(claimants) > 1) | self.set_aside

    @cached_property
    def set_aside(self) -> frozenset[str]:
        """The domains of Bindings that cannot be served, whatever others do."""
        return frozenset(domain for domain, claimants in self.claims.items() if any(map(self.trouble, claimants)))

    def trouble(self, binding: KVCachePoolBinding) -> str:
        """Why a Binding cannot be served, whatever others do; empty if it can."""
        if binding.flaw:
            return binding.flaw
        wrong = "; ".join(errors_of(binding.spec.domain.name, int(binding.spec.quota.ceiling)))
        if wrong:
            return f"no master takes it, so its quota is left as it is: {wrong}; mend or delete this Binding"
        return self.unheld.get(Key.of(binding), "")

    @cached_property
    def desired(self) -> Mapping[str, int]:
        """The bytes that each domain asks for, in the order of their names.

        A pool that names several backends, past admission, says of no master what it is to hold.
        """
        return {
            domain: int(claimants[0].spec.quota.ceiling)
            for domain, claimants in sorted(self.claims.items())
            if domain not in self.contested and self.pools[claimants[0].pool].backend is not None
        }

    @cached_property
    def registered(self) -> frozenset[str]:
        """The domains of which an entry on the master may be ours: claimed, being released, or written down before."""
        written = (domain.name for pool in self.pools.values() for domain in pool.status.domains)
        claimed = (binding.spec.domain.name for binding in self.served)
        return frozenset(name for name in (*written, *claimed) if name) - self.contested

    @cached_property
    def leaving(self) -> Mapping[str, int | None]:
        """The registered domains that nobody asks for any more, with the ceiling of the Binding that releases it.

        None: its Binding was taken away by force, or asks for nothing that there is.
        """
        ceilings = {
            binding.spec.domain.name: None if self.trouble(binding) else int(binding.spec.quota.ceiling)
            for binding in reversed(self.all_bindings)
            if binding.releasing
        }
        return {domain: ceilings.get(domain) for domain in sorted(self.registered - self.desired.keys())}

    @cached_property
    def never_registered(self) -> frozenset[str]:
        """The leaving domains that cannot have an entry: their Bindings came when the ledger was not there any more."""
        return frozenset(
            binding.spec.domain.name
            for binding in self.all_bindings
            if binding.releasing and _came_after_the_ledger(binding, self.pools[binding.pool])
        )

    @cached_property
    def missing(self) -> Mapping[str, Key]:
        """The Bindings that are not seen and that pools have written down, by the leaving domains that they had."""
        released = {binding.spec.domain.name for binding in self.all_bindings if binding.releasing}
        return {
            domain.name: Key(domain.binding.namespace, domain.binding.name)
            for pool in self.pools.values()
            for domain in pool.status.domains
            if domain.name in self.leaving and domain.name not in released
        }

    def rivals(self, binding: KVCachePoolBinding) -> tuple[Key, ...]:
        """The other Bindings that claim the same domain."""
        claimants = self.claims.get(binding.spec.domain.name, ())
        return tuple(sorted(Key.of(other) for other in claimants if Key.of(other) != Key.of(binding)))

    # ------------------------------------------------------------------------------------------- one pool's part of it

    def domains(self, pool: KVCachePool, *, gone: frozenset[str]) -> list[dict[str, Any]]:
        """`status.domains` of a pool: what its Bindings claim, and what may still be on the master without one.

        A domain whose Binding was taken away, by force or because it is releasing, stays listed until its entry is off
        the master: nothing else records who made the entry. So does that of a Binding that is set aside. `gone` are
        domains of which no entry is left.
        """
        own = self.bindings.get(pool.metadata.name, ())
        found = {
            domain.name: domain.manifest()
            for domain in pool.status.domains
            if domain.name not in gone and (domain.name not in self.claims or domain.name in self.set_aside)
        }
        for binding in own:
            domain = binding.spec.domain.name
            if not binding.releasing and domain and domain not in self.contested:
                found[domain] = _domain_status(binding).manifest()
        return [found[name] for name in sorted(found)]

    def used_by(self, pool: KVCachePool) -> list[dict[str, Any]]:
        """`status.usedBy` of a pool: its Bindings, without those that are releasing theirs."""
        own = self.bindings.get(pool.metadata.name, ())
        kind = KVCachePoolBinding.resource.kind
        return [
            {"kind": kind, "namespace": binding.metadata.namespace, "name": binding.metadata.name}
            for binding in own
            if not binding.releasing
        ]

    def asked_of(self, pool: KVCachePool) -> tuple[int, tuple[str, ...]]:
        """The sum of what a pool's Bindings ask for, in bytes, and the contested domains that are not in it."""
        own = [binding for binding in self.bindings.get(pool.metadata.name, ()) if not binding.releasing]
        counted = [one for one in own if one.spec.domain.name and one.spec.domain.name not in self.contested]
        left_out = {one.spec.domain.name for one in own} & self.contested
        return sum(int(one.spec.quota.ceiling) for one in counted), tuple(sorted(left_out))


def _came_after_the_ledger(binding: KVCachePoolBinding, pool: KVCachePool) -> bool:
    ledger = ledger_of(pool)
    # Both times are of whole seconds and spelled alike; within one second nobody knows.
    return (
        ledger is not None
        and ledger.status == "False"
        and (binding.metadata.creation_timestamp or "") > (ledger.last_transition_time or "")
    )


def _domain_status(binding: KVCachePoolBinding) -> DomainStatus:
    spec = binding.spec.domain
    return DomainStatus.model_validate(
        {
            "name": spec.name,
            "binding": {"namespace": binding.metadata.namespace, "name": binding.metadata.name},
            "blockSize": spec.block_size,
            "dtype": spec.dtype,
        }
    )
