"""One HTTP/2 connection as its server sees it, without I/O: bytes in, calls on streams, bytes out (RFC 9113).

The connection knows frames, flow control and the life of streams, and nothing of what travels in them. For each
request it asks `open_stream` for a `Stream`, feeds it, and sends what the stream answers. All of it runs in the
caller's thread, inside `receive`: a request that can be answered at once is answered before `receive` returns, and
everything written meanwhile leaves in one piece.

Why not one of the libraries: docs/design/choices.md has the figures. What a server of a few unary calls needs is small,
and a conformance suite can hold it to the RFC.

Memory is bounded on both sides. Inward by the windows we give and by what may be held per connection and by all of
them; outward by what the peer takes: whoever produces a stream of messages waits for the peer's windows and for the
socket, and the rim stops reading from a peer that does not read. Time is bounded by turns: a peer that sent very many
requests at once has some of them answered, and then it is others' turn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from inferencecache.wire.http2 import frames
from inferencecache.wire.http2.fields import TABLE_SIZE, Decoder, Field, FieldError, FieldListTooLong
from inferencecache.wire.http2.frames import ErrorCode, Setting, frame

MAX_STREAMS: Final = 256
"""Requests of one connection at work at a time; a client keeps the others to itself."""
MAX_FIELD_LIST: Final = 16_384
MAX_CONTINUATIONS: Final = 16
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 16 << 20
MAX_BUFFERED: Final = 64 << 20
"""Bytes of unfinished or unread messages on one connection, before further streams are turned away."""
MAX_BUFFERED_BY_ALL: Final = 128 << 20
"""The same, of all connections together. Beyond it a connection that holds more than `FAIR_SHARE` is turned away, so
that a few that fill the memory do not stop the others."""
FAIR_SHARE: Final = 1 << 20
TURN_FRAMES: Final = 128
"""Frames of one connection that are handled at a time, about two per request."""
TURN_BYTES: Final = 64 << 10
"""Bytes of answers at a time; asyncio's mark, above which a socket that does not take them is noticed."""

_REMEMBERED_HEADS: Final = 64
_REMEMBERED_ENDS: Final = 1024
_OUR_SETTINGS: Final = frames.settings(
    {
        Setting.HEADER_TABLE_SIZE: TABLE_SIZE,
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_HEADER_LIST_SIZE: MAX_FIELD_LIST,
    }
)
_SETTINGS_ACK: Final = frame(frames.SETTINGS, frames.ACK, 0, b"")
_END_OF_HEAD: Final = bytes((frames.HEADERS, frames.END_HEADERS))
_END_OF_STREAM: Final = bytes((frames.HEADERS, frames.END_HEADERS | frames.END_STREAM))
_PLAIN_DATA: Final = bytes((frames.DATA, 0))

Head = TypeVar("Head")


class ProtocolError(Exception):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamError(Exception):
    """The peer broke the protocol in a way that ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code


class MalformedRequest(Exception):
    """The fields of a request contradict RFC 9113 §8; raised by `read_head`."""


class Budget:
    """How many bytes of messages several connections hold together."""

    def __init__(self) -> None:
        self.used = 0


class Stream:
    """One request and its answer. Subclasses say what happens with what arrives; the connection keeps the rest."""

    __slots__ = (
        "connection",
        "expected",
        "held",
        "id",
        "open_remotely",
        "owed",
        "pending",
        "receive_window",
        "send_window",
        "trailers",
    )

    def __init__(self, connection: Connection[Head], stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.open_remotely = True
        self.expected: int | None = None
        """Bytes that are still to come, where the peer announced a length."""
        self.send_window = connection.initial_send_window
        self.receive_window = STREAM_WINDOW
        self.owed = 0
        """Bytes that arrived and for which no credit was given yet."""
        self.held = False
        """While true, no credit is given: what arrived has not been read."""
        self.pending: deque[bytes] | None = None
        """Bytes that wait for the peer's window, if any ever had to."""
        self.trailers: bytes | None = None

    @abstractmethod
    def on_data(self, data: bytes, end: bool) -> None:
        """A part of the body arrived; with `end` the last one, which may be empty."""

    @abstractmethod
    def on_abort(self) -> None:
        """The peer gave up, or the connection is gone. Nothing can be sent any more."""

    def on_writable(self) -> None:
        """Everything that waited for the peer's window has left."""


class Connection(Generic[Head]):
    """The state of one connection.

    `budget` is what it shares with other connections, and `write` takes bytes for the peer. `read_head` turns the
    fields of a request into what `open_stream` needs; equal heads are read once, so its result must not be changed. It
    may raise `MalformedRequest`.
    """

    def __init__(
        self,
        *,
        budget: Budget,
        write: Callable[[bytes], object],
        read_head: Callable[[list[Field]], Head],
        open_stream: Callable[[Connection[Head], int, Head], Stream],
    ) -> None:
        self.failed = False
        """A GOAWAY with an error was sent: there is nothing more to say to this peer."""
        self.draining = False
        self.tasks = 0
        """Handlers at work, those of streams that are gone included; kept by the streams."""
        self.buffered = 0
        """Bytes held for messages that are unfinished or unread; see `hold`."""
        self.initial_send_window = frames.DEFAULT_WINDOW
        self.streams: dict[int, Stream] = {}
        self.frames_received = 0
        self._budget = budget
        self._write = write
        self._read_head = read_head
        self._open_stream = open_stream
        self._out: list[bytes] = []
        self._out_size = 0
        self._corked = False
        self._rest = b""
        self._interrupted = False
        self._greeted = False
        self._introduced = False
        self._highest = 0
        self._ended: dict[int, None] = {}
        self._decoder = Decoder(MAX_FIELD_LIST)
        self._heads: dict[bytes, Head] = {}
        self._block: list[bytes] | None = None
        self._block_of = (0, 0)
        self._congested = False
        self._send_window = frames.DEFAULT_WINDOW
        self._frame_size = frames.DEFAULT_FRAME_SIZE
        self._receive_window = CONNECTION_WINDOW
        self._blocked: dict[int, Stream] = {}

    # -- towards the rim -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say our half of the greeting."""
        self._write(_OUR_SETTINGS + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    def receive(self, data: bytes) -> bool:
        """Take bytes of the peer. Never raises for what they contain; `failed` tells when to close.

        Returns:
            Whether others should have their turn now, and then this one again, with `b""` if nothing else came.
        """
        if self.failed:
            return False
        self._corked = True
        try:
            self._rest = self._read(self._rest + data if self._rest else data)
        except ProtocolError as error:
            self._fail(error.code, str(error))
        except FieldError as error:
            self._fail(ErrorCode.COMPRESSION_ERROR, str(error))
        finally:
            self._corked = False
            self._flush()
        return self._interrupted and not self.failed

    def lost(self) -> None:
        """The connection is gone: abort every stream."""
        self.failed = True
        self._out.clear()
        streams, self.streams = list(self.streams.values()), {}
        self._blocked.clear()
        for stream in streams:
            stream.on_abort()

    def drain(self) -> None:
        """Take no further requests; those that were begun go on."""
        if not self.draining and not self.failed:
            self.draining = True
            self._put(frames.goaway(self._highest, ErrorCode.NO_ERROR))

    def announce_drain(self) -> None:
        """Tell the peer that it should go elsewhere, while requests that are on their way are still taken."""
        if not self.draining and not self.failed:
            self._put(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, b"the server is stopping"))

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        if not self.failed:
            self._put(frame(frames.PING, 0, 0, b"are you?"))

    def congest(self) -> None:
        """What was written piles up: hold back what can wait."""
        self._congested = True

    def decongest(self) -> None:
        """It has drained."""
        self._congested = False
        self._push_blocked()

    @property
    def greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._introduced

    # -- towards the streams ---------------------------------------------------------------------------------------

    def respond(self, stream: Stream, head: bytes, body: bytes, trailers: bytes) -> None:
        """Answer with everything at once. `head` and `trailers` are field blocks."""
        size = len(body)
        if size > self._send_window or size > stream.send_window or size > self._frame_size or self._congested:
            self.send_head(stream, head)
            self.send_data(stream, body)
            self.finish(stream, trailers)
            return
        self._send_window -= size
        stream_id = stream.id.to_bytes(4, "big")
        self._put(
            b"".join(
                (
                    len(head).to_bytes(3, "big"), _END_OF_HEAD, stream_id, head,
                    size.to_bytes(3, "big"), _PLAIN_DATA, stream_id, body,
                    len(trailers).to_bytes(3, "big"), _END_OF_STREAM, stream_id, trailers,
                )
            )
        )  # fmt: skip
        self._close(stream)

    def send_head(self, stream: Stream, block: bytes) -> None:
        """Begin an answer."""
        self._put(frame(frames.HEADERS, frames.END_HEADERS, stream.id, block))

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send a part of an answer, now or when the peer's windows allow."""
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(data)
        self._push(stream)

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """End an answer with a field block, after the parts that still wait."""
        stream.trailers = trailers
        self._push(stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream without an answer."""
        self._put(frames.rst_stream(stream_id, code))
        self._remember_end(stream_id)
        self._blocked.pop(stream_id, None)
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            stream.on_abort()

    def hold(self, size: int) -> bool:
        """Count bytes of messages that a stream keeps for later; whether it may."""
        self.buffered += size
        self._budget.used += size
        return self.buffered <= (MAX_BUFFERED if self._budget.used <= MAX_BUFFERED_BY_ALL else FAIR_SHARE)

    def release(self, size: int) -> None:
        """Bytes that were held are no more."""
        self.buffered -= size
        self._budget.used -= size

    def give_credit(self, stream: Stream) -> None:
        """What arrived on `stream` has been read: let the peer send more, in portions worth a frame."""
        if stream.owed >= STREAM_WINDOW // 2 and stream.open_remotely:
            self._put(frames.window_update(stream.id, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0

    # -- sending ---------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if self.failed:
            return
        self._out.append(data)
        self._out_size += len(data)
        if not self._corked:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
            self._out.clear()
            self._out_size = 0
            self._write(data)

    def _push(self, stream: Stream) -> None:
        """Send of a stream what its and the connection's windows allow."""
        pending = stream.pending
        while pending:
            data = pending[0]
            room = 0 if self._congested else min(self._send_window, stream.send_window, self._frame_size)
            if room <= 0 and data:
                self._blocked[stream.id] = stream
                return
            part = data[:room] if len(data) > room else data
            if len(part) == len(data):
                pending.popleft()
            else:
                pending[0] = data[room:]
            self._send_window -= len(part)
            stream.send_window -= len(part)
            self._put(frame(frames.DATA, 0, stream.id, part))
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None:
            self._put(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream.id, stream.trailers))
            self._close(stream)
        elif pending is not None:
            stream.on_writable()

    def _push_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self._send_window <= 0 or self._congested:
                return
            self._push(stream)

    def _close(self, stream: Stream) -> None:
        """Our half is said. If the peer's is not, it need not go on."""
        self.streams.pop(stream.id, None)
        if stream.open_remotely:
            self._put(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._remember_end(stream.id)

    def _remember_end(self, stream_id: int) -> None:
        """Frames of this stream may still be under way; they are no error."""
        self._ended[stream_id] = None
        if len(self._ended) > _REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]

    def _fail(self, code: ErrorCode, message: str) -> None:
        self._put(frames.goaway(self._highest, code, message.encode()[:256]))
        self._flush()
        self.lost()

    # -- receiving -------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> bytes:
        """Handle every whole frame, as far as a turn goes; the bytes that remain."""
        position = 0
        self._interrupted = False
        turn_ends = self.frames_received + TURN_FRAMES
        if not self._greeted:
            expected = frames.PREFACE[: len(data)]
            if not data.startswith(expected):
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this port speaks gRPC, over HTTP/2")
            if len(data) < len(frames.PREFACE):
                return data
            self._greeted = True
            position = len(frames.PREFACE)
        end = len(data)
        while end - position >= 9:
            high, low, kind, flags, stream_id = frames.read_head(data, position)
            length = high << 8 | low
            if length > frames.DEFAULT_FRAME_SIZE:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = position + 9
            position_after = start + length
            if position_after > end:
                break
            position = position_after
            try:
                self._dispatch(kind, flags, stream_id & frames.MAX_STREAM_ID, data[start:position])
            except StreamError as error:
                self.reset(error.stream_id, error.code)
            if self.failed:
                return b""
            if self.frames_received >= turn_ends or self._out_size >= TURN_BYTES:
                self._interrupted = position < end
                break
        return data[position:] if position else data

    def _dispatch(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.frames_received += 1
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_of[0]):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a field block was interrupted")
        if not self._introduced:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self._introduced = True
        if kind == frames.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == frames.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind < len(_OTHERS):
            _OTHERS[kind](self, flags, stream_id, payload)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._put(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        stream = self.streams.get(stream_id)
        if stream is None:
            return self._to_absent("DATA", stream_id)
        if not stream.open_remotely:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end of a request")
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        end = flags & frames.END_STREAM != 0
        if stream.expected is not None:
            _check_length(stream, len(payload), end)
        if end:
            stream.open_remotely = False
            return stream.on_data(payload, True)
        stream.owed += size
        if payload:
            stream.on_data(payload, False)
        if not stream.held:
            self.give_credit(stream)
        return None

    def _to_absent(self, what: str, stream_id: int) -> None:
        if stream_id > self._highest or not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which was never opened")
        if stream_id not in self._ended:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, f"{what} on a closed stream")

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream_id}")
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        depends_on_itself = False
        if flags & frames.PRIORITIZED:
            if len(payload) < 5:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            depends_on_itself = int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID == stream_id
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, flags, payload)
        else:
            self._block = [payload]
            self._block_of = (stream_id, flags)
        if depends_on_itself:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.append(payload)
        if len(block) > MAX_CONTINUATIONS or sum(map(len, block)) > 2 * MAX_FIELD_LIST:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a field block that does not end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream_id, self._block_of[1], b"".join(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        end = flags & frames.END_STREAM != 0
        if stream_id <= self._highest:
            return self._on_trailers(stream_id, end, block)
        self._highest = stream_id
        head = self._heads.get(block)
        if head is None:
            try:
                head = self._new_head(block)
            except FieldListTooLong as error:
                raise StreamError(stream_id, ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
            except MalformedRequest as error:
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if self.draining or len(self.streams) >= MAX_STREAMS or self.tasks >= MAX_STREAMS:
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM, "no further request is taken now")
        stream = self._open_stream(self, stream_id, head)
        self.streams[stream_id] = stream
        if end:
            if stream.expected:
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "fewer bytes than announced")
            stream.open_remotely = False
            stream.on_data(b"", True)
        return None

    def _new_head(self, block: bytes) -> Head:
        head = self._read_head(self._decode(block))
        if len(self._heads) >= _REMEMBERED_HEADS:
            self._heads.clear()
        if not self._decoder.changed:
            self._heads[block] = head
        return head

    def _decode(self, block: bytes) -> list[Field]:
        try:
            return self._decoder.decode(block)
        finally:
            if self._decoder.changed:
                self._heads.clear()

    def _on_trailers(self, stream_id: int, end: bool, block: bytes) -> None:
        """A second block on a stream ends the request; its fields are not read, but they change the decoder."""
        try:
            fields = self._decode(block)
        except FieldListTooLong as error:
            raise StreamError(stream_id, ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id in self._ended:
                return
            raise ProtocolError(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        if not stream.open_remotely:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of a request")
        if not end or any(name.startswith(b":") for name, _ in fields):
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "trailers must end a request, without pseudo-fields")
        if stream.expected:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "fewer bytes than announced")
        stream.open_remotely = False
        stream.on_data(b"", True)

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
        if len(payload) != 5:
            raise StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY must have 5 bytes")
        if int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID == stream_id:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM must have 4 bytes")
        if stream_id > self._highest or not stream_id & 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM of stream {stream_id}, which was never opened")
        stream = self.streams.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        if stream is not None:
            stream.on_abort()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with content")
            return
        if len(payload) % 6:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of odd length")
        for at in range(0, len(payload), 6):
            key, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            self._set(key, value)
        self._put(_SETTINGS_ACK)
        self._push_blocked()

    def _set(self, key: int, value: int) -> None:
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH={value}")
        if key == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_SIZE <= value < 1 << 24:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE={value}")
            self._frame_size = value
        elif key == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE={value}")
            change = value - self.initial_send_window
            self.initial_send_window = value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > frames.MAX_WINDOW:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "a window too large")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "PING must have 8 bytes")
        if not flags & frames.ACK:
            self._put(frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY must have 8 bytes")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE must have 4 bytes")
        credit = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if not stream_id:
            if not credit:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._send_window += credit
            if self._send_window > frames.MAX_WINDOW:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "a window too large")
            return self._push_blocked()
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._highest or not stream_id & 1:
                raise ProtocolError(
                    ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE of stream {stream_id}, which was never opened"
                )
            return None
        if not credit:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        stream.send_window += credit
        if stream.send_window > frames.MAX_WINDOW:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a window too large")
        if stream_id in self._blocked:
            self._push(stream)
        return None


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "more padding than content")
    return payload[1 : len(payload) - payload[0]]


def _check_length(stream: Stream, size: int, end: bool) -> None:
    assert stream.expected is not None
    stream.expected -= size
    if stream.expected < 0 or (end and stream.expected):
        raise StreamError(stream.id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as announced")


def _ignored(_connection: object, _flags: int, _stream_id: int, _payload: bytes) -> None:
    """Never reached: DATA and HEADERS are dispatched first."""


_OTHERS: Final = (
    _ignored,
    _ignored,
    Connection._on_priority,
    Connection._on_rst_stream,
    Connection._on_settings,
    Connection._on_push_promise,
    Connection._on_ping,
    Connection._on_goaway,
    Connection._on_window_update,
    Connection._on_continuation,
)
