"""Documents that the server holds as a whole: each push takes the place of the one before.

A document is sent as soon as it differs from what the server last acknowledged, and again every interval, because a
server that was restarted has forgotten it and tells nobody. Building and sending happen within one pass over one key of
a work queue, which never hands a key to two workers, so that an older document cannot arrive after a newer one.

The server bounds a document's size. What does not fit is left out, row by row and newest first, as one tenant's long
rows must not keep all others' from being known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from inferencecache.controllers.dataplane.client import Endpoint, ServerCallError
from inferencecache.kube.resource import Key
from inferencecache.wire.limits import LARGEST_DOCUMENT


class Pusher:
    """Sends one document, over and over. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        method: str,
        interval: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._method = method
        self._interval = interval
        self._clock = clock
        self._acknowledged: bytes | None = None
        self._again_at = 0.0

    async def push(self, document: bytes, *, empty: bool = False) -> timedelta:
        """Send the document if it is time to; when to push again.

        An `empty` document is no loss to a server that is too old to know its address. Raises `ServerCallError`, which
        asks to be retried within the interval.
        """
        wait = self._again_at - self._clock()
        if document == self._acknowledged and wait > 0:
            return timedelta(seconds=wait)
        try:
            await self._endpoint.send_to_all(self._method, document)
        except ServerCallError as error:
            if empty and error.status == 404:
                return self._interval
            # Whether it arrived is not known, so neither is what the server holds now.
            self._acknowledged = None
            error.retry_within = self._interval
            raise
        self._acknowledged = document
        self._again_at = self._clock() + self._interval.total_seconds()
        return self._interval


class Row(NamedTuple):
    """One object's part of a document. `age` orders rows, oldest first; RFC 3339 times of one zone do."""

    key: Key
    age: str
    value: dict[str, Any]


class Fitted(NamedTuple):
    """A document, and by the name of each of its lists the objects that found no place there."""

    document: bytes
    left_out: dict[str, frozenset[Key]]


def fit(version: int, lists: Mapping[str, Sequence[Row]], largest: int = LARGEST_DOCUMENT) -> Fitted:
    """The document `{"version": …, name: [rows by namespace and name], …}` of at most `largest` bytes.

    A list takes what room the lists before it leave.
    """
    room = largest - len(_encoded(version, dict.fromkeys(lists, ())))
    fitting: dict[str, list[tuple[Key, bytes]]] = {name: [] for name in lists}
    left_out: dict[str, frozenset[Key]] = {}
    for name, rows in lists.items():
        without = set()
        for row in sorted(rows, key=lambda row: (row.age, row.key)):
            encoded = msgspec.json.encode(row.value)
            if len(encoded) + 1 > room:
                without.add(row.key)
                continue
            room -= len(encoded) + 1
            fitting[name].append((row.key, encoded))
        left_out[name] = frozenset(without)
    in_order = {name: [encoded for _, encoded in sorted(rows)] for name, rows in fitting.items()}
    return Fitted(_encoded(version, in_order), left_out)


def _encoded(version: int, lists: Mapping[str, Sequence[bytes]]) -> bytes:
    rows = {name: [msgspec.Raw(row) for row in encoded] for name, encoded in lists.items()}
    return msgspec.json.encode({"version": version, **rows})
