"""What gRPC puts into HTTP/2 bodies and headers: length-prefixed messages, statuses, timeouts, compression.

A message is one byte that says whether it is compressed, four bytes of length, and the message. Sources: the gRPC over
HTTP/2 description and, for the limit, spec 06 §2.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final
from urllib.parse import quote_from_bytes

from inferencecache.wire.http2.fields import literal

MAX_MESSAGE: Final = 4 << 20
"""Bytes of one message, compressed or not; beyond it RESOURCE_EXHAUSTED."""
PREFIX: Final = 5

_MAX_TIMEOUT: Final = 366 * 86_400.0
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_STATUS_MESSAGE: Final = 1024


class Code(IntEnum):
    """The statuses that this server answers with."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Status(Exception):
    """Ends a call with something else than OK; the message is for the caller."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


OK_TRAILERS: Final = literal(b"grpc-status", b"0")


def response_head(instance: str) -> bytes:
    """`:status: 200`, and what every answer begins with. The instance tells producers that this is another life of the
    server, whose index is empty, so that they tell all they know."""
    fields = {b"content-type": b"application/grpc", b"grpc-accept-encoding": b"identity,gzip"}
    fields[b"inferencecache-instance"] = instance.encode()
    return b"\x88" + b"".join(literal(name, value) for name, value in fields.items())


def trailers(status: Status) -> bytes:
    """The field block that ends a call. The message is cut to a length that fits any peer's limit."""
    message = status.message.encode()[:_MAX_STATUS_MESSAGE]
    return literal(b"grpc-status", b"%d" % status.code) + literal(
        b"grpc-message", quote_from_bytes(message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode()
    )


def timeout(value: bytes) -> float | None:
    """Seconds of a `grpc-timeout` header, bounded to a year; None if it is not one."""
    unit = _UNITS.get(value[-1:])
    number = value[:-1]
    if unit is None or not 1 <= len(number) <= 8 or not number.isdigit():
        return None
    return min(int(number) * unit, _MAX_TIMEOUT)


def packed(message: bytes) -> bytes:
    """A message as it stands in a body."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def size_of(prefix: bytes | bytearray) -> int:
    """The length of a message, prefix included, from its first five bytes. Raises `Status` if it is too long."""
    size = int.from_bytes(prefix[1:PREFIX], "big")
    if size > MAX_MESSAGE:
        raise Status(Code.RESOURCE_EXHAUSTED, f"a message of {size} bytes; at most {MAX_MESSAGE} are taken")
    return PREFIX + size


def unpacked(prefixed: bytes, encoding: bytes) -> bytes:
    """The message of a prefix and exactly its bytes. Raises `Status`."""
    flag = prefixed[0]
    if flag == 0:
        return prefixed[PREFIX:]
    if flag != 1 or encoding == b"identity":
        raise Status(Code.INTERNAL, "a message with a compression flag that its headers do not explain")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        message = inflater.decompress(prefixed[PREFIX:], MAX_MESSAGE + 1)
    except zlib.error as error:
        raise Status(Code.INTERNAL, f"a compressed message cannot be read: {error}") from error
    if len(message) > MAX_MESSAGE:
        raise Status(Code.RESOURCE_EXHAUSTED, f"a message that is over {MAX_MESSAGE} bytes when decompressed")
    if not inflater.eof:
        raise Status(Code.INTERNAL, "a compressed message that ends too early")
    return message


class MessageReader:
    """Cuts a body that arrives in pieces into messages."""

    __slots__ = ("_rest", "_wanted")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = PREFIX

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes, each with its prefix. Raises `Status` for one that is too long."""
        # One growing buffer, as a list of the pieces would cost a peer that sends two bytes at a time fifty per piece.
        if self._rest or len(data) < self._wanted:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        complete = []
        position = 0
        while True:
            self._wanted = PREFIX
            remaining = len(data) - position
            if remaining < PREFIX:
                break
            self._wanted = size_of(data[position : position + PREFIX])
            if remaining < self._wanted:
                break
            complete.append(data[position : position + self._wanted])
            position += self._wanted
        if remaining:
            self._rest += data[position:]
        return complete

    @property
    def waiting(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._rest)
