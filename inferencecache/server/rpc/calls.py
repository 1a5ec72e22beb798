"""gRPC calls on HTTP/2 streams: which method a request is for, and its life from the first byte to the status.

A unary call is answered where its last byte arrives, inside the connection's `receive`, unless its handler has to wait;
only then does it become a task. A streaming call is a task that reads from a queue and is slowed down by the peer's
windows in both directions.

Deadlines: a handler is told and answers in time by itself, as a routing hint that says TIMEOUT is worth more than a
transport error. What waits beyond the deadline all the same is ended here.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import structlog
from google.protobuf.message import DecodeError, Message

from inferencecache.server.rpc import messages
from inferencecache.server.rpc.connection import Connection, MalformedRequest, Stream
from inferencecache.server.rpc.messages import Code, MessageReader, Status
from inferencecache.server.rpc.methods import MethodTable, Streaming, Unary
from inferencecache.wire.http2.fields import Field, literal

_log = structlog.get_logger(__name__)

OVERTIME: Final = 0.25
"""Seconds beyond its deadline that a unary handler may take to say so itself."""

Request = TypeVar("Request")

_FIELD_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FIELD_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_REQUEST_PSEUDO_FIELDS: Final = frozenset((b":method", b":scheme", b":path", b":authority", b":protocol"))
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_OF_TRANSPORT: Final = frozenset(
    (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The header fields of a request, read once."""

    method: Unary | Streaming | None
    answer: bytes = b""
    """What an answer of gRPC begins with."""
    timeout: float | None = None
    encoding: bytes = b"identity"
    length: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    refusal: Status | None = None
    http_refusal: bytes | None = None
    """A field block with an HTTP status, for what is no gRPC request at all."""


class TaskStarter(Protocol):
    """Starts a task whose end somebody awaits."""

    def __call__(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class Calls:
    """Makes the streams of gRPC connections."""

    def __init__(self, methods: MethodTable, start_task: TaskStarter, instance: str) -> None:
        """`instance` names this life of the server in every answer."""
        self._methods = methods
        self._start_task = start_task
        self._answer = messages.response_head(instance)

    def read_head(self, fields: list[Field]) -> RequestHead:
        """What a request asks for. Raises `MalformedRequest` (RFC 9113 §8.2, §8.3)."""
        pseudo: dict[bytes, bytes] = {}
        regular: dict[bytes, bytes] = {}
        for name, value in fields:
            if name.startswith(b":"):
                if regular or name in pseudo or name not in _REQUEST_PSEUDO_FIELDS:
                    raise MalformedRequest(f"pseudo-field {name!r} does not belong there")
                pseudo[name] = value
            else:
                _check_field(name, value)
                regular[name] = regular[name] + b"," + value if name in regular else value
        if not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
            raise MalformedRequest("a request needs :method, :scheme and :path")
        return self._head(pseudo, regular)

    def _head(self, pseudo: dict[bytes, bytes], regular: dict[bytes, bytes]) -> RequestHead:
        length = regular.get(b"content-length")
        if length is not None and not _LENGTH.fullmatch(length):
            raise MalformedRequest("content-length is no number of bytes")
        announced = None if length is None else int(length)
        if pseudo[b":method"] != b"POST":
            return RequestHead(None, length=announced, http_refusal=_http(b"405", b"POST"))
        if not _is_grpc(regular.get(b"content-type", b"")):
            return RequestHead(None, length=announced, http_refusal=_http(b"415"))
        method = self._methods.get(pseudo[b":path"])
        encoding = regular.get(b"grpc-encoding", b"identity")
        seconds = None
        refusal = None
        if method is None:
            refusal = Status(Code.UNIMPLEMENTED, f"unknown method {pseudo[b':path'].decode(errors='replace')}")
        elif encoding not in (b"identity", b"gzip"):
            refusal = Status(Code.UNIMPLEMENTED, "messages may be compressed with gzip, or not at all")
        elif (value := regular.get(b"grpc-timeout")) is not None:
            seconds = messages.timeout(value)
            if seconds is None:
                refusal = Status(Code.INTERNAL, "grpc-timeout is no timeout")
        metadata = {
            name.decode(): value.decode(errors="replace")
            for name, value in regular.items()
            if name not in _OF_TRANSPORT
        }
        return RequestHead(method, self._answer, seconds, encoding, announced, metadata, refusal)

    def open_stream(self, connection: Connection[RequestHead], stream_id: int, head: RequestHead) -> Stream:
        """The stream for a request."""
        stream: Stream
        if head.http_refusal is not None or head.refusal is not None:
            stream = _Refusal(connection, stream_id, head)
        elif isinstance(head.method, Unary):
            stream = _UnaryCall(connection, stream_id, head, head.method, self._start_task)
        else:
            assert head.method is not None
            stream = _StreamingCall(connection, stream_id, head, head.method, self._start_task)
        stream.expected = head.length
        return stream


def _check_field(name: bytes, value: bytes) -> None:
    if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
        raise MalformedRequest(f"field {name!r} is malformed")
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        raise MalformedRequest(f"field {name!r} does not exist in HTTP/2")


def _is_grpc(content_type: bytes) -> bool:
    return content_type in (b"application/grpc", b"application/grpc+proto") or content_type.startswith(
        (b"application/grpc;", b"application/grpc+proto;")
    )


def _http(status: bytes, allow: bytes = b"") -> bytes:
    return literal(b":status", status) + (literal(b"allow", allow) if allow else b"")


class _Refusal(Stream):
    """A request that is answered without a handler."""

    __slots__ = ("_answered", "_head")

    def __init__(self, connection: Connection[RequestHead], stream_id: int, head: RequestHead) -> None:
        super().__init__(connection, stream_id)
        self._head = head
        self._answered = False

    def on_data(self, data: bytes, end: bool) -> None:
        # HTTP is answered with its last byte, so as not to be reset; a gRPC stream may go on until it is answered.
        if self._answered or (self._head.http_refusal is not None and not end):
            return
        self._answered = True
        if self._head.http_refusal is not None:
            self.connection.respond(self, self._head.http_refusal, b"This port speaks gRPC.\n", b"")
        else:
            assert self._head.refusal is not None
            self.connection.finish(self, self._head.answer + messages.trailers(self._head.refusal))

    def on_abort(self) -> None:
        pass


class _GrpcCall(Stream):
    """What both kinds of calls have in common. It is the `Call` that handlers see."""

    __slots__ = ("_begun", "_head", "_kept", "_over", "_start_task", "_task", "cancelled", "deadline")

    def __init__(
        self, connection: Connection[RequestHead], stream_id: int, head: RequestHead, start_task: TaskStarter
    ) -> None:
        super().__init__(connection, stream_id)
        self.cancelled = False
        self.deadline = None if head.timeout is None else time.monotonic() + head.timeout
        self._head = head
        self._kept = 0
        self._begun = False
        self._over = False
        self._start_task = start_task
        self._task: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._head.metadata

    def on_abort(self) -> None:
        self.cancelled = True
        self._over = True
        self._discard()
        self._cancel_task()

    @abstractmethod
    def _discard(self) -> None:
        """Forget what arrived and was not read, and count it no more."""

    def _keep(self, size: int) -> None:
        """Count bytes that are kept for later. Raises `Status` if this connection keeps too many."""
        self._kept += size
        if not self.connection.hold(size):
            raise Status(Code.RESOURCE_EXHAUSTED, "too many unfinished messages on this connection")

    def _release(self, size: int) -> None:
        self._kept -= size
        self.connection.release(size)

    def _parse(self, parse: Callable[[bytes], Request], prefixed: bytes) -> Request:
        try:
            return parse(messages.unpacked(prefixed, self._head.encoding))
        except DecodeError as error:
            raise Status(Code.INTERNAL, f"a message cannot be parsed: {error}") from error

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self.connection.tasks += 1
        self._task = self._start_task(work)
        self._task.add_done_callback(self._task_ended)

    def _cancel_task(self) -> None:
        """Cancel the handler, in the loop's next round: before its first step it would not even get to clean up."""
        if self._task is not None:
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def _task_ended(self, _task: asyncio.Task[None]) -> None:
        self.connection.tasks -= 1
        self._task = None

    def _end(self, status: Status | None = None) -> None:
        """End the call, with OK unless another status is given."""
        if self._over:
            return
        self._over = True
        self._discard()
        block = messages.OK_TRAILERS if status is None else messages.trailers(status)
        self.connection.finish(self, block if self._begun else self._head.answer + block)

    async def _ending(self, work: Awaitable[None], limit: float | None) -> None:
        """Do the work and turn whatever ends it into a status."""
        try:
            async with asyncio.timeout_at(limit):
                await work
        except Status as status:
            self._end(status)
        except TimeoutError:
            self._end(Status(Code.DEADLINE_EXCEEDED, "the deadline passed"))
        except asyncio.CancelledError:
            self._end(Status(Code.UNAVAILABLE, "the server is stopping"))
            raise
        except Exception as error:
            self._end(_broken(error))


def _broken(error: Exception) -> Status:
    _log.error("rpc_handler_failed", exc_info=error)
    return Status(Code.UNKNOWN, "the handler failed")


class _UnaryCall(_GrpcCall):
    """One request, one response."""

    __slots__ = ("_body", "_method", "_wanted")

    def __init__(
        self,
        connection: Connection[RequestHead],
        stream_id: int,
        head: RequestHead,
        method: Unary,
        start_task: TaskStarter,
    ) -> None:
        super().__init__(connection, stream_id, head, start_task)
        self._method = method
        self._body: bytearray | None = None
        self._wanted = 0

    def on_data(self, data: bytes, end: bool) -> None:
        if self._over:
            return
        try:
            if not end:
                self._take(data)
            elif self._body is None:
                self._respond(data)
            else:
                body = bytes(self._body + data)
                self._discard()
                self._respond(body)
        except Status as status:
            self._end(status)

    def _take(self, data: bytes) -> None:
        if self._body is None:
            self._body = bytearray()
        self._body += data
        self._keep(len(data))
        if not self._wanted and len(self._body) >= messages.PREFIX:
            self._wanted = messages.size_of(self._body[: messages.PREFIX])
        if self._wanted and len(self._body) > self._wanted:
            raise Status(Code.INTERNAL, "a unary call with more than one message")

    def _discard(self) -> None:
        self._body = None
        self._release(self._kept)

    def _respond(self, body: bytes) -> None:
        if len(body) < messages.PREFIX or messages.size_of(body[: messages.PREFIX]) != len(body):
            raise Status(Code.INTERNAL, "a unary call carries exactly one message")
        request = self._parse(self._method.parse, body)
        try:
            answer = self._method.answer(request, self)
        except Status:
            raise
        except Exception as error:
            raise _broken(error) from error
        if isinstance(answer, Message):
            self._send(answer)
        else:
            limit = None if self.deadline is None else self.deadline + OVERTIME
            self._run(self._ending(self._wait_for(answer), limit))

    async def _wait_for(self, answer: Awaitable[Message]) -> None:
        response = await answer
        if not self._over:
            self._send(response)

    def _send(self, answer: Message) -> None:
        self._over = True
        self.connection.respond(
            self, self._head.answer, messages.packed(answer.SerializeToString()), messages.OK_TRAILERS
        )


class _StreamingCall(_GrpcCall):
    """Any number of requests, any number of responses."""

    __slots__ = ("_arrived", "_incoming", "_method", "_reader", "_sent", "_whole")

    def __init__(
        self,
        connection: Connection[RequestHead],
        stream_id: int,
        head: RequestHead,
        method: Streaming,
        start_task: TaskStarter,
    ) -> None:
        super().__init__(connection, stream_id, head, start_task)
        self._method = method
        self._reader = MessageReader()
        self._incoming: deque[bytes] = deque()
        self._whole = False
        self._arrived: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._run(self._ending(self._serve(), self.deadline))

    def on_data(self, data: bytes, end: bool) -> None:
        if self._over:
            return
        try:
            self._take(data, end)
        except Status as status:
            self._end(status)
            self._cancel_task()
            return
        self._whole = end
        self.held = bool(self._incoming)
        _wake(self._arrived)

    def _take(self, data: bytes, end: bool) -> None:
        self._keep(len(data))
        if data:
            self._incoming.extend(self._reader.feed(data))
        if end and self._reader.waiting:
            raise Status(Code.INTERNAL, "the stream ends within a message")

    def on_writable(self) -> None:
        _wake(self._sent)

    def _discard(self) -> None:
        self._incoming.clear()
        self._reader = MessageReader()
        self._release(self._kept)

    async def _requests(self) -> AsyncGenerator[Message, None]:
        loop = asyncio.get_running_loop()
        while True:
            while not self._incoming:
                if self._whole:
                    return
                self.held = False
                self.connection.give_credit(self)
                self._arrived = loop.create_future()
                await self._arrived
            prefixed = self._incoming.popleft()
            self._release(len(prefixed))
            yield self._parse(self._method.parse, prefixed)
            # A producer with much to say must not keep the loop from everybody else.
            await asyncio.sleep(0)

    async def _serve(self) -> None:
        async with aclosing(self._requests()) as requests:
            answer = self._method.answer(requests, self)
            async for response in answer:
                await self._send(response)
        self._end()

    async def _send(self, response: Message) -> None:
        if self._over:
            await asyncio.sleep(0)  # or a handler that never waits would not hear that it is cancelled, nor the loop
            return
        if not self._begun:
            self._begun = True
            self.connection.send_head(self, self._head.answer)
        self._sent = asyncio.get_running_loop().create_future()
        self.connection.send_data(self, messages.packed(response.SerializeToString()))
        if self.pending:
            await self._sent
        else:
            await asyncio.sleep(0)  # others' turn, however fast the peer reads


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
