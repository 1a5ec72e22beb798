"""What an engine's metrics say of its load, rule by rule (spec 08 §9, §13 "Stats")."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.subscriber.load import CacheTier, LoadReader, LoadSettings, NoLoad, parse
from inferencecache.subscriber.messages import Load

KINDS = {"running": "gauge", "waiting": "gauge", "perc": "gauge", "reqs": "gauge", "usage": "gauge", "rate": "gauge"}


def page(*lines: str) -> str:
    """A page with these series, each with the type its name suggests."""
    written = []
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        kind = KINDS.get(name.rpartition("_")[2], "counter")
        written += [f"# HELP {name} Some words.", f"# TYPE {name.removesuffix('_total')} {kind}", line]
    return "\n".join(written) + "\n"


def read(*pages: str, **settings: Any) -> Load:
    """What the last of these pages says after the others."""
    reader = LoadReader(LoadSettings(**settings))
    return [reader.read(each) for each in pages][-1]


def counters(hits: float, queries: float, suffix: str = "_total") -> str:
    return page(f"vllm:prefix_cache_hits{suffix} {hits}", f"vllm:prefix_cache_queries{suffix} {queries}")


@pytest.mark.parametrize(
    ("pages", "rate"),
    [
        ([counters(50, 100)], 0.0),
        ([counters(50, 100), counters(80, 140)], 0.75),
        ([counters(50, 100), counters(50, 100)], 0.0),
        ([counters(50, 100), counters(1, 2), counters(2, 4)], 0.5),  # a reset, and what comes after it
        ([counters(50, 100), counters(1, 2)], 0.0),
        ([counters(50, 100), page("vllm:num_requests_running 1"), counters(60, 120)], 0.5),  # the base is kept
        ([counters(0, 10), page("vllm:prefix_cache_queries_total 20"), counters(5, 20)], 0.5),
        ([counters(0, 0, ""), counters(3, 4, "")], 0.75),
        ([counters(0, 0), counters(9, 4)], 1.0),
        ([counters(0, 0), counters(float("nan"), 4)], 0.0),
    ],
)
def test_the_hit_rate_is_that_since_the_last_page(pages: list[str], rate: float) -> None:
    assert read(*pages).hit_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("lines", "tier", "usage"),
    [
        (["vllm:kv_cache_usage_perc 0.5", "vllm:gpu_cache_usage_perc 0.9"], "auto", 0.5),
        (["vllm:kv_cache_usage_perc 0"], "auto", 0.0),
        (["vllm:gpu_cache_usage_perc 0.25", "vllm:cpu_cache_usage_perc 0.75"], "auto", 0.75),
        (["vllm:gpu_cache_usage_perc 0", "vllm:cpu_cache_usage_perc 0.125"], "auto", 0.125),
        (["vllm:gpu_cache_usage_perc 0.25", "vllm:cpu_cache_usage_perc 0.75"], "gpu", 0.25),
        (["vllm:gpu_cache_usage_perc 0.25"], "kv", 0.0),
        (["vllm:kv_cache_usage_perc 0.25"], "cpu", 0.0),
        (['vllm:kv_cache_usage_perc{engine="0"} 0.25', 'vllm:kv_cache_usage_perc{engine="1"} 0.75'], "auto", 0.5),
        (["sglang:token_usage 0.5"], "auto", 0.5),
        (["sglang:token_usage 0.5"], "kv", 0.5),
        (["sglang:token_usage 0.5"], "cpu", 0.0),
    ],
)
def test_memory_is_usage_of_the_size(lines: list[str], tier: str, usage: float) -> None:
    assert read(page(*lines), cache_size_bytes=1001, tier=CacheTier(tier)).cache_memory_bytes == int(usage * 1001)


def test_without_a_size_there_is_no_memory_and_still_pressure() -> None:
    load = read(page("vllm:kv_cache_usage_perc 0.5", "vllm:num_requests_running 64", "vllm:num_requests_waiting 64"))
    assert (load.cache_memory_bytes, load.pressure) == (0, 0.5)


@pytest.mark.parametrize(
    ("lines", "ceiling", "pressure"),
    [
        (["vllm:num_requests_running 8"], 16, 0.5),
        (["vllm:num_requests_waiting 8"], 16, 0.5),
        (["vllm:num_requests_running 100", "vllm:num_requests_waiting 100"], 16, 1.0),
        (["vllm:num_requests_running 8"], 0, 0.0),
        (["vllm:num_requests_running 8"], -1, 0.0),
        (['vllm:num_requests_running{engine="0"} 4', 'vllm:num_requests_running{engine="1"} 12'], 16, 0.5),
        (["sglang:num_running_reqs 4", "sglang:num_queue_reqs 4"], 16, 0.5),
        (['sglang:num_running_reqs{tp_rank="0"} 4', 'sglang:num_running_reqs{tp_rank="1"} 4'], 16, 0.25),
    ],
)
def test_pressure_is_requests_per_engine_and_ceiling(lines: list[str], ceiling: int, pressure: float) -> None:
    assert read(page(*lines), concurrency=ceiling).pressure == pressure


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["vllm:external_prefix_cache_hits_total 6", "vllm:external_prefix_cache_queries_total 10"], (6, 10)),
        (["vllm:external_prefix_cache_hits 6", "vllm:external_prefix_cache_queries 10"], (6, 10)),
        (["vllm:num_requests_running 1"], (0, 0)),
        (['vllm:external_prefix_cache_hits_total{e="0"} 1', 'vllm:external_prefix_cache_hits_total{e="1"} 2'], (3, 0)),
        (["sglang:cached_tokens_total 6", "sglang:prompt_tokens_total 10"], (0, 0)),
        (
            [
                'sglang:cached_tokens_total{cache_source="device"} 4',
                'sglang:cached_tokens_total{cache_source="host"} 3',
                'sglang:cached_tokens_total{cache_source="storage_file"} 1',
                "sglang:prompt_tokens_total 10",
            ],
            (4, 6),
        ),
    ],
)
def test_the_offload_tier_is_told_since_the_beginning(lines: list[str], expected: tuple[int, int]) -> None:
    load = read(page(*lines))
    assert (load.t2_hit_tokens, load.t2_query_tokens) == expected


def test_sglang_counts_what_the_gpu_had_against_all_tokens() -> None:
    def sglang(device: int, host: int, prompts: int) -> str:
        return page(
            f'sglang:cached_tokens_total{{cache_source="device"}} {device}',
            f'sglang:cached_tokens_total{{cache_source="host"}} {host}',
            f"sglang:prompt_tokens_total {prompts}",
        )

    assert read(sglang(0, 0, 0), sglang(5, 3, 20)).hit_rate == 0.25


def test_an_sglang_without_counters_tells_its_own_rate() -> None:
    assert read(page("sglang:cache_hit_rate 0.25")).hit_rate == 0.25


def test_only_series_of_the_model_count() -> None:
    text = page(
        'vllm:num_requests_running{model_name="other"} 100',
        'vllm:num_requests_running{model_name="mine"} 8',
        "vllm:num_requests_waiting 100",
    )
    assert read(text, model_name="mine", concurrency=16).pressure == 0.5
    with pytest.raises(NoLoad, match="'nobody'"):
        read(text, model_name="nobody")


def test_only_gauges_and_counters_count() -> None:
    text = "# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running 8\nvllm:kv_cache_usage_perc 0.5\n"
    with pytest.raises(NoLoad):
        read(text)


def test_a_page_of_something_else_is_no_load() -> None:
    with pytest.raises(NoLoad):
        read("# TYPE up gauge\nup 1\n")


def test_labels_may_hold_anything_and_lines_a_timestamp() -> None:
    text = page('vllm:num_requests_running{model_name="a} \\" ,b",engine="0"} 8 1700000000000')
    assert parse(text)["vllm:num_requests_running"] == [({"model_name": 'a} \\" ,b', "engine": "0"}, 8.0)]


@given(st.text(alphabet=st.sampled_from('vllm:sgan_gauge# TYPE{}="\\\n 0.5e+Infcounter'), max_size=200))
def test_any_page_is_read_or_is_no_load(text: str) -> None:
    try:
        load = read(text, cache_size_bytes=100)
    except NoLoad:
        return
    assert 0 <= load.hit_rate <= 1
    assert 0 <= load.pressure <= 1


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e300", "-5"])
def test_a_number_that_makes_no_sense_costs_that_number_and_not_the_signal(number: str) -> None:
    load = read(
        page(
            f"vllm:external_prefix_cache_hits_total {number}",
            f"vllm:external_prefix_cache_queries_total {number}",
            f"vllm:kv_cache_usage_perc {number}",
            "vllm:num_requests_running 64",
        ),
        cache_size_bytes=1 << 40,
    )
    assert load.pressure == 0.25
    for amount in (load.t2_hit_tokens, load.t2_query_tokens, load.cache_memory_bytes):
        assert 0 <= amount < 2**63
