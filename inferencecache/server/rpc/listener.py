"""The rim of the gRPC stack: sockets, TLS, silence, and an orderly end.

One protocol object per TCP connection carries bytes between asyncio and a `Connection`. Three kinds of peers are dealt
with here, as only the rim sees them: one that never says what it speaks, one that is gone without a word, which a PING
finds out, and one that does not read, from which nothing more is read until it does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from inferencecache.server.rpc.calls import Calls, RequestHead
from inferencecache.server.rpc.connection import Budget, Connection
from inferencecache.server.rpc.methods import MethodTable

ALPN: Final = ["h2"]
_TASK_NAME: Final = "rpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a peer, in seconds."""

    greeting: float = 10.0
    """For the TLS handshake, and then for HTTP/2's first frames."""
    silence: float = 60.0
    """Without a frame, before the peer is asked whether it is there."""
    sign_of_life: float = 20.0
    """For the answer to that, and for a peer that does not read to read again."""
    farewell: float = 0.1
    """Between the notice that the server stops and its refusing of requests, which may be on their way."""
    reminder: float = 1.0
    """Between two rounds of telling newcomers that the server is leaving."""


class _Peer(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.transport: asyncio.Transport  # from `connection_made` on
        self.connection: Connection[RequestHead] = Connection(
            budget=listener.budget,
            write=self._write,
            read_head=listener.calls.read_head,
            open_stream=listener.calls.open_stream,
        )
        self._frames_seen = 0
        self._quiet_since = listener.now()
        self._asked = False
        self._stuck_since: float | None = None
        self._waits = False
        """Frames arrived that are not handled yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no common class
        self._listener.peers.add(self)
        self.connection.start()

    def data_received(self, data: bytes) -> None:
        unfinished = self.connection.receive(data)
        if self.connection.failed:
            self.transport.close()
        elif unfinished and not self._waits:
            self._waits = True
            self._read_or_not()
            self._listener.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle what was put off so that others had their turn, unless its answers would pile up."""
        if self.transport.is_closing() or self._stuck_since is not None:
            return
        self._waits = False
        self.data_received(b"")
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport.is_closing():
            return
        if self._waits or self._stuck_since is not None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.peers.discard(self)
        self.connection.lost()

    def pause_writing(self) -> None:
        self._stuck_since = self._listener.now()
        self._read_or_not()
        self.connection.congest()

    def resume_writing(self) -> None:
        self._stuck_since = None
        self.connection.decongest()
        if self._waits:
            self._listener.call_soon(self._go_on)
        self._read_or_not()

    def _write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def judge(self, now: float, patience: Patience) -> None:
        """Drop or question the peer if it has been silent for too long."""
        if self._stuck_since is not None:
            if now - self._stuck_since > patience.sign_of_life:
                self.transport.abort()
            return
        if self.connection.frames_received != self._frames_seen:
            self._frames_seen = self.connection.frames_received
            self._quiet_since = now
            self._asked = False
        quiet = now - self._quiet_since
        if not self.connection.greeted:
            if quiet > patience.greeting:
                self.transport.abort()
        elif quiet > patience.silence + patience.sign_of_life:
            self.transport.abort()
        elif quiet > patience.silence and not self._asked:
            self._asked = True
            self.connection.ping()

    def close(self) -> None:
        """Close after what was written has left."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()


class Listener:
    """Serves a method table on a socket; made by `serving`."""

    def __init__(self, methods: MethodTable, instance: str, group: asyncio.TaskGroup, patience: Patience) -> None:
        self.peers: set[_Peer] = set()
        self.budget = Budget()
        self.calls = Calls(methods, self._start_task, instance)
        self.now = asyncio.get_running_loop().time
        self.call_soon = asyncio.get_running_loop().call_soon
        self._group = group
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work, name=_TASK_NAME)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def open(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections on a socket that listens."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Peer(self),
            sock=sock,
            ssl=tls,
            ssl_handshake_timeout=self._patience.greeting if tls else None,
            ssl_shutdown_timeout=1.0 if tls else None,
        )

    async def keep_watch(self) -> None:
        """Judge the peers again and again, until cancelled."""
        pause = min(self._patience.greeting, self._patience.silence, self._patience.sign_of_life) / 4
        while True:
            await asyncio.sleep(pause)
            for peer in list(self.peers):
                peer.judge(self.now(), self._patience)

    async def leave(self, delay: float) -> None:
        """Go on serving for `delay` seconds, newcomers too, and tell everybody to go elsewhere.

        Nodes that have not heard of it yet send some here again, and those are told as well: so each moves on as soon
        as there is a way.
        """
        deadline = self.now() + delay
        told: set[_Peer] = set()
        while (left := deadline - self.now()) > 0:
            for peer in self.peers - told:
                peer.connection.announce_drain()
            told = set(self.peers)
            await asyncio.sleep(min(left, self._patience.reminder))

    async def drain(self, grace: float) -> None:
        """Stop: take no new connections, then no new requests, and give the others `grace` seconds in all.

        Calls that have not ended by then end with UNAVAILABLE.
        """
        deadline = self.now() + grace
        if self._server is not None:
            self._server.close()
        for peer in list(self.peers):
            peer.connection.announce_drain()
        await asyncio.sleep(min(self._patience.farewell, grace))
        for peer in list(self.peers):
            peer.connection.drain()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=max(deadline - self.now(), 0))
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(list(self._tasks), timeout=1.0)
        for peer in list(self.peers):
            peer.close()
        await asyncio.sleep(0)
        for peer in list(self.peers):
            peer.abort()


@asynccontextmanager
async def serving(
    methods: MethodTable,
    sock: socket.socket,
    *,
    instance: str,
    tls: ssl.SSLContext | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[Listener]:
    """Serve gRPC on a listening socket. On leaving, what has not been drained is cut off.

    `instance` names this life of the server in every answer. `tls` must offer `ALPN`; it may be changed at any time by
    its owner, for the handshakes to come.
    """
    patience = patience or Patience()
    async with asyncio.TaskGroup() as group:
        listener = Listener(methods, instance, group, patience)
        await listener.open(sock, tls)
        watch = group.create_task(listener.keep_watch(), name="rpc-watch")
        try:
            yield listener
        finally:
            watch.cancel()
            await listener.drain(0.0)
