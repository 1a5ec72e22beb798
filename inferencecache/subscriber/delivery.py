"""Telling one server what the replica holds, until it has acknowledged it (decision D5, spec 08 §8).

Changes are gathered for a *window* and then told, in order. What is not acknowledged is told again, with back-off, and
nothing is told ahead of it. The outbox is bounded, and the server's memory is soft, so there is a second way to the
same state: a *resync* voids all that the server knows of the replica, and tells it everything that is held.

A resync is due at the beginning (an earlier life of this process may have missed removals), when the outbox is void,
and when the server is in another life than the one that was told. A server names its life in every answer; one that
does not is taken to begin a new one with each connection. So a server that lost its index has it back as soon as it can
be reached, even when the engine is idle.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog
from msgspec import Struct

from inferencecache.subscriber.chain import Add, Delta
from inferencecache.subscriber.channel import DEADLINE_EXCEEDED, UNAVAILABLE, Channel, RpcError
from inferencecache.subscriber.messages import PUBLISH, REPORT, Identity, refusal
from inferencecache.subscriber.outbox import CAPACITY, PARCEL, Additions, Clearing, Outbox, Parcel
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb

RPC_SECONDS: Final = 5.0
HEALTH: Final = "/grpc.health.v1.Health/Check"
"""Asked for nothing but the answer's header, which names the server's life."""

_ACCEPTED: Final = pb.Ack(accepted=True).SerializeToString()
_LOOK_SECONDS: Final = 30.0
_AT_ONCE: Final = 512
"""Calls that are made together; each takes a kilobyte while it lasts. After each failure in a row half as many, as a
server may be too busy to answer all of them in time.
"""

_log = structlog.get_logger(__name__)


class Backoff(Struct, frozen=True):
    """Seconds between attempts: doubled from `first` to `longest`, and spread so that many producers do not come at
    the same moment.
    """

    first: float = 0.1
    longest: float = 10.0

    def after(self, failures: int) -> float:
        """How long to wait after so many failures in a row, at least one."""
        return min(self.first * float(2 ** min(failures - 1, 16)), self.longest) * random.uniform(0.5, 1.0)


class DeliveryCounts(Struct):
    """What came of it, since the process began."""

    additions: int = 0
    evictions: int = 0
    failures: int = 0
    resyncs: int = 0
    overflows: int = 0


class NotAcceptedError(Exception):
    """The server answered, and said no."""


class Delivery:
    """What one server is told; `run` does it until it is cancelled.

    Args:
        channel: to the server.
        identity: whose state it is.
        holds: all that is held, for a resync.
        moved: what is in a slower tier without being held, and since when, for a resync.
        window: seconds for which changes are gathered.
        backoff: between attempts.
        capacity: entries that may be pending.
    """

    def __init__(
        self,
        channel: Channel,
        identity: Identity,
        holds: Callable[[], Iterator[Add]],
        *,
        moved: Callable[[], Iterable[tuple[Add, int]]] = tuple,
        window: float = 0.1,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        capacity: int = CAPACITY,
    ) -> None:
        self.channel = channel
        self.counts = DeliveryCounts()
        self.outbox = Outbox(capacity)
        self.failing = 0
        """Attempts that failed in a row."""
        self._identity = identity
        self._holds = holds
        self._moved = moved
        self._window = window
        self._backoff = backoff
        self._told: str | None = None
        self._greeted = 0
        self._pending = asyncio.Event()
        self._full = asyncio.Event()

    @property
    def in_step(self) -> bool:
        """Whether the server has acknowledged everything."""
        return self._told is not None and not self.outbox.void and not len(self.outbox)

    def put(self, deltas: Iterable[Delta], timestamp_us: int) -> None:
        """Tell the server of these changes, soon. Never waits."""
        self.outbox.put(deltas, timestamp_us)
        if self.outbox.overflows > self.counts.overflows:
            self.counts.overflows = self.outbox.overflows
            _log.warning(
                "too much is pending; the server will be told all that is held", server=str(self.channel.address)
            )
        self._pending.set()
        if len(self.outbox) >= PARCEL:
            self._full.set()

    def look(self) -> None:
        """Look after the server now: the connection to it is gone."""
        self._pending.set()
        self._full.set()

    async def run(self) -> None:
        """Tell the server everything, again and again, until cancelled."""
        while True:
            try:
                await self.flush()
            except (RpcError, NotAcceptedError) as error:
                self._failed(error)
                await asyncio.sleep(self._backoff.after(self.failing))
                continue
            await self._wait()

    async def flush(self) -> None:
        """Tell the server what is pending by now; what comes up meanwhile has a window of its own.

        Raises:
            RpcError, NotAcceptedError: it was not told everything.
        """
        self._pending.clear()
        self._full.clear()
        await self.channel.connect()
        if self._greeted != self.channel.connections:
            await self._greet()
        if self._told != self._life() or self.outbox.void:
            await self._resync()
        for _ in range(self.outbox.parcels):
            parcel = self.outbox.take()
            if parcel is None:
                break
            await self._tell(parcel)
            self.outbox.delivered(parcel)
            if self._told != self._life():  # the channel had to connect anew
                await self._resync()
        if self.failing:
            _log.info("the server is told again", server=str(self.channel.address), after_failures=self.failing)
            self.failing = 0

    async def _wait(self) -> None:
        """Wait until something is pending, and then for the window to end or a parcel to be full."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._pending.wait()
        except TimeoutError:
            self._greeted = 0  # it may be gone without a word
            return
        try:
            async with asyncio.timeout(self._window):
                await self._full.wait()
        except TimeoutError:
            pass

    async def _greet(self) -> None:
        """Learn which life the server is in; it need not know the method."""
        try:
            await self.channel.call(HEALTH, b"", RPC_SECONDS)
        except RpcError as error:
            if error.code in (UNAVAILABLE, DEADLINE_EXCEEDED):
                raise
        self._greeted = self.channel.connections

    def _life(self) -> str:
        """The life of the server that answered last."""
        return self.channel.instance or f"connection {self.channel.connections}"

    async def _resync(self) -> None:
        _log.info("telling the server all that is held", server=str(self.channel.address))
        self._told = None
        self.outbox.reset()
        updates = self._identity.everything(self._holds()) + self._identity.moves(self._moved())
        life = self._life()
        await self._accepted(PUBLISH, [self._identity.clearing(Clearing(0))])
        for update in updates:
            await self._accepted(REPORT, [update])
        self._told = life
        self.counts.resyncs += 1

    async def _tell(self, parcel: Parcel) -> None:
        if isinstance(parcel, Additions):
            await self._accepted(REPORT, [self._identity.additions(parcel)])
            self.counts.additions += len(parcel.entries)
        elif isinstance(parcel, Clearing):
            await self._accepted(PUBLISH, [self._identity.clearing(parcel)])
        else:
            gone = iter(parcel.entries.items())
            at_once = max(_AT_ONCE >> self.failing, 1)
            while events := self._identity.evictions(itertools.islice(gone, at_once)):
                await self._accepted(PUBLISH, events)
            self.counts.evictions += len(parcel.entries)

    async def _accepted(self, path: str, messages: list[bytes]) -> None:
        for answer in await self.channel.calls(path, messages, RPC_SECONDS):
            if answer != _ACCEPTED and (reason := refusal(answer)):
                raise NotAcceptedError(f"{self.channel.address}: {reason}")

    def _failed(self, error: Exception) -> None:
        self.failing += 1
        self.counts.failures += 1
        tell = _log.warning if self.failing == 1 else _log.debug
        tell("the server was not told; it will be, again", server=str(self.channel.address), error=str(error))
