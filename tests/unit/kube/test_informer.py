"""The informer: what handlers hear, what readers see, and that neither can hurt the other."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.kube.errors import NotFound
from inferencecache.kube.informer import HANDLER_FAILURES, Change, Informer
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import QUICK, Scripted, Thing, frame, page, raw, running, until


def informer(server: Scripted, **options: Any) -> Informer[Thing]:
    return Informer(server.client, Thing, timing=QUICK, **options)


def words(change: Change[Thing]) -> str:
    """A change in one word: `+x` added, `-x` deleted, `~x` changed; `!` marks the initial content."""
    sign = "+" if change.old is None else "-" if change.new is None else "~"
    return f"{'!' if change.initial else ''}{sign}{change.key.name}"


async def test_tells_the_content_then_each_change() -> None:
    server = Scripted(
        [page(raw("x", 1), raw("y", 2), version=2)],
        [
            [
                frame("ADDED", raw("z", 3)),
                frame("MODIFIED", raw("x", 4)),
                frame("MODIFIED", raw("x", 4)),
                frame("DELETED", raw("y", 5)),
            ]
        ],
    )
    subject = informer(server)
    heard: list[str] = []
    subject.on_change(lambda change: heard.append(words(change)))
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    # The second, identical x@4 is nothing new.
    assert heard == ["!+x", "!+y", "+z", "~x", "-y"]
    assert [obj.metadata.name for obj in subject.list()] == ["x", "z"]
    assert subject.list("elsewhere") == []
    assert len(subject) == 2


async def test_is_synced_only_when_the_whole_list_has_been_told() -> None:
    server = Scripted([page(raw("x", 1), version=2, more="next"), page(raw("y", 2), version=2)], [])
    subject = informer(server)
    at_each: list[bool] = []
    subject.on_change(lambda _: at_each.append(subject.synced))
    async with running(subject.run()):
        await asyncio.wait_for(subject.wait_synced(), 60)
        assert subject.synced
    assert at_each == [False, False]


async def test_a_handler_that_comes_late_hears_the_content_first() -> None:
    server = Scripted([page(raw("x", 1), version=1)], [[frame("ADDED", raw("y", 2))]])
    subject = informer(server)
    async with running(subject.run()):
        await until(lambda: len(subject) == 2)
    heard: list[str] = []
    subject.on_change(lambda change: heard.append(words(change)))
    assert heard == ["!+x", "!+y"]


async def test_a_handler_that_raises_hurts_nobody_else() -> None:
    before = HANDLER_FAILURES.labels("things")._value.get()
    server = Scripted([page(raw("x", 1), version=1)], [[frame("ADDED", raw("y", 2))]])
    subject = informer(server)
    heard: list[str] = []

    def bad(change: Change[Thing]) -> None:
        raise RuntimeError("bug in a handler")

    subject.on_change(bad)
    subject.on_change(lambda change: heard.append(words(change)))
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert heard == ["!+x", "+y"]
    assert HANDLER_FAILURES.labels("things")._value.get() - before == 2


async def test_a_namesake_made_while_nobody_watched_is_a_deletion_and_an_addition() -> None:
    server = Scripted(
        [page(raw("x", 1, uid="first"), version=1), page(raw("x", 9, uid="second"), version=9)],
        [[frame("ERROR", {"code": 410, "reason": "Expired"})]],
    )
    subject = informer(server)
    heard: list[str] = []
    subject.on_change(lambda change: heard.append(f"{words(change)} {change.obj.metadata.uid}"))
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert heard == ["!+x first", "-x first", "+x second"]


async def test_transforms_before_storing_and_drops_what_cannot_be_transformed() -> None:
    def halve(thing: Thing) -> Thing:
        if thing.size % 2:
            raise ValueError("odd")
        return msgspec.structs.replace(thing, size=thing.size // 2)

    server = Scripted(
        [page(raw("x", 1, size=8), raw("y", 2, size=4), version=2)], [[frame("MODIFIED", raw("x", 3, size=7))]]
    )
    subject = informer(server, transform=halve)
    heard: list[str] = []
    subject.on_change(lambda change: heard.append(words(change)))
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert [(obj.metadata.name, obj.size) for obj in subject.list()] == [("y", 2)]
    assert heard == ["!+x", "!+y", "-x"]


async def test_indexes_follow_the_changes() -> None:
    server = Scripted(
        [page(raw("x", 1, size=1), raw("y", 2, size=2), version=2)], [[frame("MODIFIED", raw("x", 3, size=2))]]
    )
    subject = informer(server, indexes={"size": lambda thing: [str(thing.size)]})
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert sorted(obj.metadata.name for obj in subject.by_index("size", "2")) == ["x", "y"]
    assert subject.by_index("size", "1") == []
    subject.add_index("parity", lambda thing: ["odd" if thing.size % 2 else "even"])
    assert len(subject.by_index("parity", "even")) == 2
    with pytest.raises(LookupError, match="no index 'colour'"):
        subject.by_index("colour", "red")


async def test_nothing_waits_for_an_optional_kind_that_is_missing() -> None:
    absent = NotFound("no such kind", status=404)
    server = Scripted([absent], [])
    subject = informer(server, optional=True)
    async with running(subject.run()):
        await asyncio.wait_for(subject.wait_synced(), 60)
        assert subject.missing
        assert not subject.synced
        server.lists.append(page(raw("x", 1), version=1))
        server.list_calls.clear()
    async with running(subject.run()):
        await until(lambda: subject.synced)
        assert not subject.missing
        assert subject.get(Key("a", "x"))


async def test_equal_labels_of_many_objects_are_stored_once() -> None:
    labels = {"app": "an-application-with-a-name"}
    things = [raw(f"t{number}", number + 1, labels=labels) for number in range(3)]
    server = Scripted([page(*things, version=5)], [[frame("MODIFIED", raw("t0", 9, size=1, labels=labels))]])
    subject = informer(server)
    async with running(subject.run()):
        await until(lambda: len(server.watch_calls) == 2)
    assert len({id(thing.metadata.labels["app"]) for thing in subject.list()}) == 1
    assert len({id(thing.metadata.labels) for thing in subject.list()}) == 3


# A history: what happens to names in order, and where the watch breaks with 410 so that a list must bridge the gap.
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("xyz")),
        st.tuples(st.just("delete"), st.sampled_from("xyz")),
        st.tuples(st.just("gap"), st.integers(min_value=0, max_value=4)),
    ),
    max_size=30,
)


@given(happenings)
def test_whatever_happens_handlers_and_store_end_at_the_truth(script: list[tuple[str, Any]]) -> None:
    """Through any history with any gaps, replaying what handlers heard gives the server's content."""
    lists: list[bytes | Exception] = [page(version=1)]
    watches: list[list[bytes | str | Exception]] = [[]]
    truth: dict[str, dict[str, Any]] = {}
    unseen = 0
    for version, (what, argument) in enumerate(script, start=2):
        event: bytes | None = None
        if what == "put":
            kind = "MODIFIED" if argument in truth else "ADDED"
            uid = truth[argument]["metadata"]["uid"] if argument in truth else f"uid-{version}"
            truth[argument] = raw(argument, version, uid=uid)
            event = frame(kind, truth[argument])
        elif what == "delete" and argument in truth:
            event = frame("DELETED", raw(argument, version, uid=truth.pop(argument)["metadata"]["uid"]))
        elif what == "gap" and unseen == 0:
            unseen = argument + 1
            continue
        if unseen:
            unseen -= 1
            if unseen == 0:
                watches[-1].append(frame("ERROR", {"code": 410, "reason": "Expired"}))
                lists.append(page(*truth.values(), version=version))
                watches.append([])
        elif event is not None:
            watches[-1].append(event)
    if unseen:
        watches[-1].append(frame("ERROR", {"code": 410, "reason": "Expired"}))
        lists.append(page(*truth.values(), version=len(script) + 2))
        watches.append([])

    async def follow() -> None:
        server = Scripted(lists, watches)
        subject = informer(server)
        replayed: dict[str, Thing] = {}

        def replay(change: Change[Thing]) -> None:
            assert replayed.get(change.key.name) is change.old
            if change.old is not None and change.new is not None:
                assert change.old.metadata.uid == change.new.metadata.uid
            if change.new is None:
                del replayed[change.key.name]
            else:
                replayed[change.key.name] = change.new

        before = HANDLER_FAILURES.labels("things")._value.get()
        subject.on_change(replay)
        async with running(subject.run()):
            await until(lambda: not server.watches and len(server.watch_calls) > len(watches))
        expected = {name: obj["metadata"]["resourceVersion"] for name, obj in truth.items()}
        assert {name: thing.metadata.resource_version for name, thing in replayed.items()} == expected
        assert {thing.metadata.name: thing.metadata.resource_version for thing in subject.list()} == expected
        assert HANDLER_FAILURES.labels("things")._value.get() == before

    asyncio.run(follow())
