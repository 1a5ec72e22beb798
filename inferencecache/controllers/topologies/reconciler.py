"""Pushes all PDTopologies to the server whenever one or a Pod of its pools changes, and every interval.

Every change names the same key, as for policies. Most Pods of a cluster are nobody's replicas: `concerns` keeps their
changes from waking anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from inferencecache.api.pdtopology import PDTopology
from inferencecache.controllers.dataplane.client import ServerCallError
from inferencecache.controllers.dataplane.fan_out import write_each
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.topologies.document import topologies_document
from inferencecache.controllers.topologies.pools import resolve
from inferencecache.controllers.topologies.status import topology_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from inferencecache.kube.status import write_status

DOCUMENT: Final = Key("", "topologies")


class TopologyPushReconciler:
    """Keeps the server's topologies those of the cluster. `now` gives the wall-clock time, with a time zone."""

    def __init__(
        self,
        *,
        client: Client,
        topologies: Informer[PDTopology],
        pods: Informer[Pod],
        pusher: Pusher,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._topologies = topologies
        self._pods = pods
        self._pusher = pusher
        self._now = now

    def concerns(self, change: Change[Pod]) -> bool:
        """Whether the pools of some topology consist of other Pods because of this change."""
        nearby = self._topologies.list(change.key.namespace)
        if not nearby:
            return False
        before, after = ([pod] if pod is not None else [] for pod in (change.old, change.new))
        return any(resolve(topology, before) != resolve(topology, after) for topology in nearby)

    async def reconcile(self, _key: Key) -> Result:
        """Push what the caches hold. Raises why that, or the status of a topology, did not succeed."""
        if self._topologies.missing:
            return Result()
        topologies = self._topologies.list()
        resolved = {
            Key.of(topology): (topology, resolve(topology, self._pods.list(topology.metadata.namespace)))
            for topology in topologies
        }
        built = topologies_document(resolved)
        failure: ServerCallError | None = None
        again = None
        try:
            again = await self._pusher.push(built.document, empty=not topologies)
        except ServerCallError as error:
            failure = error
        why, now = str(failure) if failure is not None else "", self._now()

        def decide(live: PDTopology) -> dict[str, Any] | None:
            key = Key.of(live)
            pushed, pools = resolved[key]
            # A newer generation than the one that was pushed is the next pass's to judge.
            if live.metadata.generation != pushed.metadata.generation:
                return None
            return topology_status(live, pools, left_out=key in built.left_out, failure=why, now=now)

        async def write(topology: PDTopology) -> None:
            await write_status(self._client, topology, decide)

        unwritten = await write_each(topologies, write, what="topology status")
        if failure is not None:
            raise failure
        if unwritten is not None:
            raise unwritten
        return Result(again)
