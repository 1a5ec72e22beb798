"""The cache: who shares an informer, and what can be asked of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from inferencecache.kube.cache import Cache, CacheNotSynced
from inferencecache.kube.errors import Forbidden, NotFound
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import QUICK, Scripted, Thing, page, raw, running, until


class Other(Thing, frozen=True):
    """Another view of the same resource."""


def shrink(thing: Thing) -> Thing:
    return thing


async def test_one_informer_per_kind_and_selection() -> None:
    cache = Cache(Scripted([], []).client)
    all_things = cache.informer(Thing)
    assert cache.informer(Thing) is all_things
    labelled = cache.informer(Thing, labels={"b": "2", "a": "1"})
    assert labelled is not all_things
    assert cache.informer(Thing, labels="a=1,b=2") is labelled
    assert cache.informer(Thing, namespace="a") is not all_things
    assert cache.informer(Other) is not all_things
    assert len(cache.informers) == 4


async def test_those_who_share_an_informer_get_what_they_asked_for() -> None:
    cache = Cache(Scripted([page(raw("x", 1, size=3), version=1)], []).client, timing=QUICK)
    cache.informer(Thing)
    cache.informer(Thing, indexes={"size": lambda thing: [str(thing.size)]})
    with pytest.raises(ValueError, match="exists with another transform"):
        cache.informer(Thing, transform=shrink)
    async with running(cache.run()):
        await cache.wait_synced(timedelta(seconds=60))
        assert [obj.size for obj in cache.by_index(Thing, "size", "3")] == [3]
        assert cache.get(Thing, Key("a", "x")) is cache.list(Thing, "a")[0]


async def test_questions_go_to_the_informer_without_selection_or_the_only_one() -> None:
    cache = Cache(Scripted([], []).client)
    with pytest.raises(LookupError, match=r"Thing has no informer: cache.informer\(Thing\)"):
        cache.list(Thing)
    cache.informer(Thing, namespace="a")
    assert cache.list(Thing) == []
    cache.informer(Thing, namespace="b")
    with pytest.raises(LookupError, match="2 informers, all with selectors"):
        cache.list(Thing)
    cache.informer(Thing)
    assert cache.list(Thing) == []


async def test_an_informer_asked_for_while_running_starts_at_once() -> None:
    cache = Cache(Scripted([page(raw("x", 1), version=1)], []).client, timing=QUICK)
    async with running(cache.run()):
        await cache.wait_synced(timedelta(seconds=60))
        late = cache.informer(Thing)
        await until(lambda: late.synced)


async def test_names_who_is_late_and_why() -> None:
    refusal = Forbidden("things is forbidden", status=403)
    server = Scripted([refusal] * 1000, [])
    cache = Cache(server.client, timing=QUICK)
    cache.informer(Thing)
    async with running(cache.run()):
        await until(lambda: len(server.list_calls) > 1)
        with pytest.raises(CacheNotSynced, match=r"no complete list yet of Thing \(things is forbidden\)"):
            await cache.wait_synced(timedelta(seconds=0.1))


async def test_a_missing_kind_is_waited_for_when_anybody_requires_it() -> None:
    cache = Cache(Scripted([NotFound("no such kind", status=404)] * 1000, []).client, timing=QUICK)
    cache.informer(Thing, optional=True)
    cache.informer(Thing)
    async with running(cache.run()):
        with pytest.raises(CacheNotSynced):
            await cache.wait_synced(timedelta(seconds=0.1))
    relaxed = Cache(Scripted([NotFound("no such kind", status=404)] * 1000, []).client, timing=QUICK)
    relaxed.informer(Thing, optional=True)
    async with running(relaxed.run()):
        await relaxed.wait_synced(timedelta(seconds=60))
