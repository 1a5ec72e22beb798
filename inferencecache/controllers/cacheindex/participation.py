"""`status.indexParticipation` of a CacheBackend: what the index holds of its engines (spec 05 §7.3).

The field is this loop's alone; all others of the status are the CacheBackend reconciler's. The patch names
every member of it, with nulls for absent ones, so its outcome does not depend on what was there before.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cacheindex.attribution import Share
from inferencecache.controllers.cacheindex.rates import rate_text
from inferencecache.kube.conditions import timestamp


def participation(backend: CacheBackend, share: Share | None) -> dict[str, Any] | None:
    """The field to write, or None if nothing is to be said, or it is said already.

    Args:
        backend: whose status it is.
        share: what its replicas add up to; None if it has none, which resets what was published. A backend that
            selects nothing and never had a replica stays without the field.
    """
    published = backend.status.index_participation
    if share is None and published is None and not backend.selector:
        return None
    share = share or Share()
    t2_hit_rate = hit_rate(share)
    after: dict[str, Any] = {
        "prefixCount": share.prefix_count,
        "lastEventAt": None if share.last_event is None else timestamp(share.last_event),
        "hitRate": None,
        "t2HitRate": None if t2_hit_rate is None else rate_text(t2_hit_rate),
    }
    if published is not None:
        before = {
            "prefixCount": published.prefix_count,
            "lastEventAt": _whole_seconds(published.last_event_at),
            "hitRate": published.hit_rate,
            "t2HitRate": published.t2_hit_rate,
        }
        if before == after:
            return None
    return after


def hit_rate(share: Share) -> float | None:
    """How much of what was asked of the second tier it had, from 0 to 1; None if nothing was asked."""
    if share.t2_query_tokens <= 0:
        return None
    return min(share.t2_hit_tokens / share.t2_query_tokens, 1.0)


def _whole_seconds(time: str | None) -> str | None:
    """A published time as we would write it; others may have kept fractions."""
    try:
        return timestamp(datetime.fromisoformat(time)) if time else None
    except ValueError:
        return time
