"""The other end of a `Connection`, by the book: the hpack package encodes, and every frame is taken apart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import hpack

from inferencecache.server.rpc.calls import Calls, TaskStarter
from inferencecache.server.rpc.connection import Budget, Connection
from inferencecache.server.rpc.methods import MethodTable
from inferencecache.wire.http2 import frames

PATH = "/test.Service/Method"


class Frame(NamedTuple):
    """A frame that the server sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


class Client:
    """Talks to a connection in memory; `greeting` holds what the server said first."""

    def __init__(
        self, methods: MethodTable, start_task: TaskStarter | None = None, budget: Budget | None = None
    ) -> None:
        """Without `start_task`, a call that needs a task fails the test."""
        calls = Calls(methods, start_task or _refuse, "life")
        self._bytes = b""
        self.budget = budget or Budget()
        self.connection = Connection(
            budget=self.budget, write=self._take, read_head=calls.read_head, open_stream=calls.open_stream
        )
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.connection.start()
        self.greeting = self.take()

    def _take(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> list[Frame]:
        """The frames that came since the last time."""
        data, self._bytes = self._bytes, b""
        found = []
        while data:
            size = int.from_bytes(data[:3], "big")
            assert len(data) >= 9 + size, "the server sent a torn frame"
            found.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
            data = data[9 + size :]
        return found

    def greet(self, settings: Mapping[frames.Setting, int] | None = None) -> None:
        """Say the preface and our settings, and drop the acknowledgement."""
        self.connection.receive(frames.PREFACE + frames.settings(dict(settings or {})))
        self.take()

    def send(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """One frame."""
        self.connection.receive(frames.frame(kind, flags, stream_id, payload))

    def head(self, path: str = PATH, **more: str) -> bytes:
        """The field block of a gRPC request; `grpc_timeout="1S"` adds a field."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "here"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *((name.replace("_", "-"), value) for name, value in more.items()),
        ]
        return self.encoder.encode(fields)

    def call(self, stream_id: int, message: bytes, path: str = PATH, **more: str) -> None:
        """A whole unary call."""
        self.send(frames.HEADERS, frames.END_HEADERS, stream_id, self.head(path, **more))
        self.send(frames.DATA, frames.END_STREAM, stream_id, packed(message))

    def answer(self, stream_id: int) -> tuple[dict[str, str], bytes]:
        """All fields and all data of the answer on a stream, among the frames not yet taken."""
        fields: dict[str, str] = {}
        data = b""
        for each in self.take():
            if each.stream_id != stream_id:
                continue
            if each.kind == frames.HEADERS:
                fields.update(self.decoder.decode(each.payload))
            elif each.kind == frames.DATA:
                data += each.payload
        return fields, data


def _refuse(_work: object) -> asyncio.Task[None]:
    raise AssertionError("no task is expected in this test")


def packed(message: bytes) -> bytes:
    """A message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message
