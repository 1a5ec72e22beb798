"""One rank's stream of events: heard, put in order, repaired where messages are missing (decision D3, spec 08 §3).

The socket connects, and goes on connecting, by itself; its monitor tells what it is at. The stream is followed by its
numbers. What a gap lacks is asked for on the engine's replay socket, if there is one; meanwhile nothing is read from
the stream, whose messages wait in the socket and then at the engine, which never waits for anybody. What cannot be
had (or is nowhere, spec 08 §15 fact 1) may have held removals, so the rank's holds are in doubt: they are dropped, and
built up again from what follows. The same is done when the connection is lost: this process lives beside the engine,
so the engine is gone, and its cache with it; and a new one may have counted as far as the old one before it is heard.

Whoever starts later than the engine asks for everything from the beginning.

Topics are looked at here rather than by the socket, so that a stream under another topic can be told from silence.
Engines use the empty topic unless they are told one, so it is taken, too.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final

import structlog
import zmq
from msgspec import Struct
from zmq.utils.monitor import parse_monitor_message

from inferencecache.subscriber.replay import PATIENCE, NoReplay, replay
from inferencecache.subscriber.sequence import Meaning, Sequence
from inferencecache.subscriber.sockets import connect, has_input, readable, received

MAX_REQUESTS: Final = 16
"""Requests for one repair; then holes are taken as they are."""

_NUMBER: Final = struct.Struct(">Q")
_BURST_SECONDS: Final = 0.02
"""For which messages are taken before other work gets its turn; a turn costs as much as some messages."""
_BURST: Final = 8
"""Batches of a replay taken before other work gets its turn."""
_BUFFERED: Final = 64
"""Messages that may wait here, as a long prompt's takes hundreds of kilobytes; more of them wait at the engine."""
_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

_log = structlog.get_logger(__name__)


class SourceCounts(Struct):
    """What happened, since the process began."""

    messages: int = 0
    foreign: int = 0
    """Messages under another topic."""
    gaps: int = 0
    replayed: int = 0
    """Batches that came by replay."""
    holes: int = 0
    """Times that something could not be had again."""
    restarts: int = 0
    connections: int = 0
    losses: int = 0


class Source:
    """Follows one rank, and hands its batches on.

    Args:
        context: of all sockets.
        endpoint: of the rank's publisher.
        on_batch: given each payload, in order, exactly once.
        on_loss: told that what the rank was known to hold is void.
        topic: what the first frame begins with.
        replay_endpoint: of the rank's replay socket; empty if it has none.
        redial: seconds between attempts to connect.
        patience: seconds to wait for a replay.

    Attributes:
        connected: whether there is a connection.
        last_message: when the last message under the right topic came, by the loop's clock; None before the first.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        on_batch: Callable[[bytes], None],
        on_loss: Callable[[], None],
        topic: str = "kv-events",
        replay_endpoint: str = "",
        redial: float = 1.0,
        patience: float = PATIENCE,
    ) -> None:
        self.endpoint = endpoint
        self.counts = SourceCounts()
        self.connected = False
        self.last_message: float | None = None
        self.foreign_topic: str | None = None
        """A topic that was met and not taken."""
        self._context = context
        self._on_batch = on_batch
        self._on_loss = on_loss
        self._topic = topic.encode()
        self._replay_endpoint = replay_endpoint
        self._redial = redial
        self._patience = patience
        self._sequence = Sequence()
        self._refused = False
        self._empty_topic_told = False
        self._log = _log.bind(endpoint=endpoint)

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        with self._context.socket(zmq.SUB) as sub:
            sub.linger = 0
            sub.rcvhwm = _BUFFERED
            sub.reconnect_ivl = max(int(self._redial * 1000), 1)
            sub.subscribe(b"")
            with sub.get_monitor_socket(_WATCHED) as monitor:
                connect(sub, self.endpoint)
                try:
                    await self._follow(sub, monitor)
                finally:
                    sub.disable_monitor()

    async def _follow(self, sub: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        while True:
            await readable(sub, monitor)
            # First what the socket is at: a message of a new engine comes after the loss of the old one.
            while has_input(monitor) and (event := received(monitor)) is not None:
                await self._heard_of(parse_monitor_message(event)["event"], sub)
            await self._take_burst(sub)

    async def _take_burst(self, sub: zmq.Socket[bytes]) -> None:
        now = asyncio.get_running_loop().time
        end = now() + _BURST_SECONDS
        while now() < end:
            message = received(sub)
            if message is None:
                return
            await self._take(message)

    async def _heard_of(self, event: Any, sub: zmq.Socket[bytes]) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected, self._refused = True, False
            self.counts.connections += 1
            self._log.info("subscribed to engine KV events", topic=self._topic.decode())
            await self._begin()
        elif event == zmq.EVENT_DISCONNECTED and self.connected:
            while (message := received(sub)) is not None:  # what the engine said before it went
                await self._take(message)
            self.connected = False
            self.counts.losses += 1
            self._sequence.forget()
            self._on_loss()
            self._log.warning("the connection to the engine's KV events is lost", retry_seconds=self._redial)
        elif not self.connected:
            tell = self._log.debug if self._refused else self._log.warning
            self._refused = True
            tell("no connection to the engine's KV events", retry_seconds=self._redial)

    async def _begin(self) -> None:
        """Ask for what the engine said before it was heard."""
        if self._replay_endpoint and self._sequence.due is None:
            await self._repair(0, None)

    async def _take(self, message: list[bytes]) -> None:
        if not self._is_ours(message[0]):
            return
        self.counts.messages += 1
        self.last_message = asyncio.get_running_loop().time()
        payload = message[-1]
        if len(message) < 3 or len(message[-2]) != _NUMBER.size:
            self._on_batch(payload)  # unnumbered: there is nothing to follow
            return
        number = _NUMBER.unpack(message[-2])[0]
        meaning = self._sequence.judge(number)
        if meaning is Meaning.RESTART:
            self.counts.restarts += 1
            self._log.warning("the engine's KV events begin anew: it was restarted", number=number)
            self._on_loss()
            meaning = Meaning.FIRST
        if meaning is Meaning.GAP or (meaning is Meaning.FIRST and number > 0):
            await self._catch_up(number)
        if self._sequence.due is None or self._sequence.due <= number:
            self._apply(number, payload)

    def _is_ours(self, topic: bytes) -> bool:
        if topic.startswith(self._topic):
            return True
        if not topic:
            if not self._empty_topic_told:
                self._empty_topic_told = True
                self._log.warning("the engine publishes under the empty topic; it is taken", topic=self._topic.decode())
            return True
        self.counts.foreign += 1
        if self.foreign_topic is None:
            self.foreign_topic = topic[:256].decode(errors="replace")
            self._log.warning(
                "the engine publishes under another topic, which is not taken; give it as --topic",
                topic=self._topic.decode(),
                its_topic=self.foreign_topic,
            )
        return False

    def _apply(self, number: int, payload: bytes) -> None:
        self._sequence.applied(number)
        self._on_batch(payload)

    async def _catch_up(self, number: int) -> None:
        """Get what is missing before `number`, or drop what is in doubt without it."""
        due = self._sequence.due
        if due is not None:
            self.counts.gaps += 1
            self._log.warning("KV events are missing", first=due, last=number - 1, replay=self._replay_endpoint)
        if self._replay_endpoint:
            await self._repair(due or 0, number)
        if self._sequence.due is not None and self._sequence.due < number:
            self._doubt(number)

    async def _repair(self, start: int, end: int | None) -> None:
        """Apply what the engine still has from `start` on: up to `end`, if that can be reached, and beyond."""
        for _ in range(MAX_REQUESTS):
            try:
                whole = await self._read_replay(start, end)
            except NoReplay as error:
                self._log.warning("KV events cannot be replayed", error=str(error))
                return
            due = self._sequence.due
            if due is None or due == start or (whole and (end is None or due >= end)):
                return
            start = due
        self._log.warning("KV events have too many holes to have them all replayed", due=self._sequence.due)

    async def _read_replay(self, start: int, end: int | None) -> bool:
        """Apply one reply up to its end, and say so; or up to a hole, which has to be asked for once more.

        The first batch of a reply cannot have been dropped on its way, so what is missing before it does not exist. If
        nothing was heard before, that is no hole: the engine remembers no more. If it is not before `end`, the reply
        has nothing that the stream does not bring, and may be of another publisher, whose numbers would make us deaf.
        """
        first = True
        async for number, payload in replay(self._context, self._replay_endpoint, start, self._patience):
            due = self._sequence.due
            if due is not None and number < due:
                continue
            if first and end is not None and number >= end and number != due:
                return True
            if due is not None and number > due:
                if not first:
                    return False
                self._doubt(number)
            first = False
            self.counts.replayed += 1
            self._apply(number, payload)
            if not self.counts.replayed % _BURST:
                await asyncio.sleep(0)
        return True

    def _doubt(self, number: int) -> None:
        """What is before `number` cannot be had, and may have held removals."""
        self.counts.holes += 1
        self._log.warning("KV events are lost for good; building up anew", first=self._sequence.due, last=number - 1)
        self._on_loss()
