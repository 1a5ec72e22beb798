"""Peers that are silent, gone or do not read, as only real sockets show them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hpack
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from inferencecache.server.rpc.listener import Listener, Patience, serving
from inferencecache.server.rpc.methods import Call, Streaming, Unary
from inferencecache.server.sockets import BindAddress, bind
from inferencecache.wire.http2 import frames
from tests.unit.server.waiting import eventually

# What a test has to say in time, it has long for.
NO_GREETING = Patience(greeting=0.3)
NO_SIGN_OF_LIFE = Patience(greeting=60, silence=0.3, sign_of_life=3)
SILENT = Patience(greeting=60, silence=0.3, sign_of_life=60)
BIG = BytesValue(value=bytes(1 << 20))


def head(path: str) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
    return hpack.Encoder().encode(fields)


class Peer:
    """A client that does only what the test says."""

    def __init__(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.listener = listener
        self.reader = reader
        self.writer = writer

    def greet(self) -> None:
        wide = frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
        self.writer.write(frames.PREFACE + wide + frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW))

    async def served(self) -> Any:
        """The server's side of it, once it is there."""
        await eventually(lambda: self.listener.peers or None)
        [served] = self.listener.peers
        return served

    async def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame of the server: type, flags, stream, payload."""
        async with asyncio.timeout(60):
            got = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(got[:3], "big"))
        return got[3], got[4], int.from_bytes(got[5:], "big"), payload

    async def frame_of(self, kind: int) -> tuple[int, int, int, bytes]:
        """The next frame of a kind."""
        while (found := await self.frame())[0] != kind:
            pass
        return found

    async def dropped(self) -> bool:
        """Whether the server closes the connection."""
        async with asyncio.timeout(60):
            try:
                await self.reader.read()
            except ConnectionResetError:
                return True
            return True


BEGUN: list[Call] = []
"""The streaming calls that have begun, whatever became of them since."""


async def begun(at: int) -> None:
    """Wait until one more call has begun than so many."""
    await eventually(lambda: len(BEGUN) > at or None)


async def forever(_requests: AsyncIterator[BytesValue], call: Call) -> AsyncIterator[BytesValue]:
    BEGUN.append(call)
    while True:
        yield BIG


async def silent(requests: AsyncIterator[BytesValue], call: Call) -> AsyncIterator[BytesValue]:
    BEGUN.append(call)
    async for _ in requests:
        pass
    yield BytesValue()


METHODS = {
    b"/s/Echo": Unary(BytesValue.FromString, lambda request, _call: request),
    b"/s/Big": Unary(BytesValue.FromString, lambda _request, _call: BIG),
    b"/s/Forever": Streaming(BytesValue.FromString, forever),
    b"/s/Silent": Streaming(BytesValue.FromString, silent),
}


@asynccontextmanager
async def connected(patience: Patience) -> AsyncIterator[Peer]:
    """A connection to a listener of its own."""
    sock = bind(BindAddress("127.0.0.1", 0))
    async with serving(METHODS, sock, instance="life", patience=patience) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
        yield Peer(listener, reader, writer)
        writer.close()


@pytest.mark.parametrize("said", [b"", frames.PREFACE[:10], frames.PREFACE])
async def test_a_peer_that_does_not_say_what_it_speaks_is_dropped(said: bytes) -> None:
    async with connected(NO_GREETING) as peer:
        peer.writer.write(said)
        assert await peer.dropped()


async def test_a_silent_peer_is_asked_and_stays_as_long_as_it_answers() -> None:
    """It is asked again only after an answer."""
    async with connected(SILENT) as peer:
        peer.greet()
        for _ in range(4):
            _, flags, _, content = await peer.frame_of(frames.PING)
            assert not flags & frames.ACK
            peer.writer.write(frames.frame(frames.PING, frames.ACK, 0, content))
        assert peer.listener.peers


async def test_a_peer_that_is_gone_without_a_word_is_dropped_and_its_calls_with_it() -> None:
    so_far = len(BEGUN)
    async with connected(NO_SIGN_OF_LIFE) as peer:
        served = await peer.served()
        peer.greet()
        peer.writer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head("/s/Silent")))
        await begun(so_far)
        await peer.frame_of(frames.PING)
        assert await peer.dropped()
        await eventually(lambda: True if not peer.listener.peers and not served.connection.tasks else None)


async def test_a_peer_within_a_frame_that_never_ends_is_dropped() -> None:
    async with connected(NO_SIGN_OF_LIFE) as peer:
        peer.greet()
        peer.writer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head("/s/Echo"))[:-1])
        assert await peer.dropped()


async def test_a_peer_that_does_not_read_stops_its_call_and_is_dropped() -> None:
    so_far = len(BEGUN)
    async with connected(NO_SIGN_OF_LIFE) as peer:
        served = await peer.served()
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.greet()
        peer.writer.write(frames.frame(frames.HEADERS, 5, 1, head("/s/Forever")))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await begun(so_far)
        buffered = [0]

        def gone() -> bool | None:
            buffered.append(served.transport.get_write_buffer_size())
            return None if peer.listener.peers else True

        await eventually(gone)
        assert max(buffered) < 2 << 20, "what the peer does not read piled up"
        await eventually(lambda: None if served.connection.tasks else True)


async def test_a_call_of_a_peer_that_reads_slowly_waits_for_it() -> None:
    async with connected(Patience()) as peer:
        peer.greet()
        peer.writer.write(frames.frame(frames.HEADERS, 5, 1, head("/s/Forever")))
        received = 0
        while received < 32 << 20:
            kind, _, _, payload = await peer.frame()
            received += len(payload) if kind == frames.DATA else 0
        served = await peer.served()
        assert served.transport.get_write_buffer_size() < 2 << 20


async def test_a_peer_that_asks_and_does_not_read_makes_no_answers_pile_up_and_is_answered_once_it_reads() -> None:
    calls = 40
    async with connected(Patience()) as peer:
        peer.greet()
        block = head("/s/Big")
        body = b"\0" + (0).to_bytes(4, "big")
        asked = b"".join(
            frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * call + 1, block)
            + frames.frame(frames.DATA, frames.END_STREAM, 2 * call + 1, body)
            for call in range(calls)
        )
        peer.writer.write(asked)
        server_side = await peer.served()
        await eventually(lambda: server_side.transport.get_write_buffer_size() or None)
        assert server_side.transport.get_write_buffer_size() < 3 << 20
        ended = set()
        while len(ended) < calls:
            kind, flags, stream_id, _ = await peer.frame()
            if kind == frames.HEADERS and flags & frames.END_STREAM:
                ended.add(stream_id)


async def test_who_is_served_while_the_server_leaves_is_told_and_so_is_who_comes_then() -> None:
    async with (
        connected(Patience(reminder=0.01)) as early,
        asyncio.timeout(60),
        asyncio.TaskGroup() as group,
    ):
        leaving = group.create_task(early.listener.leave(3600))
        assert await told_to_leave_and_served(early)
        late = Peer(early.listener, *await asyncio.open_connection(*early.writer.get_extra_info("peername")))
        assert await told_to_leave_and_served(late)
        late.writer.close()
        leaving.cancel()


async def told_to_leave_and_served(peer: Peer) -> bool:
    """Whether a peer is told to go elsewhere, but may still ask."""
    peer.greet()
    *_, notice = await peer.frame_of(frames.GOAWAY)
    peer.writer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head("/s/Echo")))
    peer.writer.write(frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5)))
    *_, answer = await peer.frame_of(frames.DATA)
    return int.from_bytes(notice[:4], "big") == frames.MAX_STREAM_ID and answer == bytes(5)
