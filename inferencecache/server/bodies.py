"""JSON bodies that the controller sends: bounded, of a declared shape, and taken as a whole or not at all."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(body: bytes, decoder: msgspec.json.Decoder[T], *, what: str, max_bytes: int, error: type[ValueError]) -> T:
    """What `body` says, if it is exactly one JSON value of the decoder's type.

    Raises:
        error: it is not, or has more than `max_bytes` bytes; the message begins with `decode` and `what` it was.
    """
    if len(body) > max_bytes:
        raise error(f"decode {what}: {len(body)} bytes are more than {max_bytes}")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise error(f"decode {what}: {cause}") from cause
