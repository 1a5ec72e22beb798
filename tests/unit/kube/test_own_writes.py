"""The cache and our own writes together show the newest copy of an object, and remember none for good."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.kube.informer import Informer
from inferencecache.kube.own_writes import BELIEVED_FOR, OwnWrites
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import Scripted, Thing, raw

KEY = Key("a", "x")


class Lagging:
    """An API server with one name, and an informer to which its watch comes when the test says so."""

    def __init__(self) -> None:
        self.informer: Informer[Thing] = Informer(Scripted([], []).client, Thing)
        self.now = 0.0
        self.subject = OwnWrites(self.informer, clock=lambda: self.now)
        self.live: Thing | None = None
        self.versions = 0
        self.coming: deque[Thing | None] = deque()

    def write(self) -> Thing:
        """Make the object, or change it."""
        self.versions += 1
        uid = self.live.metadata.uid if self.live is not None else f"made-at-{self.versions}"
        self.live = msgspec.convert(raw("x", self.versions, uid=uid), Thing)
        self.coming.append(self.live)
        return self.live

    def delete(self) -> None:
        if self.live is not None:
            self.versions += 1
            self.live = None
            self.coming.append(None)

    def deliver(self) -> None:
        if self.coming:
            told = self.coming.popleft()
            feed: Any = self.informer._content
            _ = feed.put(told) if told is not None else feed.remove(KEY)


def version(thing: Thing | None) -> int:
    return int(thing.metadata.resource_version) if thing is not None else 0


@given(st.lists(st.sampled_from(["ours", "theirs", "delete", "deliver"])))
def test_the_newest_copy_is_seen_however_far_the_watch_is_behind(steps: list[str]) -> None:
    world = Lagging()
    ended_at, ours = 0, 0
    for step in steps:
        match step:
            case "ours":
                written = world.write()
                ours = version(written)
                world.subject.answered(written)
            case "theirs":
                world.write()
            case "delete":
                world.delete()
            case "deliver":
                if world.coming and world.coming[0] is None:
                    ended_at = version(world.informer.get(KEY))
                world.deliver()
        seen = version(world.subject.get(KEY))
        assert seen >= version(world.informer.get(KEY))
        assert seen >= ours or ended_at >= ours, "our own write is not seen, and nobody told of its end"
    while world.coming:
        world.deliver()
    assert world.subject.get(KEY) == world.live
    assert len(world.subject) == 0


def test_a_write_that_the_watch_was_faster_than_is_not_remembered() -> None:
    world = Lagging()
    written = world.write()
    world.deliver()
    world.subject.answered(written)
    assert len(world.subject) == 0


def test_what_the_watch_never_tells_of_is_not_believed_for_long() -> None:
    world = Lagging()
    world.subject.answered(world.write())
    assert world.subject.get(KEY) == world.live
    world.now += BELIEVED_FOR.total_seconds()
    assert world.subject.get(KEY) is None
    assert len(world.subject) == 0
