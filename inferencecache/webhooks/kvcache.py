"""The webhooks of the KV cache pool's own kinds: validating, and closed when in doubt (spec 10 §4).

Other objects are always read live: what an informer holds may lag behind the very `kubectl apply` whose next document
is under judgement, and creates are rare. Of Bindings, which may be many, only the claims are decoded, and of pools what
can be read, so that one that cannot be keeps no Binding from another pool. Only the API server's own word that an
object is absent counts as absent; a look-up that fails refuses the request as an internal error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Protocol, TypeVar

from inferencecache.api.kvcache import DEFAULT_DOMAIN
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.api.model import CustomObject, DecodeError
from inferencecache.api.stored import StoredPool
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.kinds import ObjectMeta, View
from inferencecache.kube.resource import Key
from inferencecache.webhooks.objects import answer_to, new_object, old_object, unreadable
from inferencecache.webhooks.review import Answer, Handler, Request, allowed, denied
from inferencecache.webhooks.validation.kvcachebackend import validate_kv_cache_backend
from inferencecache.webhooks.validation.kvcachepool import needs_backend, validate_kv_cache_pool
from inferencecache.webhooks.validation.kvcachepoolbinding import (
    NOWHERE,
    Claim,
    Neighbourhood,
    ceiling_moved,
    is_well_formed,
    validate_kv_cache_pool_binding,
)

LOOKUP_TIMEOUT: Final = timedelta(seconds=6)
"""Below the deadline of a webhook, so that the refusal says what could not be looked up."""

T = TypeVar("T", bound=CustomObject)


class PoolReader(Protocol):
    """Where the webhooks read other objects, live. All methods raise `KubeError` or `TimeoutError`."""

    async def find(self, kind: type[T], name: str) -> T | None:
        """The cluster-scoped object of that name, or None if the API server says there is none."""

    async def pools(self) -> Sequence[StoredPool]:
        """All pools."""

    async def claims(self) -> Sequence[Claim]:
        """The claims of all Bindings, in all namespaces."""


class ApiReader(Protocol):
    """What is asked of the API server (`inferencecache.kube.client.Client`)."""

    async def get(self, kind: Any, key: Key) -> Any: ...
    async def list(self, kind: Any) -> list[Any]: ...


class LivePools:
    """A `PoolReader` that asks the API server."""

    def __init__(self, client: ApiReader) -> None:
        self._client = client

    async def find(self, kind: type[T], name: str) -> T | None:
        """See `PoolReader`."""
        try:
            found: T = await self._client.get(kind, Key("", name))
        except NotFound:
            return None
        return found

    async def pools(self) -> Sequence[StoredPool]:
        """See `PoolReader`."""
        return await self._client.list(StoredPool)

    async def claims(self) -> Sequence[Claim]:
        """See `PoolReader`."""
        found: list[_ClaimView] = await self._client.list(_ClaimView)
        return [
            Claim(one.metadata.namespace, one.metadata.name, one.spec.pool_ref.name, one.spec.domain.name)
            for one in found
        ]


class _PoolRefView(View, frozen=True):
    name: str = ""


class _DomainView(View, frozen=True):
    name: str = DEFAULT_DOMAIN


class _ClaimSpecView(View, frozen=True):
    pool_ref: _PoolRefView = _PoolRefView()
    domain: _DomainView = _DomainView()


class _ClaimView(View, frozen=True):
    resource: ClassVar[Any] = KVCachePoolBinding.resource

    metadata: ObjectMeta = ObjectMeta()
    spec: _ClaimSpecView = _ClaimSpecView()


@dataclass(frozen=True)
class PoolHandlers:
    """The webhooks of one process for the three kinds; `dtype_owned` is the setting of spec 10 §13."""

    reader: PoolReader
    dtype_owned: bool
    lookup_timeout: timedelta = LOOKUP_TIMEOUT

    @property
    def objects(self) -> dict[str, Handler]:
        """The webhooks by their path."""
        return {
            "/validate-worker-gpustack-ai-v1-kvcachebackend": self.validate_backend,
            "/validate-worker-gpustack-ai-v1-kvcachepool": self.validate_pool,
            "/validate-worker-gpustack-ai-v1-kvcachepoolbinding": self.validate_binding,
        }

    async def validate_backend(self, request: Request) -> Answer:
        """Judge a KVCacheBackend (spec 10 §4.3, §14)."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(KVCacheBackend, request)
        except DecodeError as error:
            return unreadable(request, error)
        return answer_to(new, validate_kv_cache_backend(new, old_object(KVCacheBackend, request)))

    async def validate_pool(self, request: Request) -> Answer:
        """Judge a KVCachePool (spec 10 §4.1)."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(KVCachePool, request)
        except DecodeError as error:
            return unreadable(request, error)
        old = old_object(KVCachePool, request)
        backend: KVCacheBackend | None = None
        if needs_backend(new, old):
            name = new.spec.backends[0]
            try:
                async with self._in_time():
                    backend = await self.reader.find(KVCacheBackend, name)
            except (KubeError, TimeoutError) as error:
                return _lookup_failed(f"KVCacheBackend {name}", error)
        return answer_to(new, validate_kv_cache_pool(new, old, backend=backend))

    async def validate_binding(self, request: Request) -> Answer:
        """Judge a KVCachePoolBinding (spec 10 §4.2)."""
        if request.operation == "DELETE":
            return allowed()
        try:
            new = new_object(KVCachePoolBinding, request)
        except DecodeError as error:
            return unreadable(request, error)
        old = old_object(KVCachePoolBinding, request)
        try:
            async with self._in_time():
                around = await self._around(new, old)
        except (KubeError, TimeoutError) as error:
            return _lookup_failed(f"what KVCachePool {new.pool} has to do with", error)
        return answer_to(new, validate_kv_cache_pool_binding(new, old, dtype_owned=self.dtype_owned, around=around))

    async def _around(self, new: KVCachePoolBinding, old: KVCachePoolBinding | None) -> Neighbourhood:
        """As much of the cluster as the verdict depends on."""
        if not is_well_formed(new, old, dtype_owned=self.dtype_owned):
            return NOWHERE
        if old is not None:
            pool = await self.reader.find(StoredPool, new.pool) if ceiling_moved(new, old) else None
            return Neighbourhood(pools={new.pool: pool} if pool is not None else {})
        pools = {one.metadata.name: one for one in await self.reader.pools()}
        names = pools[new.pool].spec.backends if new.pool in pools else ()
        found = [await self.reader.find(KVCacheBackend, name) for name in names if name]
        return Neighbourhood(
            pools=pools,
            backends={one.metadata.name: one for one in found if one is not None},
            claims=tuple(await self.reader.claims()),
        )

    def _in_time(self) -> asyncio.Timeout:
        return asyncio.timeout(self.lookup_timeout.total_seconds())


def _lookup_failed(what: str, error: Exception) -> Answer:
    """Closed on a failed look-up, and never mistaken for an absent object."""
    return denied(500, "InternalError", f"looking up {what} failed: {error or type(error).__name__}; try again")
