"""ZMQ sockets on an event loop, without `zmq.asyncio`: that costs a task and a future per message, and engines send
thousands a second. Here a socket is waited for once, and then read until it is empty.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import zmq

_Socket = zmq.Socket[bytes]
_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_SCHEMES: Final = frozenset({"tcp", "ipc", "inproc"})


async def readable(*sockets: _Socket) -> None:
    """Wait until one of the sockets has something to read, and let other work have its turn in any case."""
    for socket in sockets:
        if has_input(socket):
            await asyncio.sleep(0)
            return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    # The descriptor only says that something changed since the events were last asked for, so whoever asks and finds
    # nothing has to wait for it, and must not wait while there is something.
    while True:
        for socket in sockets:
            loop.add_reader(socket.FD, wake)
        try:
            await woken
        finally:
            for socket in sockets:
                loop.remove_reader(socket.FD)
        if any(map(has_input, sockets)):
            return
        woken = loop.create_future()


def received(socket: _Socket) -> list[bytes] | None:
    """The next message, if there is one; its frames."""
    try:
        frame = socket.recv(_NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame.bytes]
    while frame.more:  # to ask the socket whether there is more, as recv_multipart does, takes as long as to receive it
        frame = socket.recv(_NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames


def has_input(socket: _Socket) -> bool:
    """Whether there is something to read."""
    return int(socket.getsockopt(_EVENTS)) & _POLLIN != 0


def connect(socket: _Socket, endpoint: str) -> None:
    """Begin to connect a socket, and go on until it is closed.

    Raises:
        zmq.ZMQError: nothing can connect there.
    """
    # For addresses only: a name may mean both families, and engines bind IPv4 unless told otherwise.
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.connect(endpoint)


def check_endpoint(flag: str, endpoint: str, ranks: int) -> None:
    """Whether a socket can connect to an endpoint of so many ranks.

    Raises:
        ValueError: it cannot; `flag` is named.
    """
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme not in _SCHEMES or not rest:
        raise ValueError(f"{flag}={endpoint}: no address of ZMQ; write tcp://host:port")
    host, _, port = rest.rpartition(":")
    numbered = re.fullmatch("[0-9]{1,5}", port) is not None and 0 < int(port) <= 65_536 - ranks
    if scheme == "tcp" and not (host and numbered):
        raise ValueError(f"{flag}={endpoint}: needs a host, and a port with room for {ranks} rank(s)")
    if scheme != "tcp" and ranks > 1:
        raise ValueError(f"{flag}={endpoint}: several ranks need tcp, with a port to count from")
    try:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            connect(socket, endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{flag}={endpoint}: nothing can connect there ({error.strerror})") from error
