"""The functional probe's calls: one per backend and window, beside the passes, each with a deadline (decision F3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend import metrics
from inferencecache.controllers.cachebackend.outcomes import Answered, Unanswered
from inferencecache.controllers.cachebackend.probing import AT_ONCE, WINDOW, Prober, read_answer, request_for
from inferencecache.kube.errors import KubeError
from inferencecache.kube.resource import Key
from tests.unit.controllers.backends import MANAGED, backend

KEY = Key("ns", "kv")


class Server:
    """Answers at once, or when told to."""

    def __init__(self, *, open_: bool = True) -> None:
        self.calls: list[str] = []
        self.broken: Exception | None = None
        self.gate = asyncio.Event()
        if open_:
            self.gate.set()

    async def send(self, method: str, body: bytes) -> bytes:
        name = json.loads(body)["backend"]
        self.calls.append(name)
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        return json.dumps({"backend": name, "ingest": "ok", "routing": "ok", "t2": "skipped"}).encode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def probing(
    server: Server, *, clock: Callable[[], float] = lambda: 0.0, deadline: float = 60, jitter: float = 0.0
) -> AsyncIterator[tuple[Prober, asyncio.Queue[Key]]]:
    woken: asyncio.Queue[Key] = asyncio.Queue()
    prober = Prober(server, woken.put_nowait, clock=clock, jitter=lambda: jitter, timeout=timedelta(seconds=deadline))
    running = asyncio.create_task(prober.run())
    await asyncio.sleep(0)
    yield prober, woken
    running.cancel()
    await asyncio.wait([running])


async def test_one_call_per_window_and_the_outcome_wakes() -> None:
    server, clock, one = Server(), Clock(), backend()
    async with probing(server, clock=clock) as (prober, woken):
        assert prober.outcome(one) is None
        assert prober.ask(one) is None
        assert await woken.get() == KEY
        assert prober.outcome(one) == Answered(("ok", "ok", "skipped"))
        clock.now = 10
        assert prober.ask(one) == timedelta(seconds=20)
        clock.now = 30
        assert prober.ask(one) is None
        await woken.get()
    assert server.calls == ["ns/kv", "ns/kv"]


async def test_a_failed_call_consumes_its_window_and_some_more() -> None:
    server, one = Server(), backend()
    server.broken = KubeError("HTTP 503")
    async with probing(server, jitter=0.5) as (prober, woken):
        prober.ask(one)
        await woken.get()
        assert prober.outcome(one) == Unanswered("HTTP 503")
        assert prober.ask(one) == WINDOW * 1.5


async def test_a_bug_in_one_call_ends_no_other() -> None:
    server, one = Server(), backend()
    server.broken = RuntimeError("bug")
    async with probing(server) as (prober, woken):
        prober.ask(one)
        await woken.get()
        assert isinstance(prober.outcome(one), Unanswered)
        prober.ask(backend(name="other"))
        assert await woken.get() == Key("ns", "other")


async def test_a_call_that_is_on_its_way_is_not_made_twice() -> None:
    server, one = Server(open_=False), backend()
    async with probing(server) as (prober, woken):
        for _ in range(3):
            assert prober.ask(one) is None
            await asyncio.sleep(0)
        server.gate.set()
        await woken.get()
    assert len(server.calls) == 1


async def test_the_window_belongs_to_the_uid() -> None:
    server, one = Server(), backend()
    renewed = CacheBackend.decode({**one.manifest(), "metadata": {"name": "kv", "namespace": "ns", "uid": "u-2"}})
    async with probing(server) as (prober, woken):
        prober.ask(one)
        await woken.get()
        assert prober.outcome(renewed) is None
        assert prober.ask(renewed) is None
        await woken.get()
    assert len(server.calls) == 2


async def test_a_dead_server_costs_every_backend_one_deadline_however_many_there_are() -> None:
    server = Server(open_=False)
    many = [backend(name=f"kv-{n}") for n in range(3 * AT_ONCE)]
    async with probing(server, deadline=0.5) as (prober, woken):
        async with asyncio.timeout(60):  # one after the other they would take longer
            for one in many:
                prober.ask(one)
            for _ in many:
                await woken.get()
        assert all(prober.outcome(one) == Unanswered("no answer within 0.5 s") for one in many)
    assert len(server.calls) >= AT_ONCE


async def test_nothing_is_counted_for_a_backend_that_went_meanwhile() -> None:
    server, one = Server(open_=False), backend()
    metrics.forget(KEY)
    async with probing(server) as (prober, woken):
        prober.ask(one)
        await asyncio.sleep(0)
        prober.forget(KEY)
        server.gate.set()
        await woken.get()
    assert counted() == set()


def counted() -> set[tuple[str, ...]]:
    samples = metrics.PROBE_RESULTS.collect()[0].samples
    return {(one.labels["stage"], one.labels["result"]) for one in samples if one.labels["backend"] == str(KEY)}


def test_each_stage_is_counted_and_an_odd_result_is_a_failure_until_the_backend_goes() -> None:
    """Spec 05 §1.6, decision F13."""
    metrics.forget(KEY)
    metrics.count_probe(KEY, Answered(("ok", "odd", "skipped")))
    metrics.count_cascade(KEY)
    assert counted() == {("ingest", "ok"), ("routing", "failed"), ("t2", "skipped")}
    metrics.forget(KEY)
    assert counted() == set()
    of_backend = {"namespace": KEY.namespace, "backend": KEY.name}
    assert not [one for one in metrics.CASCADES.collect()[0].samples if of_backend.items() <= one.labels.items()]


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ({"remoteStorage": MANAGED}, {"hashScheme": "vllm", "backendType": "LMCache"}),
        ({"runtime": "SGLang", "type": ""}, {"hashScheme": "sglang"}),
        ({"runtime": "", "type": None}, {"hashScheme": "vllm"}),
    ],
)
def test_the_request_names_backend_and_scheme(spec: dict[str, object], more: dict[str, str]) -> None:
    """Spec 05 §5."""
    body = json.loads(request_for(backend(**spec)))
    assert body == {"backend": "ns/kv", "model": "functional-self-test", **more}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"backend": "ns/other", "ingest": "ok"}', b"\xff", b"{}"])
def test_an_answer_about_something_else_is_none(body: bytes) -> None:
    assert isinstance(read_answer(body, KEY), Unanswered)


def test_unknown_keys_of_an_answer_are_skipped_and_missing_stages_are_empty() -> None:
    body = b'{"backend": "ns/kv", "new": 1, "ingest": "failed", "errors": [{"stage": "ingest", "message": "why"}]}'
    assert read_answer(body, KEY) == Answered(("failed", "", ""), (("ingest", "why"),))
