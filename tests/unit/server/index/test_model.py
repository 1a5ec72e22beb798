"""The index against the model of it: whatever happened, both say the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencecache.server.index import PrefixIndex, index, recency
from tests.unit.server.index.operations import History, compare_short_chains


@pytest.mark.parametrize("batch", [3, 1024])
@pytest.mark.parametrize("capacity", [0, 6, 14, 40])
def test_a_long_history_leaves_the_index_and_its_model_alike(
    capacity: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recency, "BATCH", batch)
    compare_short_chains(monkeypatch.setattr)
    history = History(random.Random(capacity), capacity)
    for _ in range(1500):
        history.step()


@pytest.mark.parametrize("seed", range(6))
def test_an_index_that_puts_off_all_it_can_gives_the_same_answers_all_along(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recency, "BATCH", 2)
    monkeypatch.setattr(index, "QUOTA_SLICE", 1)
    monkeypatch.setattr(index, "CLEARED_AT_ONCE", 0)
    history = History(random.Random(seed), 0, puts_off=True)
    for _ in range(600):
        history.step()
    history.settle()
    history.steps = 3
    history.compare()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False), capacity=st.sampled_from([0, 4, 10]), steps=st.integers(1, 25))
def test_any_short_history_leaves_the_index_and_its_model_alike(rng: random.Random, capacity: int, steps: int) -> None:
    history = History(rng, capacity)
    for _ in range(steps):
        history.step()


@pytest.mark.parametrize("seed", range(8))
def test_an_index_that_took_in_a_dump_gives_the_same_answers(seed: int) -> None:
    history = History(random.Random(seed), 0)
    for _ in range(120):
        history.step()
    twin = PrefixIndex(history.rules, capacity=0)
    history.rules.quotas.clear()
    for report in history.real.dump():
        twin.ingest(report, history.now_us)
    for _ in range(200):
        query = history.query()
        if query.scope.tenant != "inferencecache.io/probe":
            assert twin.match(query, history.now_us) == history.real.match(query, history.now_us)
            assert twin.serving(query.scope) == history.real.serving(query.scope)
