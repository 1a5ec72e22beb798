"""What a server offers: methods by path, each with its messages and the function that answers.

A method is unary, or it is a stream; where only one side streams, the other sends exactly one message, which is what a
stream of one is. A unary handler gives its response at once, or an awaitable of it when it has to wait; most never do,
and then a call costs no task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from google.protobuf.message import Message


class Call(Protocol):
    """What a handler may know of its caller."""

    @property
    def deadline(self) -> float | None:
        """When the caller stops waiting, in seconds of the monotonic clock."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller is gone."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The header fields that are neither HTTP's nor gRPC's own."""


UnaryHandler: TypeAlias = Callable[[Any, Call], Message | Awaitable[Message]]
"""May raise `messages.Status`. Where it awaits, it is cancelled when its caller is gone."""
StreamHandler: TypeAlias = Callable[[AsyncIterator[Any], Call], AsyncIterator[Message]]
"""Takes the caller's messages, yields its own; may raise `messages.Status`; is cancelled when its caller is gone."""


@dataclass(frozen=True, slots=True)
class Unary:
    """`parse` reads a request, `answer` responds to it."""

    parse: Callable[[bytes], Any]
    answer: UnaryHandler


@dataclass(frozen=True, slots=True)
class Streaming:
    """`parse` reads each request, `answer` yields the responses."""

    parse: Callable[[bytes], Message]
    answer: StreamHandler


MethodTable: TypeAlias = Mapping[bytes, Unary | Streaming]
"""By the path of a request, `/package.Service/Method`."""


@dataclass(frozen=True, slots=True)
class Service:
    """The methods of one service; `name` is what reflection lists."""

    name: str
    methods: Mapping[str, Unary | Streaming]


def method_table(services: Iterable[Service]) -> MethodTable:
    """All methods of some services by path."""
    return {
        f"/{service.name}/{name}".encode(): method for service in services for name, method in service.methods.items()
    }
