"""Pushes all CachePolicies and quotas to the server whenever one changes, and every interval (spec 05 §8).

Every change names the same key: the document is made of all objects, so it does not matter which one it was.
"""

from __future__ import annotations

from typing import Final

import structlog

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.dataplane.push import Pusher
from inferencecache.controllers.policy.document import policy_document
from inferencecache.kube.controller import Result
from inferencecache.kube.informer import Informer
from inferencecache.kube.resource import Key
from inferencecache.wire.limits import LARGEST_POLICIES

DOCUMENT: Final = Key("", "policy")

_log = structlog.stdlib.get_logger(__name__)


class PolicyPushReconciler:
    """Keeps the server's policies and quotas those of the cluster. Writes no status."""

    def __init__(self, *, policies: Informer[CachePolicy], tenants: Informer[CacheTenant], pusher: Pusher) -> None:
        self._policies = policies
        self._tenants = tenants
        self._pusher = pusher
        self._left_out: set[tuple[Key, str]] = set()

    async def reconcile(self, _key: Key) -> Result:
        """Push what the caches hold. Raises `ServerCallError`."""
        if self._policies.missing:
            return Result()  # an installation without policies; the informer tells when the kind appears
        built = policy_document(self._policies.list(), self._tenants.list())
        left_out = {(key, name) for name, keys in built.left_out.items() for key in keys}
        if left_out - self._left_out:
            _log.warning(
                "policies or quotas are not told to the server, as all take too many bytes; delete or shorten some",
                most_bytes=LARGEST_POLICIES,
                objects=len(left_out),
                first=str(min(left_out)[0]),
            )
        self._left_out = left_out
        return Result(await self._pusher.push(built.document))
