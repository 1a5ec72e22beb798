"""Finalizers: a promise to clean up before an object may go.

Put the finalizer on before making anything that must be cleaned up, take it off after the last of it is gone. Both are
safe against concurrent writers: the list of finalizers belongs to everybody, so it is changed by a JSON patch that the
server refuses if the list is not the one we saw; then it is read again.
"""

from __future__ import annotations

from typing import Any, Final

from inferencecache.kube.client import Client
from inferencecache.kube.errors import Conflict, Invalid, NotFound
from inferencecache.kube.resource import Key, Kind, Manifest

_ATTEMPTS: Final = 5


def is_being_deleted(obj: Kind) -> bool:
    """Whether the object is only kept by finalizers any more."""
    return bool(getattr(obj.metadata, "deletion_timestamp", None))


def has_finalizer(obj: Kind, finalizer: str) -> bool:
    """Whether the object, as its view shows it, carries the finalizer."""
    return finalizer in (getattr(obj.metadata, "finalizers", None) or ())


async def add_finalizer(client: Client, obj: Kind, finalizer: str) -> bool:
    """Put a finalizer on; true if it was not there.

    Nothing is sent if the view already shows it. An object that is being deleted gets none, the server would refuse.
    Raises `NotFound` if the object is gone or was made anew under another uid.
    """
    if has_finalizer(obj, finalizer) or is_being_deleted(obj):
        return False
    return await _change(client, obj, finalizer, present=True)


async def remove_finalizer(client: Client, obj: Kind, finalizer: str) -> bool:
    """Take a finalizer off; true if it was there. An object that is already gone is no error."""
    if not has_finalizer(obj, finalizer):
        return False
    try:
        return await _change(client, obj, finalizer, present=False)
    except NotFound:
        return False


async def _change(client: Client, obj: Kind, finalizer: str, *, present: bool) -> bool:
    resource, key = obj.resource, Key.of(obj)
    for attempt in range(1, _ATTEMPTS + 1):
        live = await client.get_manifest(resource, key)
        if live["metadata"]["uid"] != obj.metadata.uid:
            raise NotFound(f"{resource.kind} {key} was deleted and made anew; this is another object", status=404)
        patch = _patch(live, finalizer, present=present)
        if patch is None:
            return False
        try:
            await client.patch(resource, key, patch, type="json")
        except (Conflict, Invalid):  # a failed `test` of a JSON patch is answered with 422
            if attempt == _ATTEMPTS:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def _patch(live: Manifest, finalizer: str, *, present: bool) -> list[dict[str, Any]] | None:
    path = "/metadata/finalizers"
    now: list[str] = live["metadata"].get("finalizers") or []
    if (finalizer in now) == present or (present and live["metadata"].get("deletionTimestamp")):
        return None
    wanted = [*now, finalizer] if present else [one for one in now if one != finalizer]
    same_version = {"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]}
    if not wanted:
        return [same_version, {"op": "remove", "path": path}]
    return [same_version, {"op": "add", "path": path, "value": wanted}]
