"""Status writes that take nothing back: decided on one version of an object, refused by the server for any other.

A merge patch replaces a list whole, `conditions` too. Decided on an object that is no longer the present one, it would
take back what somebody else set since. So each write carries the uid and the resourceVersion of what it was decided on;
if the object has moved on, it is read live and decided on again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from inferencecache.kube.client import Client
from inferencecache.kube.errors import Conflict, NotFound
from inferencecache.kube.resource import K, Key, Manifest

_ATTEMPTS: Final = 5


async def write_status(client: Client, obj: K, decide: Callable[[K], Mapping[str, Any] | None]) -> Manifest | None:
    """Merge what `decide` says about the object into its status; returns the object as it then is.

    `obj` may come from a cache: it is the first that `decide` is asked about. `decide` gives the fields that differ (a
    `None` removes one, a list replaces one), or nothing if all is said already; then nothing is sent and `None`
    returned. It is called again for each newer version, so it must depend on nothing but its argument.

    Raises `NotFound` if the object is gone or was made anew under another uid, and `Conflict` if others write without
    pause.
    """
    resource, key, uid = obj.resource, Key.of(obj), obj.metadata.uid
    for attempt in range(1, _ATTEMPTS + 1):
        status = decide(obj)
        if not status:
            return None
        version = {"uid": uid, "resourceVersion": obj.metadata.resource_version}
        try:
            return await client.patch(
                resource, key, {"metadata": version, "status": dict(status)}, subresource="status"
            )
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
        obj = await client.get(type(obj), key)
        if obj.metadata.uid != uid:
            raise NotFound(f"{resource.kind} {key} was deleted and made anew; this is another object", status=404)
    raise AssertionError("unreachable")


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes the one status the other; empty if they are equal.

    In `after`, None and an empty list or text mean absent. A field that goes is an explicit null.
    """
    wanted = {field: value for field, value in after.items() if value not in (None, "", [])}
    return {field: wanted.get(field) for field in {**before, **wanted} if before.get(field) != wanted.get(field)}
