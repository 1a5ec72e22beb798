"""gRPC calls to one server: an HTTP/2 client that knows unary answers and nothing else (RFC 9113, gRPC over HTTP/2).

The sidecar's budget is why it is not grpcio: an eviction is one RPC per block, so a busy engine causes thousands of
calls a second, each of which costs grpcio's Python client more CPU than everything else that is done for the block; and
its memory is a seventh of the sidecar's. Calls are written one after another without waiting (the server allows as
many at a time as it says), and their answers are counted off as they come.

A channel connects when a call needs it, and again after the connection was lost. Whoever calls decides about retries.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from inferencecache.wire.http2 import frames
from inferencecache.wire.http2.fields import Decoder, FieldError, FieldListTooLong, literal
from inferencecache.wire.http2.frames import ErrorCode, Setting, frame

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

INSTANCE_FIELD: Final = b"inferencecache-instance"
"""The field of an answer that tells one life of a server from the next."""

_CONNECT_SECONDS: Final = 5.0
_ASSUMED_STREAMS: Final = 100
_MAX_FIELD_LIST: Final = 65_536
_MAX_FRAGMENTS: Final = 64
_MAX_ANSWER: Final = 4 << 20
_CREDIT: Final = 16_384
"""Bytes that arrive before the server is told that it may send as many more; a quarter of what it may at first."""
_REMEMBERED: Final = 64
_WHOLE_DATA: Final = bytes((frames.DATA, frames.END_STREAM))
_CODE_OF_HTTP: Final = {
    401: 16,
    403: 7,
    404: 12,
    429: UNAVAILABLE,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}


class RpcError(Exception):
    """A call that was not answered with OK; `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code


class Address(NamedTuple):
    """Where a server is."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Channel:
    """Calls to one address, over one connection at a time.

    Args:
        address: of the server.
        authority: the name by which the server was asked for.
        tls: how to check its certificate, asked for with each connection; None is plaintext.
        token: the bearer token of the moment; empty for none.
        on_loss: told when an established connection is gone.
    """

    def __init__(
        self,
        address: Address,
        *,
        authority: str = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
        token: Callable[[], str] = str,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self.connections = 0
        """How many were made, so that a caller sees when it speaks to a new one."""
        self.instance = ""
        """By which the server named itself on this connection; empty if it has not."""
        self._authority = authority or str(address)
        self._tls = tls
        self._token = token
        self._on_loss = on_loss
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        """One call, and the message that answers it.

        Raises:
            RpcError: there is no answer within that many seconds, or it is not OK.
        """
        (answer,) = await self.calls(path, (message,), within)
        return answer

    async def calls(self, path: str, messages: Sequence[bytes], within: float) -> list[bytes]:
        """Calls of one method, at work at the same time, and the answers in the order of the calls.

        Raises:
            RpcError: one of them failed, or they took longer than `within` seconds. Others may have been answered.
        """
        try:
            async with asyncio.timeout(within):
                connection = await self.connect()
                return await connection.calls(self._head(path, within), messages)
        except TimeoutError as error:
            if self._connection is not None and not self._connection.heard:
                self._connection.abort("it does not answer")
            raise RpcError(DEADLINE_EXCEEDED, f"{self.address}: no answer within {within:g} s") from error

    async def connect(self) -> _Connection:
        """The connection, made if there is none.

        Raises:
            RpcError: it cannot be made.
        """
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.usable:
                connection = self._connection = await self._connect()
                self.connections += 1
                self.instance = ""
            return connection

    async def _connect(self) -> _Connection:
        """A connection whose other end has said that it speaks HTTP/2, and how many calls it takes at a time."""
        host, port = self.address
        protocol = _Connection(self)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: protocol,
                    host,
                    port,
                    ssl=self._tls() if self._tls else None,
                    server_hostname=_name_of(self._authority) if self._tls else None,
                )
                # Awaited itself, it would be cancelled with whoever gives up, and what is done counts as said.
                await asyncio.wait((protocol.greeted,))
                protocol.greeted.result()
        except TimeoutError as error:
            raise RpcError(UNAVAILABLE, f"{self.address}: no connection within {_CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise RpcError(UNAVAILABLE, f"{self.address}: {error.strerror or error}") from error
        finally:
            if not protocol.usable:
                protocol.abort("it does not speak HTTP/2")
        return protocol

    def _head(self, path: str, within: float) -> bytes:
        """The field block of a request. It is the same for all calls of a method, which makes it cheap to read."""
        token = self._token()
        return b"".join(
            (
                b"\x83\x87" if self._tls else b"\x83\x86",  # :method POST, :scheme https or http
                literal(b":path", path.encode()),
                literal(b":authority", self._authority.encode()),
                literal(b"te", b"trailers"),
                literal(b"content-type", b"application/grpc"),
                literal(b"user-agent", b"inferencecache-subscriber"),
                literal(b"grpc-timeout", b"%dm" % max(int(within * 1000), 1)),
                literal(b"authorization", f"Bearer {token}".encode()) if token else b"",
            )
        )

    def lost(self) -> None:
        """The connection is gone; for the connection itself."""
        self._on_loss()

    def close(self) -> None:
        """Let go of the connection; calls at work fail."""
        if self._connection is not None:
            self._connection.abort("the channel was closed")


def _name_of(authority: str) -> str:
    return authority.rpartition(":")[0].strip("[]") or authority


class _Head(NamedTuple):
    """What a field block of an answer says."""

    http_status: int | None
    grpc_status: int | None
    message: str
    instance: str


class _Calls:
    """Calls that were made together, and their answers as far as there are any."""

    __slots__ = ("answers", "done", "head", "head_frame", "missing", "next", "requests")

    def __init__(self, head: bytes, requests: Sequence[bytes]) -> None:
        self.head = head
        self.head_frame = len(head).to_bytes(3, "big") + bytes((frames.HEADERS, frames.END_HEADERS))
        """What stands before the stream's number and the field block."""
        self.requests = requests
        self.next = 0
        self.answers: list[bytes] = [b""] * len(requests)
        self.missing = len(requests)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Stream:
    """One call."""

    __slots__ = ("body", "calls", "index", "owed", "pending", "window")

    def __init__(self, calls: _Calls, index: int, window: int, pending: bytes) -> None:
        self.calls = calls
        self.index = index
        self.window = window
        self.pending = pending
        """Of the request, what still waits for the server's windows."""
        self.body = b""
        self.owed = 0
        """Bytes of the answer for which no credit was given yet."""


class _Connection(asyncio.Protocol):
    """The client's side of an HTTP/2 connection."""

    def __init__(self, channel: Channel) -> None:
        self.heard = True
        """Whether anything arrived since the last call was made."""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server has said what it takes."""
        self._channel = channel
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._waiting: deque[_Calls] = deque()
        self._refused: deque[tuple[_Calls, int]] = deque()
        self._next_id = 1
        self._max_streams = _ASSUMED_STREAMS
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._frame_size = frames.DEFAULT_FRAME_SIZE
        self._received = 0
        self._rest = b""
        self._out: list[bytes] = []
        self._block: tuple[int, int, list[bytes]] | None = None
        self._decoder = Decoder(_MAX_FIELD_LIST)
        self._heads: dict[bytes, _Head] = {}
        self._ending = False
        self._reason = "the connection was lost"

    @property
    def usable(self) -> bool:
        """Whether another call may be made."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self.greeted.done()
            and not self._ending
            and self._next_id <= frames.MAX_STREAM_ID
        )

    async def calls(self, head: bytes, messages: Sequence[bytes]) -> list[bytes]:
        """See `Channel.calls`."""
        if not messages:
            return []
        calls = _Calls(head, messages)
        self._waiting.append(calls)
        self.heard = False
        self._start_waiting()
        self._flush()
        try:
            await calls.done
        finally:
            self._forget(calls)
        return calls.answers

    def _forget(self, calls: _Calls) -> None:
        """Reset what is still at work, because nobody waits for it."""
        if calls.missing:
            self._waiting = deque(each for each in self._waiting if each is not calls)
            self._refused = deque(each for each in self._refused if each[0] is not calls)
            for stream_id in [number for number, stream in self._streams.items() if stream.calls is calls]:
                del self._streams[stream_id]
                self._out.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
            self._start_waiting()
            self._flush()

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no common class
        self._transport.write(
            frames.PREFACE + frames.settings({Setting.ENABLE_PUSH: 0, Setting.MAX_HEADER_LIST_SIZE: _MAX_FIELD_LIST})
        )

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self._rest = self._read(self._rest + data if self._rest else data)
        except (_Broken, FieldError, FieldListTooLong) as error:
            self.abort(f"it broke the protocol: {error}")
        self._start_waiting()
        self._close_if_done()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._reason = f"the connection was lost: {error}"
        failure = RpcError(UNAVAILABLE, f"{self._channel.address}: {self._reason}")
        if not self.greeted.done():
            self.greeted.set_exception(failure)
            self.greeted.exception()  # whoever waited may have given up
            return
        at_work = (stream.calls for stream in self._streams.values())
        self._fail((*at_work, *self._waiting, *(calls for calls, _ in self._refused)), failure)
        self._streams.clear()
        self._waiting.clear()
        self._refused.clear()
        self._channel.lost()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Begin as many calls as the server allows."""
        while len(self._streams) < self._max_streams and not self._ending:
            if self._refused:
                self._start(*self._refused.popleft())
                continue
            if not self._waiting:
                return
            calls = self._waiting[0]
            self._start(calls, calls.next)
            calls.next += 1
            if calls.next == len(calls.requests):
                self._waiting.popleft()

    def _start(self, calls: _Calls, index: int) -> None:
        stream_id = self._next_id
        self._next_id += 2
        message = calls.requests[index]
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        size = len(body)
        stream = self._streams[stream_id] = _Stream(calls, index, self._stream_window, b"")
        if size <= self._window and size <= stream.window and size <= self._frame_size:
            self._window -= size
            number = stream_id.to_bytes(4, "big")
            self._out += (calls.head_frame, number, calls.head, size.to_bytes(3, "big"), _WHOLE_DATA, number, body)
            return
        self._out += (calls.head_frame, stream_id.to_bytes(4, "big"), calls.head)
        stream.pending = body
        self._push(stream_id, stream)

    def _push(self, stream_id: int, stream: _Stream) -> None:
        """Send of a request what the windows allow."""
        while stream.pending:
            room = min(self._window, stream.window, self._frame_size)
            if room <= 0:
                return
            part, stream.pending = stream.pending[:room], stream.pending[room:]
            self._window -= len(part)
            stream.window -= len(part)
            flags = 0 if stream.pending else frames.END_STREAM
            self._out.append(frame(frames.DATA, flags, stream_id, part))

    # -- receiving -------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> bytes:
        """Take every whole frame; the bytes that remain."""
        position, end = 0, len(data)
        while end - position >= frames.HEAD_SIZE:
            high, low, kind, flags, stream_id = frames.read_head(data, position)
            length = high << 8 | low
            if length > frames.DEFAULT_FRAME_SIZE:
                raise _Broken(f"a frame of {length} bytes")
            start = position + frames.HEAD_SIZE
            if start + length > end:
                break
            position = start + length
            self._take(kind, flags, stream_id & frames.MAX_STREAM_ID, data[start:position])
        return data[position:]

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise _Broken("a field block was interrupted")
        if kind == frames.HEADERS:
            self._take_block(stream_id, flags, [_fragment(flags, payload)])
        elif kind == frames.CONTINUATION:
            if self._block is None:
                raise _Broken("a continuation of nothing")
            _, first_flags, parts = self._block
            parts.append(payload)
            if len(parts) > _MAX_FRAGMENTS or sum(map(len, parts)) > _MAX_FIELD_LIST:
                raise _Broken("a field block without end")
            self._take_block(stream_id, first_flags | flags & frames.END_HEADERS, parts)
        elif kind == frames.DATA:
            self._take_data(stream_id, flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._take_credit(stream_id, int.from_bytes(payload, "big") & frames.MAX_WINDOW)
        elif kind == frames.RST_STREAM:
            self._take_reset(stream_id, int.from_bytes(payload, "big"))
        elif kind == frames.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self._out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            self._take_goaway(payload)

    def _take_block(self, stream_id: int, flags: int, parts: list[bytes]) -> None:
        if not flags & frames.END_HEADERS:
            self._block = (stream_id, flags, parts)
            return
        self._block = None
        head = self._head_of(b"".join(parts))
        if head.instance:
            self._channel.instance = head.instance
        if head.grpc_status is not None and flags & frames.END_STREAM:
            self._end(stream_id, head.grpc_status, head.message)
        elif head.http_status not in (None, 200):
            code = _CODE_OF_HTTP.get(head.http_status or 0, UNKNOWN)
            self._end(stream_id, code, f"HTTP status {head.http_status}")
            # Nothing that speaks gRPC said so: a proxy, or whoever answers where the server's address leads while it is
            # away. The next connection may lead to the server.
            self._begin_no_more("the connection led elsewhere")
        elif flags & frames.END_STREAM:
            self._end(stream_id, INTERNAL, "an answer without a status")

    def _head_of(self, block: bytes) -> _Head:
        known = self._heads.get(block)
        if known is not None:
            return known
        head = _read_head(self._decoder.decode(block))
        if self._decoder.changed or len(self._heads) >= _REMEMBERED:
            self._heads.clear()
        if not self._decoder.changed:
            self._heads[block] = head
        return head

    def _take_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received >= _CREDIT:
            self._out.append(frames.window_update(0, self._received))
            self._received = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        body = payload[1 : len(payload) - payload[0]] if flags & frames.PADDED and payload else payload
        stream.body = stream.body + body if stream.body else body
        if len(stream.body) > _MAX_ANSWER:
            self._streams.pop(stream_id)
            self._out.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
            self._fail((stream.calls,), RpcError(8, f"{self._channel.address}: an answer beyond all bounds"))
        elif flags & frames.END_STREAM:
            self._end(stream_id, INTERNAL, "an answer without a status")
        else:
            stream.owed += len(payload)
            if stream.owed >= _CREDIT:
                self._out.append(frames.window_update(stream_id, stream.owed))
                stream.owed = 0

    def _end(self, stream_id: int, code: int, message: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        if stream.pending:
            # The server has answered a request that it had not read to its end.
            self._out.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        calls, body = stream.calls, stream.body
        if code == OK and (len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(body) - 5):
            code, message = INTERNAL, "an answer that is not one plain message"
        if code != OK:
            self._fail((calls,), RpcError(code, f"{self._channel.address}: {message or 'the call failed'}"))
        else:
            calls.answers[stream.index] = body[5:]
            calls.missing -= 1
            if not calls.missing and not calls.done.done():
                calls.done.set_result(None)

    @staticmethod
    def _fail(all_calls: Iterable[_Calls], error: RpcError) -> None:
        for calls in all_calls:
            if not calls.done.done():
                calls.done.set_exception(error)

    def _take_credit(self, stream_id: int, credit: int) -> None:
        if stream_id == 0:
            self._window += credit
            for number, stream in list(self._streams.items()):
                if stream.pending:
                    self._push(number, stream)
        elif stream_id in self._streams:
            self._streams[stream_id].window += credit
            self._push(stream_id, self._streams[stream_id])

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for start in range(0, len(payload) - 5, 6):
            key = int.from_bytes(payload[start : start + 2], "big")
            value = int.from_bytes(payload[start + 2 : start + 6], "big")
            if key == Setting.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == Setting.INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                self._frame_size = value
        self._out.append(frame(frames.SETTINGS, frames.ACK, 0, b""))
        if not self.greeted.done():
            self.greeted.set_result(None)
        for number, stream in list(self._streams.items()):
            self._push(number, stream)

    def _take_reset(self, stream_id: int, code: int) -> None:
        """The server ended a call; one that it refused was not begun, and is made again when another one has ended."""
        if code == ErrorCode.REFUSED_STREAM and stream_id in self._streams and len(self._streams) > 1:
            stream = self._streams.pop(stream_id)
            self._refused.append((stream.calls, stream.index))
            self._max_streams = min(self._max_streams, len(self._streams))
        else:
            self._end(stream_id, UNAVAILABLE, f"the server reset the call ({code})")

    def _take_goaway(self, payload: bytes) -> None:
        """The server takes no further calls; what it will not answer fails now."""
        error = self._begin_no_more("the server is going away")
        last = int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID
        for stream_id in [number for number in self._streams if number > last]:
            self._fail((self._streams.pop(stream_id).calls,), error)

    def _begin_no_more(self, reason: str) -> RpcError:
        """Make no further calls; those that wait fail now, with the error that is returned."""
        self._ending = True
        error = RpcError(UNAVAILABLE, f"{self._channel.address}: {reason}")
        self._fail((*self._waiting, *(calls for calls, _ in self._refused)), error)
        self._waiting.clear()
        self._refused.clear()
        return error

    def _close_if_done(self) -> None:
        """Leave a server that is to be called no more, once it owes no answer."""
        if self._ending and not self._streams and self._transport is not None:
            self._transport.close()


class _Broken(Exception):
    """The server broke the protocol."""


def _fragment(flags: int, payload: bytes) -> bytes:
    """The field block of a HEADERS frame."""
    start, end = 0, len(payload)
    if flags & frames.PADDED and payload:
        start, end = 1, end - payload[0]
    if flags & frames.PRIORITIZED:
        start += 5
    if start > end:
        raise _Broken("a HEADERS frame with more padding than payload")
    return payload[start:end]


def _read_head(fields: Sequence[tuple[bytes, bytes]]) -> _Head:
    values = dict(fields)
    return _Head(
        _number(values.get(b":status")),
        _number(values.get(b"grpc-status")),
        values.get(b"grpc-message", b"").decode(errors="replace"),
        values.get(INSTANCE_FIELD, b"").decode(errors="replace"),
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else None
