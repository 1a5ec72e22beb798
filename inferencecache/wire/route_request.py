"""A LookupRoute request as it arrives, with a long chain left in one piece.

A request may name thousands of blocks. To make an object of each takes longer than to find them, and the index compares
them one behind the other anyway. Where all are as long as a fingerprint and stand together, as every serializer writes
them, each takes ten bytes of the message: tag, length, and the eight of its hash. That is seen by looking at every
tenth byte. The rest of the message, and a message of another shape, is parsed as any other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, overload

from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest

FEWEST: Final = 128
"""Blocks of a chain that is left in one piece."""

_WIDTH: Final = 8
_PIECE: Final = 1024  # hashes unpacked at once: `struct` keeps a hundred formats, and 32 bytes for each hash of one
_TAG: Final = b"\x3a"  # field 7, length-delimited
_LENGTH: Final = bytes((_WIDTH,))
_ENTRY: Final = len(_TAG + _LENGTH) + _WIDTH
_VARINT: Final = 0
_DELIMITED: Final = 2
_CONTINUES: Final = 0x80


class Fingerprints(Sequence[bytes]):
    """Hashes of eight bytes each, one behind the other in `packed`."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // _WIDTH

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Fingerprints: ...

    def __getitem__(self, at: int | slice) -> bytes | Fingerprints:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return Fingerprints(b"".join(list(self)[at]))
            return Fingerprints(self.packed[start * _WIDTH : stop * _WIDTH])
        place = range(len(self))[at] * _WIDTH
        return self.packed[place : place + _WIDTH]

    def __iter__(self) -> Iterator[bytes]:
        if len(self) > _PIECE:
            return chain.from_iterable(self[at : at + _PIECE] for at in range(0, len(self), _PIECE))
        return iter(struct.unpack(f"{_WIDTH}s" * len(self), self.packed))


class RouteRequest(NamedTuple):
    """A request; `blocks` are its block hashes, if they were left out of `message`."""

    message: LookupRouteRequest
    blocks: Fingerprints | None


def parse(body: bytes) -> RouteRequest:
    """Read a serialized LookupRouteRequest.

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    start = _first_block(body) if len(body) >= FEWEST * _ENTRY else None
    if start is not None and (number := _alike(body, start)) >= FEWEST:
        end = start + number * _ENTRY
        message = LookupRouteRequest.FromString(body[:start] + body[end:])
        if not message.block_hashes:
            packed = bytearray(body[start:end])
            del packed[::_ENTRY]
            del packed[:: _ENTRY - 1]
            return RouteRequest(message, Fingerprints(bytes(packed)))
    return RouteRequest(LookupRouteRequest.FromString(body), None)


def _first_block(body: bytes) -> int | None:
    """Where the first block hash stands, behind numbers and short strings; `None` if that is not so simple."""
    at, end = 0, len(body)
    while at < end - 1 and body[at] != _TAG[0]:
        tag, at = body[at], at + 1
        kind = tag & 7 if tag < _CONTINUES else None
        if kind == _DELIMITED and body[at] < _CONTINUES:
            at += 1 + body[at]
        elif kind == _VARINT:
            while at < end - 1 and body[at] >= _CONTINUES:
                at += 1
            at += 1
        else:
            return None
    return at if at < end - 1 else None


def _alike(body: bytes, start: int) -> int:
    """How many entries of a block hash of eight bytes follow one another from `start` on."""
    whole = body[start : start + (len(body) - start) // _ENTRY * _ENTRY]
    tags, lengths = whole[::_ENTRY], whole[1::_ENTRY]
    return min(len(tags) - len(tags.lstrip(_TAG)), len(lengths) - len(lengths.lstrip(_LENGTH)))
