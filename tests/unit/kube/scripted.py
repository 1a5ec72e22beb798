"""An API server that says what a test wrote down: lists and watches, in order, and then nothing more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar, cast

import msgspec

from inferencecache.kube.client import Client
from inferencecache.kube.codec import ListPage, decode_list
from inferencecache.kube.errors import TransportError
from inferencecache.kube.kinds import ObjectMeta, View
from inferencecache.kube.reflector import Timing
from inferencecache.kube.resource import Resource, ResourceType

QUICK = Timing(
    idle_limit=timedelta(seconds=0.05),
    shortest_watch=timedelta(seconds=30),
    longest_watch=timedelta(seconds=60),
    first_pause=timedelta(seconds=0.002),
    longest_pause=timedelta(seconds=0.01),
)


class Thing(View, frozen=True):
    """A small kind of the tests' own."""

    resource: ClassVar[Resource] = ResourceType("test.dev", "v1", "Thing", "things")
    metadata: ObjectMeta = ObjectMeta()
    size: int = 0


def raw(name: str, version: int, *, size: Any = 0, uid: str = "", **metadata: Any) -> dict[str, Any]:
    """A Thing as the server would send it; a `size` that is no integer does not fit the view."""
    meta = {"name": name, "namespace": "a", "uid": uid or f"uid-{name}", "resourceVersion": str(version), **metadata}
    return {"apiVersion": "test.dev/v1", "kind": "Thing", "metadata": meta, "size": size}


def page(*items: dict[str, Any], version: int, more: str = "") -> bytes:
    """One page of a list."""
    return msgspec.json.encode({"metadata": {"resourceVersion": str(version), "continue": more}, "items": items})


def frame(kind: str, obj: dict[str, Any]) -> bytes:
    """One event of a watch."""
    return msgspec.json.encode({"type": kind, "object": obj})


def bookmark(version: int) -> bytes:
    """A bookmark event."""
    return frame("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": str(version)}})


SILENCE = "silence"
"""A step of a watch: the connection stays open and nothing comes."""


class Scripted:
    """Plays `lists` (pages or errors) and `watches` (steps: frames, `SILENCE`, errors); records what it was asked.

    A script that has run out stays silent for ever, which for a watch means: as long as a test may last.
    """

    timeout = timedelta(seconds=0.2)

    def __init__(self, lists: list[bytes | Exception], watches: list[list[bytes | str | Exception]]) -> None:
        self.lists = deque(lists)
        self.watches = deque(watches)
        self.list_calls: list[dict[str, Any]] = []
        self.watch_calls: list[dict[str, Any]] = []

    @property
    def client(self) -> Client:
        """This script in the place of a client."""
        return cast(Client, self)

    @property
    def resumed_at(self) -> list[str]:
        """The versions from which watches were asked for."""
        return [call["resource_version"] for call in self.watch_calls]

    async def list_page(self, kind: Any, **call: Any) -> ListPage[Any]:
        self.list_calls.append(call)
        if not self.lists:
            await asyncio.Event().wait()
        answer = self.lists.popleft()
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return decode_list(kind, answer)

    async def watch(self, resource: Any, *, idle_limit: timedelta, **call: Any) -> AsyncIterator[bytes]:
        self.watch_calls.append(call)
        if not self.watches:
            await asyncio.Event().wait()
        for step in self.watches.popleft():
            await asyncio.sleep(0)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, str):
                await asyncio.sleep(idle_limit.total_seconds())
                raise TransportError("nothing arrived within the idle limit")
            yield step


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[None]:
    """Run coroutines in the background of a block, and cancel them at its end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
        yield
        for task in tasks:
            task.cancel()


async def until(condition: Callable[[], Any], *, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)
