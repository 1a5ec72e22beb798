"""When each engine's sidecar was last heard, as the server's snapshot tells (spec 06 §4.2).

A sidecar reports its engine's load every few seconds, whether or not the engine caches anything. So an engine that has
stored nothing for an hour is idle while its sidecar is heard, and lost when it is not; the time of the last KV event
alone cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from inferencecache.kube.resource import Key


def heard(document: object) -> dict[Key, datetime] | None:
    """The last word of each replica, by the namespace and name of its Pod; None if this is no snapshot."""
    if not isinstance(document, Mapping) or "replicas" not in document:
        return None
    found: dict[Key, datetime] = {}
    rows = document["replicas"]
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        key = Key(str(row.get("tenant") or ""), str(row.get("replicaId") or ""))
        times = [time for time in map(instant, (row.get("lastUpdate"), row.get("lastEventAt"))) if time is not None]
        if times:
            found[key] = max(times)
    return found


def instant(text: object) -> datetime | None:
    """A timestamp with a zone; None if it is none. What never was arrives as the year 1, which is long ago enough."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
