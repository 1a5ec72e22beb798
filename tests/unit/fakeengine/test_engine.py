"""Which rank takes a request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from inferencecache.fakeengine.engine import Engine
from inferencecache.fakeengine.run import FakeEngineSettings, running


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running(FakeEngineSettings(bind="tcp://127.0.0.1:*", repeat=False)) as one:
        yield one


@pytest.mark.parametrize("rank", [-1, 1])
async def test_a_rank_that_there_is_not_takes_nothing(engine: Engine, rank: int) -> None:
    with pytest.raises(IndexError):
        await engine.complete([1] * 128, rank)
    assert engine.ranks[0].counters.prompts == 0


async def test_without_a_rank_they_take_turns(engine: Engine) -> None:
    first, second = [await engine.complete([1] * 256) for _ in range(2)]
    assert (first.cached_tokens, second.cached_tokens) == (0, 256)
