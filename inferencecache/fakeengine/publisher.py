"""The sockets of one rank: PUB for the stream, and ROUTER for those who ask for a part of it again (spec 08 §3).

Every batch has a number, from 0. What is published is kept for replay, up to a bound. A restart begins anew in every
respect, as a new process would: connections break, numbers start at 0, and nothing earlier can be replayed.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, NamedTuple

import zmq

_SEQUENCE: Final = struct.Struct(">Q")
_END: Final = b"\xff" * 8
_BIND_SECONDS: Final = 5.0


class Faults(NamedTuple):
    """What goes wrong, each every so many batches; 0 is never.

    Attributes:
        drop: a batch does not arrive, but can be replayed.
        lose: a batch fails to encode: its number is used up, and it is nowhere.
    """

    drop: int = 0
    lose: int = 0


_NO_FAULTS: Final = Faults()


class Publisher:
    """Binds on `open`; to be used from one event loop.

    Args:
        endpoint: where PUB binds.
        topic: the first frame of every message.
        replay_endpoint: where ROUTER binds; empty: there is none.
        keep: batches that can be replayed.
        replay_topic: whether replies carry the topic, too, as those of newer engines do.
        faults: what goes wrong.
    """

    def __init__(
        self,
        endpoint: str,
        topic: str,
        *,
        replay_endpoint: str = "",
        keep: int = 10_000,
        replay_topic: bool = True,
        faults: Faults = _NO_FAULTS,
    ) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.sequence = 0
        """Of the next batch."""
        self.last_arrived = True
        """Whether the last batch was sent, so that listeners know of gaps before it."""
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._replay_topic = replay_topic
        self._faults = faults
        self._context = zmq.Context()
        self._pub: zmq.Socket[bytes] | None = None
        self._listeners = 0
        self._router: zmq.Socket[bytes] | None = None

    async def open(self) -> None:
        """Bind. `endpoint` names the port that was taken if it left the choice.

        Raises:
            OSError: an address cannot be had.
        """
        self._pub = await self._bound(zmq.XPUB, self.endpoint)
        self._pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        if self.replay_endpoint:
            self._router = await self._bound(zmq.ROUTER, self.replay_endpoint)
            self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
            asyncio.get_running_loop().add_reader(self._router.FD, self._answer)
            self._answer()

    async def _bound(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        """A bound socket; the address may be held for a moment by the socket that had it before."""
        deadline = asyncio.get_running_loop().time() + _BIND_SECONDS
        while True:
            sock: zmq.Socket[bytes] = self._context.socket(kind)
            sock.linger = 0
            sock.sndhwm = 100_000
            try:
                sock.bind(endpoint)
            except zmq.ZMQError as error:
                sock.close()
                if error.errno != zmq.EADDRINUSE or asyncio.get_running_loop().time() > deadline:
                    raise OSError(error.errno, f"cannot publish on {endpoint}: {error.strerror}") from error
                await asyncio.sleep(0.01)
            else:
                return sock

    def close(self) -> None:
        """Let go of the sockets; what has not left is lost."""
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.FD)
            self._router.close()
            self._router = None
        if self._pub is not None:
            self._pub.close()
            self._pub = None
            self._listeners = 0

    def terminate(self) -> None:
        """Close for good."""
        self.close()
        self._context.term()

    async def restart(self) -> None:
        """Be a new process."""
        self.close()
        self.sequence = 0
        self._kept.clear()
        await self.open()

    @property
    def writable(self) -> bool:
        """Whether a batch can be sent without waiting: always, as PUB drops what a slow reader leaves."""
        return self._pub is not None and bool(self._pub.poll(0, zmq.POLLOUT))

    @property
    def listeners(self) -> int:
        """Subscriptions of the moment. A batch that is published when there is one arrives."""
        while self._pub is not None and self._pub.poll(0):
            self._listeners += 1 if self._pub.recv()[:1] == b"\x01" else -1
        return self._listeners

    def publish(self, payload: bytes) -> None:
        """Send one batch to whoever listens. Never waits."""
        assert self._pub is not None
        number = self.sequence
        self.sequence += 1
        lost = _is_due(self._faults.lose, number)
        self.last_arrived = not lost and not _is_due(self._faults.drop, number)
        if not lost:
            self._kept.append((number, payload))
        if self.last_arrived:
            self._pub.send_multipart([self._topic, _SEQUENCE.pack(number), payload], zmq.NOBLOCK)

    def _answer(self) -> None:
        """Answer the requests for replay that are there."""
        router = self._router
        while router is not None and router.poll(0):
            identity, *_, start = router.recv_multipart(zmq.NOBLOCK)
            if len(start) != _SEQUENCE.size:
                continue
            first = _SEQUENCE.unpack(start)[0]
            for number, payload in self._kept:
                if number >= first:
                    self._reply(router, identity, self._topic, _SEQUENCE.pack(number), payload)
            self._reply(router, identity, b"", _END, b"")

    def _reply(self, router: zmq.Socket[bytes], identity: bytes, topic: bytes, number: bytes, payload: bytes) -> None:
        frames = (topic, number, payload) if self._replay_topic else (number, payload)
        router.send_multipart([identity, b"", *frames], zmq.NOBLOCK)


def _is_due(every: int, number: int) -> bool:
    return every > 0 and number % every == every - 1
