"""What the shared log holds, and how it looks in a stream entry.

A record is what a server accepted: a report, an event, or a document that the controller pushed. Records travel in
batches, one per stream entry, so that under load the store's cost per record vanishes. `origin` names the life of the
server that accepted them, and the records of one origin are counted from 1 without holes. That makes a record which was
appended twice (the connection broke before the answer) recognisable, and a record that is missing too.

A body is what the producer sent, in the encoding of the wire contract, so servers of different versions share a log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

UPDATE: Final = "update"
EVENT: Final = "event"
DOCUMENT: Final = "document"
KINDS: Final = frozenset((UPDATE, EVENT, DOCUMENT))

_OVERHEAD_BYTES: Final = 200


class Record(NamedTuple):
    """Something a server accepted.

    Attributes:
        kind: what the body is: an UPDATE (`CacheStateUpdate`), an EVENT (`CacheEvent`), or the DOCUMENT called `name`.
            A newer server may know more kinds.
        body: bytes.
        name: of a document, else empty.
    """

    kind: str
    body: bytes
    name: str = ""

    @property
    def size(self) -> int:
        """Bytes it takes in a buffer, about."""
        return len(self.body) + _OVERHEAD_BYTES


class Batch(NamedTuple):
    """Consecutive records of one origin; `sequence` is the number of the first."""

    origin: str
    sequence: int
    records: Sequence[Record]


class UnreadableEntry(ValueError):
    """A stream entry that no server wrote."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Record]).decode


def encode(batch: Batch) -> dict[str, str | bytes | int]:
    """The fields of the stream entry for `batch`."""
    return {"origin": batch.origin, "sequence": batch.sequence, "records": _encode(batch.records)}


def decode(fields: Mapping[bytes, bytes]) -> Batch:
    """The batch in a stream entry.

    Raises:
        UnreadableEntry: a field is missing or makes no sense.
    """
    try:
        return Batch(fields[b"origin"].decode(), int(fields[b"sequence"]), _decode(fields[b"records"]))
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise UnreadableEntry(f"unreadable log entry: {error}") from error
