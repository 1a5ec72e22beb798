"""The load signal: when it is told, when it is stale, and what is said of that (spec 08 §9)."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from inferencecache.subscriber.channel import UNAVAILABLE, Address, Channel, RpcError
from inferencecache.subscriber.load import LoadReader, LoadSettings, NoLoad
from inferencecache.subscriber.messages import Identity
from inferencecache.subscriber.scrape import ScrapeError
from inferencecache.subscriber.stats import SGLANG_METRICS, VLLM_METRICS, Freshness, Pages, StatsReporter
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb


def told(ticks: str) -> list[tuple[str, str | None]]:
    """Levels and machine-stable events of the lines that ticks cause; `.` is a delivery and `x` none."""
    freshness = Freshness()
    with capture_logs() as lines:
        for tick in ticks:
            freshness.succeeded() if tick == "." else freshness.failed("why")
    return [(line["log_level"], line.get("event_")) for line in lines]


def test_two_failures_are_warnings_the_third_is_an_error_and_then_there_is_silence() -> None:
    assert told("xxxxx") == [
        ("warning", None),
        ("warning", None),
        ("error", "load_signal_stale"),
        ("debug", None),
        ("debug", None),
    ]


def test_a_return_is_told_once_and_only_after_an_error() -> None:
    assert told("xx..") == [("warning", None), ("warning", None)]
    assert told("xxxx..")[-1] == ("info", "load_signal_recovered")
    assert len(told("xxxx..")) == 5


@pytest.mark.parametrize(
    ("ticks", "words"),
    [
        ("xxx", "this process has not delivered the engine's load yet"),
        (".xxx", "this process delivers the engine's load no longer"),
    ],
)
def test_it_is_said_whether_this_process_ever_delivered(ticks: str, words: str) -> None:
    freshness = Freshness()
    with capture_logs() as lines:
        for tick in ticks:
            freshness.succeeded() if tick == "." else freshness.failed("why")
    assert lines[-1]["event"] == words


ENGINE = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 64\n"
ELSE = [
    pytest.param(ScrapeError("8000: connection refused"), id="nobody"),
    pytest.param(ScrapeError("8000: HTTP status 404"), id="something without metrics"),
    pytest.param("# TYPE http_requests_total counter\nhttp_requests_total 1\n", id="something with metrics of its own"),
]


@pytest.mark.parametrize("other", ELSE)
async def test_the_page_is_asked_for_where_it_was_found_last(other: str | ScrapeError) -> None:
    asked: list[str] = []
    engine = SGLANG_METRICS

    async def get(url: str, _within: float) -> str:
        asked.append(url)
        if url == engine:
            return ENGINE
        if isinstance(other, ScrapeError):
            raise other
        return other

    pages, reader = Pages([VLLM_METRICS, SGLANG_METRICS], get), LoadReader(LoadSettings())
    assert (await pages.read(reader)).pressure == 0.25
    assert (await pages.read(reader)).pressure == 0.25
    assert asked == [VLLM_METRICS, SGLANG_METRICS, SGLANG_METRICS]
    engine = VLLM_METRICS
    assert (await pages.read(reader)).pressure == 0.25
    assert asked[3:] == [SGLANG_METRICS, VLLM_METRICS]


async def test_what_is_wrong_with_each_address_is_said() -> None:
    async def get(url: str, _within: float) -> str:
        if url == VLLM_METRICS:
            return ""
        raise ScrapeError(f"{url}: HTTP status 404")

    with pytest.raises(NoLoad, match=r":8000/metrics: .* none of the metrics .*:30000/metrics: HTTP status 404"):
        await Pages([VLLM_METRICS, SGLANG_METRICS], get).read(LoadReader(LoadSettings()))


class _Answering(Channel):
    """Gives every call the same answer."""

    def __init__(self, answer: bytes | RpcError) -> None:
        super().__init__(Address("127.0.0.1", 1))
        self._answer = answer

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        if isinstance(self._answer, RpcError):
            raise self._answer
        return self._answer


_TAKEN = pb.Ack(accepted=True).SerializeToString()
_REFUSED = pb.Ack(accepted=False).SerializeToString()
_DOWN = RpcError(UNAVAILABLE, "down")


@pytest.mark.parametrize(
    ("answers", "failures"),
    [
        ([_TAKEN], 0),
        ([_REFUSED], 1),
        ([_DOWN], 1),
        ([b"\xff no message"], 1),
        ([_TAKEN, _DOWN], 0),
        ([_DOWN, _REFUSED], 1),
        ([], 1),
    ],
)
async def test_one_server_that_took_the_load_is_a_delivery(answers: list[bytes | RpcError], failures: int) -> None:
    async def get(_url: str, _within: float) -> str:
        return "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"

    channels = [_Answering(answer) for answer in answers]
    reporter = StatsReporter(
        Pages([VLLM_METRICS], get), LoadReader(LoadSettings()), Identity("r", "m"), lambda: channels
    )
    await reporter.tick()
    assert reporter.freshness.failures == failures
