"""Batches that an engine still has, asked for again (spec 08 §3, §15 facts 1 and 2).

One request gets all batches from a number on, as far as the engine keeps them. The reply may have holes: the engine
drops what a slow reader has not taken, and a batch that failed to encode is nowhere. The marker at its end says nothing
about that, so whoever reads has to look at the numbers.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from typing import Final

import zmq

from inferencecache.subscriber.sockets import connect, readable, received

PATIENCE: Final = 3.0
"""Seconds without a message before a reply is given up."""

_NUMBER: Final = struct.Struct(">Q")
_END: Final = b"\xff" * 8
_BUFFERED: Final = 2_000
"""Messages that may wait here, so that a large replay does not take the memory that this process has not got. The
engine drops what does not fit into its own buffer either; it is asked for again."""


class NoReplay(Exception):
    """The engine does not answer."""


async def replay(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start: int, patience: float = PATIENCE
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Number and payload of the batches from `start` on that the engine has, in order, perhaps with holes.

    Raises:
        NoReplay: nothing came for `patience` seconds, and the reply had not ended.
    """
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvhwm = _BUFFERED
        try:
            connect(dealer, endpoint)
            dealer.send_multipart([b"", _NUMBER.pack(start)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise NoReplay(f"{endpoint}: {error.strerror}") from error
        while True:
            message = received(dealer)
            if message is None:
                try:
                    async with asyncio.timeout(patience):
                        await readable(dealer)
                except TimeoutError as error:
                    raise NoReplay(f"{endpoint}: no answer within {patience:g} s") from error
            elif len(message) < 2 or len(message[-2]) != _NUMBER.size or message[-2] == _END:
                return  # the end, or nothing that an engine sends
            else:
                yield _NUMBER.unpack(message[-2])[0], message[-1]
