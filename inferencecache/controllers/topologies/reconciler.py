"""Pushes all PDTopologies to the server whenever one or a Pod of its pools changes, and every interval.

Every change names the same key, as for policies. Most Pods of a cluster are nobody's replicas: `concerns` keeps their
changes from waking anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from inferencecache.api.pdtopology import PDTopology
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.dataplane.telling import push_then_tell
from inferencecache.controllers.topologies.document import TOPOLOGIES, topologies_document
from inferencecache.controllers.topologies.pools import resolve
from inferencecache.controllers.topologies.status import topology_status
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key

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
        topologies, now = self._topologies.list(), self._now()
        resolved = {
            Key.of(topology): (topology, resolve(topology, self._pods.list(topology.metadata.namespace)))
            for topology in topologies
        }
        built = topologies_document(resolved)

        def status(live: PDTopology, failure: str) -> dict[str, Any] | None:
            key = Key.of(live)
            _, pools = resolved[key]
            return topology_status(live, pools, left_out=key in built.left_out[TOPOLOGIES], failure=failure, now=now)

        return await push_then_tell(
            self._client, self._pusher, built.document, topologies, status, what="topology status"
        )
