"""Whether an owner is there to stay, asked live before something is written for it.

The deletion of an owner may reach a cache later than that of its children: without the question a reconciler would make
anew what is just being cleaned up, and leave it behind (decision F2).
"""

from __future__ import annotations

from inferencecache.kube.client import Client
from inferencecache.kube.errors import NotFound
from inferencecache.kube.finalizers import is_being_deleted
from inferencecache.kube.resource import Key, Kind


class OwnerIsLeaving(Exception):
    """The owner is gone, is another object by now, or is being deleted: nothing is to be written for it."""


class Staying:
    """Asks once, at the first `check`; one of these is for one pass."""

    def __init__(self, client: Client, owner: Kind) -> None:
        self._client = client
        self._owner = owner
        self._checked = False

    async def check(self) -> None:
        """Return if the owner stays. Raises `OwnerIsLeaving`, and `KubeError` if it could not be asked."""
        if self._checked:
            return
        try:
            now = await self._client.get(type(self._owner), Key.of(self._owner))
        except NotFound:
            raise OwnerIsLeaving from None
        if now.metadata.uid != self._owner.metadata.uid or is_being_deleted(now):
            raise OwnerIsLeaving
        self._checked = True
