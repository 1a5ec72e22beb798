"""The verdict on a KVCachePoolBinding (spec 10 §4.2).

The shape is judged first, all of it; only a well-formed Binding is held against its pool, and on create against the
other Bindings: a domain is claimed once per store, and a store without tenants has room for one domain only. An update
looks at other objects only when its ceiling moved, so that a Binding can be let go of whatever became of its pool.
Creates that race may both pass; the controller reports them as contested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inferencecache.api.kvcache import listed
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.webhooks.validation.findings import (
    Verdict,
    Violation,
    duplicate,
    forbidden,
    invalid,
    newly_introduced,
    not_found,
    required,
)
from inferencecache.webhooks.validation.kvcachequota import positive_bytes
from inferencecache.webhooks.validation.text import breaks, warning

DTYPE_OF_THE_MODEL: Final = "auto"
"""The dtype that both engines read as "whatever the model has", and that so binds nothing."""

_POOL: Final = "spec.poolRef.name"
_CEILING: Final = "spec.quota.ceiling"
_NAME: Final = "spec.domain.name"
_BLOCK_SIZE: Final = "spec.domain.blockSize"
_DTYPE: Final = "spec.domain.dtype"

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


class Claim(NamedTuple):
    """What of a Binding matters to others: who claims which domain on which pool."""

    namespace: str
    name: str
    pool: str
    domain: str

    @classmethod
    def of(cls, binding: KVCachePoolBinding) -> Claim:
        """A Binding's claim."""
        return cls(binding.metadata.namespace, binding.metadata.name, binding.pool, binding.spec.domain.name)

    @property
    def holder(self) -> str:
        """The Binding, as `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Neighbourhood:
    """What else is in the cluster. `complete` says that what is not here does not exist; offline nobody knows."""

    pools: Mapping[str, KVCachePool] = field(default_factory=dict)
    backends: Mapping[str, KVCacheBackend] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    complete: bool = True

    def sharing(self, new: KVCachePoolBinding) -> Iterator[tuple[Claim, KVCachePool, list[str]]]:
        """The claims of others on a store of this one's pool, with their pool and the shared backends, by name."""
        own, itself = self.pools.get(new.pool), Claim.of(new)[:2]
        for other in sorted(self.claims):
            theirs = self.pools.get(other.pool)
            if own is None or theirs is None or other[:2] == itself:
                continue
            shared = [name for name in own.spec.backends if name in theirs.spec.backends]
            if shared:
                yield other, theirs, shared


NOWHERE: Final = Neighbourhood(complete=False)


def is_well_formed(new: KVCachePoolBinding, old: KVCachePoolBinding | None, *, dtype_owned: bool) -> bool:
    """Whether the Binding is good by itself, which is when other objects matter."""
    return not _by_itself(new, old, dtype_owned)


def ceiling_moved(new: KVCachePoolBinding, old: KVCachePoolBinding) -> bool:
    """Whether the update asks for another amount; another spelling of it is none."""
    return new.spec.quota.ceiling != old.spec.quota.ceiling


def validate_kv_cache_pool_binding(
    new: KVCachePoolBinding,
    old: KVCachePoolBinding | None = None,
    *,
    dtype_owned: bool,
    around: Neighbourhood = NOWHERE,
) -> Verdict:
    """Judge a Binding; with `old`, judge an update, being deleted or not.

    `dtype_owned` is the setting of spec 10 §13. `around` needs the pool for an update whose ceiling moved, and pools,
    backends and claims of the whole cluster for a create.
    """
    found = _by_itself(new, old, dtype_owned)
    if found or (old is not None and not ceiling_moved(new, old)):
        return Verdict(tuple(found))
    found += _in_its_pool(new, around)
    if old is not None or found:
        return Verdict(tuple(found))
    found += _unclaimed(new, around)
    inseparable, warnings = _separable(new, around)
    found += inseparable
    return Verdict(tuple(found), () if found else (*_leaving(new, around), *warnings))


# ------------------------------------------------------------------------------------------------------- by itself


def _by_itself(new: KVCachePoolBinding, old: KVCachePoolBinding | None, dtype_owned: bool) -> list[Violation]:
    found = list(_shape(new))
    if old is not None:
        return [*newly_introduced(found, _shape(old)), *_unchanged(new, old)]
    if dtype_owned and new.spec.domain.dtype == DTYPE_OF_THE_MODEL:
        found.append(
            invalid(
                "binding-auto",
                _DTYPE,
                DTYPE_OF_THE_MODEL,
                "engines read it as the dtype of their model, so it binds nothing: name a dtype, such as bfloat16 or "
                "fp8_e4m3",
            )
        )
    return found


def _shape(binding: KVCachePoolBinding) -> Iterator[Violation]:
    spec = binding.spec
    if not spec.pool_ref.name:
        yield required("binding-pool", _POOL, "name a KVCachePool")
    yield from _domain_name(spec.domain.name)
    if spec.domain.block_size <= 0:
        yield invalid("binding-block-size", _BLOCK_SIZE, spec.domain.block_size, "must be greater than zero")
    if not spec.domain.dtype:
        yield required("binding-dtype", _DTYPE, "name the element type of the cache, such as bfloat16")
    elif spec.domain.dtype != spec.domain.dtype.lower():
        yield invalid("binding-dtype", _DTYPE, spec.domain.dtype, "must be in lower case: engines spell dtypes so")
    elif breaks(spec.domain.dtype):
        # Otherwise the text is free (spec 10 §2.2): engines know more spellings than anybody here.
        yield invalid("binding-dtype", _DTYPE, spec.domain.dtype, "may not contain control characters: remove them")
    yield from positive_bytes("binding-ceiling", _CEILING, spec.quota.ceiling)


def _domain_name(name: str) -> Iterator[Violation]:
    if not name:
        yield required("binding-domain", _NAME, "name the domain, or leave the field out for the store's own")
    elif name.startswith("_"):
        yield invalid("binding-domain", _NAME, name, "may not begin with '_': the store keeps such names to itself")
    elif breaks(name):
        yield invalid("binding-domain", _NAME, name, "may not contain control characters")
    elif not _LABEL.fullmatch(name):
        yield invalid(
            "binding-domain",
            _NAME,
            name,
            "must be a DNS label: at most 63 characters of a-z, 0-9 and '-', with a letter or digit at both ends",
        )


def _unchanged(new: KVCachePoolBinding, old: KVCachePoolBinding) -> Iterator[Violation]:
    why = "cannot be changed: {}; delete the Binding and make another"
    now, then = new.spec, old.spec
    if now.pool_ref.name != then.pool_ref.name:
        yield forbidden("binding-immutable", _POOL, why.format("the cache would stay on the old pool's store"))
    if now.domain.name != then.domain.name:
        yield forbidden("binding-immutable", _NAME, why.format("the store holds the cache under the old name"))
    if now.domain.block_size != then.domain.block_size:
        yield forbidden("binding-immutable", _BLOCK_SIZE, why.format("the cache was written in blocks of that size"))
    if now.domain.dtype != then.domain.dtype:
        yield forbidden("binding-immutable", _DTYPE, why.format("read as another dtype, the cache is garbage"))


# --------------------------------------------------------------------------------------------------- among others


def _in_its_pool(new: KVCachePoolBinding, around: Neighbourhood) -> Iterator[Violation]:
    pool = around.pools.get(new.pool)
    if pool is None:
        if around.complete:
            yield not_found("binding-pool", _POOL, new.pool, "there is no such KVCachePool: create it first")
        return
    if pool.flaw:
        yield invalid("binding-pool", _POOL, new.pool, f"this KVCachePool cannot be read, mend it first: {pool.flaw}")
        return
    total = pool.spec.quota.total
    if new.spec.quota.ceiling > total:
        yield invalid(
            "binding-ceiling",
            _CEILING,
            new.spec.quota.ceiling,
            f"is more than KVCachePool {new.pool} has in all, {total}: ask for less, or raise spec.quota.total there",
        )


def _leaving(new: KVCachePoolBinding, around: Neighbourhood) -> Iterator[str]:
    """The warning that its pool is on its way out: such a pool serves nobody new, and a new Binding only holds it."""
    pool = around.pools.get(new.pool)
    if pool is not None and pool.metadata.deletion_timestamp is not None:
        yield warning("KVCachePool {} is being deleted: this Binding gets no quota, and holds the deletion", new.pool)


def _unclaimed(new: KVCachePoolBinding, around: Neighbourhood) -> Iterator[Violation]:
    for other, _, shared in around.sharing(new):
        if other.domain == new.spec.domain.name:
            yield duplicate(
                "binding-unclaimed",
                _NAME,
                new.spec.domain.name,
                f"KVCachePoolBinding {other.holder} holds this domain on KVCacheBackend {listed(shared)}: name another "
                "domain, or use a pool of another backend",
            )
            return


def _separable(new: KVCachePoolBinding, around: Neighbourhood) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """What is wrong with a second domain on a store, or else the warning that there is one."""
    own = around.pools.get(new.pool)
    neighbours = [found for found in around.sharing(new) if found[0].domain != new.spec.domain.name]
    for other, theirs, shared in neighbours:
        for name in shared:
            if own is None or _separates(own, theirs, around.backends.get(name)):
                continue
            return (
                invalid(
                    "binding-separable",
                    _NAME,
                    new.spec.domain.name,
                    f"KVCacheBackend {name} keeps no tenants apart, and KVCachePoolBinding {other.holder} has domain "
                    f"{other.domain} on it: use that domain's Binding, or a pool of another backend",
                ),
            ), ()
    if not neighbours:
        return (), ()
    other, _, shared = neighbours[0]
    text = "KVCachePoolBinding {} is on KVCacheBackend {} too: that it keeps both apart is not checked"
    return (), (warning(text, other.holder, shared[0]),)


def _separates(one: KVCachePool, other: KVCachePool, backend: KVCacheBackend | None) -> bool:
    """Whether a shared master tells domains apart: seen not to, else as declared, else presumed (spec 10 §4.2)."""
    if one.single_tenant or other.single_tenant:
        return False
    return backend is None or backend.multi_tenant is not False
