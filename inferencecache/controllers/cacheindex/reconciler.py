"""One scrape of the server and the writes that follow from it (spec 05 §7.1).

The poller is a controller with one key that asks to be looked at again every interval, so it has what all of them
have: it runs on the leader only, a bug or a stuck scrape ends one pass, and failures are counted, logged and
tried again sooner than the interval.

The three kinds of status are independent of one another: trouble with one is told at the end and holds up no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.api.cacheindex import CacheIndex
from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.cacheindex.attribution import attribute
from inferencecache.controllers.cacheindex.index_status import index_status
from inferencecache.controllers.cacheindex.participation import participation
from inferencecache.controllers.cacheindex.snapshot import Snapshot, parse
from inferencecache.controllers.cacheindex.tier2_series import Tier2Series
from inferencecache.controllers.dataplane.client import Endpoint
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.policy.document import TENANTS, policy_document
from inferencecache.controllers.policy.owners import owners
from inferencecache.controllers.policy.tenant_status import tenant_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import AlreadyExists, KubeError
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status

SINGLETON: Final = Key("", "cluster-default")


class CacheIndexReconciler:
    """Polls the server. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        indexes: Informer[CacheIndex],
        backends: Informer[CacheBackend],
        policies: Informer[CachePolicy],
        tenants: Informer[CacheTenant],
        pods: Informer[Pod],
        endpoint: Endpoint,
        interval: timedelta,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._indexes = indexes
        self._backends = backends
        self._policies = policies
        self._tenants = tenants
        self._pods = pods
        self._endpoint = endpoint
        self._interval = interval
        self._now = now
        self._tier2 = Tier2Series()

    async def reconcile(self, _key: Key) -> Result:
        """Scrape once. Raises what went wrong, to be retried within the interval."""
        try:
            await self._tick()
        except KubeError as error:
            error.retry_within = self._interval
            raise
        return Result(self._interval)

    async def _tick(self) -> None:
        index = await self._ensured()
        self._tier2.forget_others(Key.of(backend) for backend in self._backends.list())
        snapshot = parse(await self._endpoint.get())
        failures = [
            await self._participations(snapshot),
            await self._index(index, snapshot),
            await self._tenant_statuses(snapshot),
        ]
        for failure in failures:
            if failure is not None:
                raise failure

    async def _ensured(self) -> CacheIndex | None:
        """The singleton, made if need be, so that it is there before the server is; None if the kind is not served."""
        index = self._indexes.get(SINGLETON)
        if index is not None or self._indexes.missing:
            return index
        resource = CacheIndex.resource
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": SINGLETON.name},
            "spec": {},
        }
        try:
            return CacheIndex.decode(await self._client.create(manifest))
        except AlreadyExists:
            return await self._client.get(CacheIndex, SINGLETON)

    async def _participations(self, snapshot: Snapshot) -> KubeError | None:
        backends = self._backends.list()
        found = attribute(snapshot.replicas or (), self._pods.get, backends)
        # That a Pod is gone is believed only while we would hear of it: what cannot be seen is not reported as gone.
        unknown = frozenset() if self._pods.connected(time.monotonic()) else found.missed
        self._tier2.observe(found.shares, unknown)
        changes = {
            key: change
            for backend in backends
            if backend.metadata.namespace not in unknown
            and (change := participation(backend, found.shares.get(key := Key.of(backend)))) is not None
        }

        async def write(backend: CacheBackend) -> None:
            key = Key.of(backend)
            # With the uid, a namesake made meanwhile does not get it. The version does not matter: nobody else writes
            # this field.
            body = {"metadata": {"uid": backend.metadata.uid}, "status": {"indexParticipation": changes[key]}}
            await self._client.patch(CacheBackend.resource, key, body, subresource="status")

        changed = [backend for backend in backends if Key.of(backend) in changes]
        return await write_each(changed, write, what="index participation")

    async def _index(self, index: CacheIndex | None, snapshot: Snapshot) -> KubeError | None:
        if index is None:
            return None
        now, url = self._now(), self._endpoint.url

        def decide(live: CacheIndex) -> dict[str, Any] | None:
            return index_status(live.status, snapshot, url, now)

        return await write_each([index], partial(self._write_status, decide), what="index status")

    async def _tenant_statuses(self, snapshot: Snapshot) -> KubeError | None:
        tenants = self._tenants.list()
        by_id = owners(tenants)
        entries = {row.tenant_id: row.index_entries for row in snapshot.tenants or ()}
        left_out = policy_document(self._policies.list(), tenants).left_out.get(TENANTS, frozenset())
        now = self._now()

        def decide(live: CacheTenant) -> dict[str, Any] | None:
            return tenant_status(live, by_id, entries, left_out, now)

        return await write_each(tenants, partial(self._write_status, decide), what="tenant status")

    async def _write_status(self, decide: Callable[[Any], dict[str, Any] | None], obj: Any) -> None:
        await write_status(self._client, obj, decide)
