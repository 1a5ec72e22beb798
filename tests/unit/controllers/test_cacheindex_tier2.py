"""The metrics of the second tier (spec 05 §7.4)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from inferencecache.controllers.cacheindex.attribution import Share
from inferencecache.controllers.cacheindex.tier2_series import Tier2Series
from inferencecache.kube.resource import Key


@pytest.fixture
def key() -> Key:
    return Key(f"ns-{uuid.uuid4().hex[:8]}", "kv")


@pytest.fixture
def series() -> Iterator[Tier2Series]:
    series = Tier2Series()
    yield series
    series.forget_others([])


def share(queries: int, hits: int = 0) -> Share:
    return Share(t2_hit_tokens=hits, t2_query_tokens=queries)


def read(key: Key) -> tuple[float | None, float | None]:
    labels = {"backend": str(key)}
    return (
        REGISTRY.get_sample_value("inferencecache_backend_t2_hit_rate", labels),
        REGISTRY.get_sample_value("inferencecache_backend_t2_query_tokens_total", labels),
    )


@pytest.mark.parametrize(
    ("totals", "counted"),
    [([100], 0), ([100, 130], 30), ([100, 130, 130], 30), ([100, 40], 0), ([100, 40, 50], 10)],
    ids=str,
)
def test_tokens_are_counted_from_one_scrape_to_the_next(
    key: Key, series: Tier2Series, totals: list[int], counted: float
) -> None:
    for total in totals:
        series.observe({key: share(total)})
    assert read(key) == (0, counted)


def test_the_rate_is_that_of_all_tokens(key: Key, series: Tier2Series) -> None:
    series.observe({key: share(8, hits=6)})
    assert read(key) == (0.75, 0)


@pytest.mark.parametrize("now", [{}, {"quiet": True}], ids=["no replica", "no query"])
def test_a_backend_that_does_not_ask_has_no_series(key: Key, series: Tier2Series, now: dict[str, bool]) -> None:
    series.observe({key: share(8)})
    series.observe({key: share(0)} if now else {})
    assert read(key) == (None, None)


def test_a_deleted_backend_leaves_nothing_behind(key: Key, series: Tier2Series) -> None:
    series.observe({key: share(8)})
    series.forget_others([Key(key.namespace, "other")])
    assert read(key) == (None, None)


def test_one_that_comes_back_counts_from_its_first_scrape(key: Key, series: Tier2Series) -> None:
    for total in (100, 150):
        series.observe({key: share(total)})
    series.observe({})
    series.observe({key: share(400)})
    assert read(key) == (0, 0)


def test_where_pods_cannot_be_seen_the_series_stay_as_they_are(key: Key, series: Tier2Series) -> None:
    for total in (100, 150):
        series.observe({key: share(total)})
    series.observe({}, unknown=[key.namespace])
    series.observe({key: share(900)}, unknown=[key.namespace])
    assert read(key) == (0, 50)
