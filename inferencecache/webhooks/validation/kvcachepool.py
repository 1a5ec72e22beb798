"""The verdict on a KVCachePool (spec 10 §4.1).

Its backend is read when it is created and never again: an update of a pool whose backend is gone must pass, or its
finalizer could not be removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.webhooks.validation.findings import (
    Verdict,
    Violation,
    forbidden,
    invalid,
    newly_introduced,
    not_found,
    required,
)
from inferencecache.webhooks.validation.kubernetes import is_subdomain
from inferencecache.webhooks.validation.kvcachequota import positive_bytes
from inferencecache.webhooks.validation.text import warning

_BACKENDS = "spec.backends"


def needs_backend(new: KVCachePool, old: KVCachePool | None) -> bool:
    """Whether the verdict depends on the backend: on create, if the pool is well-formed by itself."""
    return old is None and not any(_shape(new))


def validate_kv_cache_pool(
    new: KVCachePool, old: KVCachePool | None = None, *, backend: KVCacheBackend | None = None, looked: bool = True
) -> Verdict:
    """Judge a pool; with `old`, judge an update, being deleted or not.

    `backend` is what its first backend's name leads to, where `needs_backend` says so, and None if there is no such
    object. Without a cluster to look in (`looked` false) an absent backend is not held against the pool.
    """
    found = list(_shape(new))
    if old is not None:
        found = [*newly_introduced(found, _shape(old)), *_unchanged(new, old)]
        return Verdict(tuple(found))
    if found:
        return Verdict(tuple(found))
    if backend is None:
        detail = "there is no such KVCacheBackend: create it first"
        missing = not_found("pool-backend", f"{_BACKENDS}[0]", new.spec.backends[0], detail)
        return Verdict((missing,) if looked else ())
    return Verdict(warnings=tuple(_warnings(backend)))


def _shape(pool: KVCachePool) -> Iterator[Violation]:
    backends = pool.spec.backends
    if len(backends) != 1:
        yield invalid(
            "pool-singular",
            _BACKENDS,
            list(backends),
            f"a pool has exactly one backend, not {len(backends)}: quotas are kept in one store's ledger, which cannot "
            "count the bytes of another; make a pool for each",
        )
    for index, name in enumerate(backends):
        if not name:
            yield required("pool-names", f"{_BACKENDS}[{index}]", "name a KVCacheBackend")
        elif not is_subdomain(name):
            yield invalid(
                "pool-names",
                f"{_BACKENDS}[{index}]",
                name,
                "this cannot be the name of an object: give that of a KVCacheBackend",
            )
    yield from positive_bytes("pool-total", "spec.quota.total", pool.spec.quota.total)


def _unchanged(new: KVCachePool, old: KVCachePool) -> Iterator[Violation]:
    if new.spec.backends != old.spec.backends:
        yield forbidden(
            "pool-immutable",
            _BACKENDS,
            "cannot be changed: the bytes of its domains would stay on the old store; delete the pool and make another",
        )


def _warnings(backend: KVCacheBackend) -> Iterator[str]:
    if backend.multi_tenant is False:
        yield warning(
            "KVCacheBackend {} keeps no ledger (multiTenancy is false): no per-tenant quota, one reuse domain",
            backend.metadata.name,
        )
