"""Objects as we last wrote them, for as long as a cache is behind (read your writes).

A write answers with the object as it then is; the watch tells of it a moment later. A reconciler that looks into the
cache in between sees the object as it was before: it would write again, or ask the API server what it already knows.
Versions of one object grow, so they say which copy is newer.

A copy is dropped when the watch has told of that version, of a later one, or of the object's end. One that the watch
never tells of, as it was made and deleted while nobody watched, is not believed for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Generic

from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.resource import K, Key

BELIEVED_FOR: Final = timedelta(seconds=30)


class OwnWrites(Generic[K]):
    """The objects of an informer, or what we wrote where that is newer. `clock` gives monotonic seconds."""

    def __init__(self, informer: Informer[K], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._informer = informer
        self._clock = clock
        self._written: dict[Key, tuple[float, K]] = {}
        informer.on_change(self._told)

    def __len__(self) -> int:
        return len(self._written)

    def get(self, key: Key) -> K | None:
        """The newer of what the cache holds and what we wrote; None if neither knows the object."""
        when, written = self._written.get(key, (0.0, None))
        if written is None:
            return self._informer.get(key)
        if self._clock() - when < BELIEVED_FOR.total_seconds():
            return written
        del self._written[key]
        return self._informer.get(key)

    def answered(self, obj: K) -> None:
        """Remember what the API server answered to a write, or to the read after one that it refused."""
        key = Key.of(obj)
        cached = self._informer.get(key)
        if cached is None or _is_older(cached, obj):
            self._written[key] = self._clock(), obj

    def _told(self, change: Change[K]) -> None:
        known = self._written.get(change.key)
        if known is not None and _has_caught_up(change, known[1]):
            del self._written[change.key]


def _has_caught_up(change: Change[K], written: K) -> bool:
    if change.new is not None:
        return not _is_older(change.new, written)
    # The end of another object of this name may be why we made ours.
    return change.obj.metadata.uid == written.metadata.uid


def _is_older(one: K, other: K) -> bool:
    try:
        return int(one.metadata.resource_version) < int(other.metadata.resource_version)
    except ValueError:
        return False
