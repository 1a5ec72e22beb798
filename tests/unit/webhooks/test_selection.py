"""When Pod admission asks the API server, and when it does not (decision A13)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.errors import TransportError
from inferencecache.kube.informer import Change
from inferencecache.webhooks.selection import InformedBackends, LookupFailed


def _backend(name: str) -> CacheBackend:
    return CacheBackend.decode({"metadata": {"name": name, "namespace": "ns"}})


@dataclass
class World:
    """An informer that holds `cached`, and an API server that lists `live`; the test turns the knobs."""

    now: float = 1000.0
    synced: bool = True
    open: bool = True
    heard: float = 1000.0
    lists: int = 0
    failure: Exception | None = None
    hangs: bool = False
    live: list[CacheBackend] = field(default_factory=lambda: [_backend("live")])

    def connected(self, now_monotonic: float) -> bool:
        return self.open

    def silent_for(self, now_monotonic: float) -> float:
        return now_monotonic - self.heard

    def list(self, namespace: str = "") -> list[CacheBackend]:
        return [_backend("cached")]

    @property
    def reader(self) -> InformedBackends:
        return InformedBackends(self, _Server(self), clock=lambda: self.now, live_timeout=timedelta(seconds=0.05))


class _Server:
    def __init__(self, world: World) -> None:
        self._world = world

    async def list(self, kind: Any, *, namespace: str = "") -> list[Any]:
        self._world.lists += 1
        if self._world.hangs:
            await asyncio.Event().wait()
        if self._world.failure:
            raise self._world.failure
        return list(self._world.live)


async def _names(reader: InformedBackends) -> list[str]:
    return [backend.metadata.name for backend in await reader.backends("ns")]


async def test_the_common_case_asks_nobody() -> None:
    world = World(now=1059.0)  # a minute of silence is what an idle cluster sounds like
    assert await _names(world.reader) == ["cached"]
    assert world.lists == 0


@pytest.mark.parametrize(
    "world", [World(synced=False), World(open=False), World(now=1091.0)], ids=lambda w: repr(w)[:60]
)
async def test_an_informer_that_may_lag_is_not_trusted(world: World) -> None:
    assert await _names(world.reader) == ["live"]


def _state(**status: Any) -> CacheBackend:
    meta = {"name": "kv", "namespace": "ns", "generation": 1}
    return CacheBackend.decode({"metadata": meta, "status": status})


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (Change(None, _state()), "live"),
        (Change(_state(), None), "live"),
        (Change(_state(), _state(endpoint="kv:1")), "live"),
        (Change(_state(), _state(matchedEnginePods=3)), "cached"),
        (Change(_state(), _state(indexParticipation={"prefixCount": 7})), "cached"),
        (Change(None, _state(), initial=True), "cached"),
    ],
)
async def test_news_that_decides_how_pods_are_wired_may_have_more_behind_it(
    change: Change[CacheBackend], seen: str
) -> None:
    world = World()
    reader = world.reader
    reader.changed(change)
    assert await _names(reader) == [seen]
    assert [backend.metadata.name for backend in await reader.backends("elsewhere")] == ["cached"]
    world.now = world.heard = 1005.0
    assert await _names(reader) == ["cached"]


async def test_a_backend_admitted_moments_ago_is_looked_for_live_in_its_namespace_only() -> None:
    world = World()
    reader = world.reader
    reader.admitted("ns")
    assert await _names(reader) == ["live"]
    await reader.backends("elsewhere")
    assert world.lists == 1
    world.now += 5.1
    assert await _names(reader) == ["cached"]


@pytest.mark.parametrize("trouble", [{"failure": TransportError("away")}, {"hangs": True}])
async def test_a_failing_live_list_falls_back_on_the_cache(trouble: dict[str, Any]) -> None:
    assert await _names(World(open=False, **trouble).reader) == ["cached"]


@pytest.mark.parametrize("trouble", [{"failure": TransportError("away")}, {"hangs": True}])
async def test_without_any_knowledge_the_lookup_fails(trouble: dict[str, Any]) -> None:
    with pytest.raises(LookupFailed, match="listing CacheBackends in ns failed"):
        await World(synced=False, **trouble).reader.backends("ns")
