"""Bringing an owned object to the state its owner wants, with no request when it is there already (decision F1).

A child is written by server-side apply, so that fields others own survive; what others put where only the owner may
decide is taken out first. An object of the child's name that the owner does not control is never touched, whoever has
it. What is compared may come from a cache: each write carries the uid it was decided on, so that it cannot hit a
namesake that came since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from inferencecache.kube.client import Client, with_owner
from inferencecache.kube.drift import FieldPath, abandoned, covers, stray
from inferencecache.kube.errors import KubeError, NotFound
from inferencecache.kube.resource import Key, Kind, Manifest


class ChildConflict(KubeError):
    """An object has the name of a child and is not controlled by its owner; `holder` is who controls it, or empty.

    Nothing need wake the owner when that object goes, so it is looked for once a minute.
    """

    retry_within = timedelta(minutes=1)

    def __init__(self, kind: str, key: Key, holder: str = "") -> None:
        who = f"is controlled by {holder}" if holder else "is controlled by nobody"
        super().__init__(f"{kind} {key} exists and {who}; rename or delete it, it will not be changed")
        self.kind = kind
        self.key = key
        self.holder = holder


async def apply_child(
    client: Client,
    desired: Manifest,
    live: Manifest | Kind | None,
    owner: Kind,
    authoritative: Sequence[FieldPath] = (),
    *,
    blocks_deletion: bool = True,
) -> Manifest | None:
    """Make the child as desired; returns it if something was written, `None` if nothing differed.

    `live` is the object as last seen, whole or as a view with its `spec` in plain values; `None` if it was not seen,
    which is then checked live. Under the `authoritative` paths nothing survives that is not desired. A child that is
    being deleted is left to go. A Service cannot change between headless and not, and is made anew. `blocks_deletion`
    is that of the owner reference.

    Raises `ChildConflict` if the object is not controlled by `owner`, and `Conflict` if it changed, or came, meanwhile.
    """
    key = Key(desired["metadata"].get("namespace", ""), desired["metadata"]["name"])
    desired = with_owner(desired, owner, blocks_deletion=blocks_deletion)
    if live is None:
        found = await _read(client, desired)
    else:
        found = live if isinstance(live, dict) else msgspec.json.decode(msgspec.json.encode(live))
    if found is None:
        return await client.apply_new(desired)
    metadata: dict[str, Any] = found.get("metadata", {})
    _check_controller(desired["kind"], key, metadata, owner)
    if metadata.get("deletionTimestamp"):
        return None
    if _must_be_made_anew(desired, found):
        resource, _ = await client.locate(desired)
        await client.delete(resource, key, uid=metadata["uid"])
        return await client.apply_new(desired)

    surplus = stray(desired, found, authoritative)
    if surplus:
        resource, _ = await client.locate(desired)
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        surplus["metadata"] = {**surplus.get("metadata", {}), **version}
        await client.patch(resource, key, surplus)
    elif covers(desired, found) and not abandoned(desired, found, client.field_manager):
        return None
    return await client.apply({**desired, "metadata": {**desired["metadata"], "uid": metadata["uid"]}})


async def _read(client: Client, desired: Manifest) -> Manifest | None:
    resource, key = await client.locate(desired)
    try:
        return await client.get_manifest(resource, key)
    except NotFound:
        return None


def _check_controller(kind: str, key: Key, metadata: dict[str, Any], owner: Kind) -> None:
    controller = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), None)
    if controller is None:
        raise ChildConflict(kind, key)
    if controller.get("uid") != owner.metadata.uid:
        raise ChildConflict(kind, key, f"{controller.get('kind')} {controller.get('name')} ({controller.get('uid')})")


def _must_be_made_anew(desired: Manifest, live: Manifest) -> bool:
    if desired["kind"] != "Service":
        return False
    address = live.get("spec", {}).get("clusterIP")
    return bool(address) and (address == "None") != (desired.get("spec", {}).get("clusterIP") == "None")
