"""A controller survives whatever its reconciler does, and tells what happened in controller-runtime's terms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import LogCapture

from inferencecache.kube.controller import Controller, Result
from inferencecache.kube.errors import Conflict, KubeError, TerminalError
from inferencecache.kube.handlers import for_self
from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import ConfigMap, ObjectMeta
from inferencecache.kube.resource import Key
from inferencecache.kube.workqueue import Backoff, WorkQueue

A, B = Key("ns", "a"), Key("ns", "b")


class Script:
    """A reconciler that plays one step per pass of a key, and then succeeds."""

    def __init__(self, *steps: Callable[[], Awaitable[Result | None]]) -> None:
        self.steps = list(steps)
        self.passes: list[Key] = []
        self.resting = asyncio.Event()

    async def reconcile(self, key: Key) -> Result | None:
        self.passes.append(key)
        if self.steps:
            return await self.steps.pop(0)()
        self.resting.set()
        return None


def raising(error: BaseException) -> Callable[[], Awaitable[Result | None]]:
    async def step() -> Result | None:
        raise error

    return step


def returning(result: Result | None) -> Callable[[], Awaitable[Result | None]]:
    async def step() -> Result | None:
        return result

    return step


async def sleeping() -> Result | None:
    await asyncio.sleep(3600)
    return None


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a controller gives no event for its inner state
            await asyncio.sleep(0)


AT_ONCE = Backoff(first=timedelta(milliseconds=1))


@asynccontextmanager
async def running(
    name: str,
    script: Script,
    *,
    backoff: Backoff = AT_ONCE,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> AsyncIterator[Controller]:
    queue: WorkQueue[Key] = WorkQueue(name, controller=name, backoff=backoff, clock=clock)
    controller = Controller(name, script, queue=queue, **options)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        controller.stop()
        await asyncio.wait_for(task, 60)


def value(series: str, controller: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"controller_runtime_{series}", {"controller": controller, **labels}) or 0.0


@pytest.mark.parametrize(
    ("name", "step", "result", "series"),
    [
        ("conflict", raising(Conflict("changed", status=409)), "error", "reconcile_errors_total"),
        ("network", raising(ConnectionResetError()), "error", "reconcile_errors_total"),
        ("own-timeout", raising(TimeoutError()), "error", "reconcile_errors_total"),
        ("bug", raising(KeyError("spec")), "error", "reconcile_panics_total"),
        ("own-cancel", raising(asyncio.CancelledError()), "error", "reconcile_errors_total"),
        ("slow", sleeping, "error", "reconcile_timeouts_total"),
        ("soon", returning(Result(requeue_after=timedelta())), "requeue", ""),
        ("later", returning(Result(requeue_after=timedelta(milliseconds=5))), "requeue_after", ""),
    ],
)
async def test_every_outcome_is_counted_and_followed_by_another_pass(
    name: str, step: Callable[[], Awaitable[Result | None]], result: str, series: str
) -> None:
    script = Script(step)
    async with running(name, script, timeout=timedelta(seconds=0.05)) as controller:
        controller.enqueue(A)
        await asyncio.wait_for(script.resting.wait(), 60)
    assert script.passes == [A, A]
    assert value("reconcile_total", name, result=result) == 1
    assert value("reconcile_total", name, result="success") == 1
    assert value("reconcile_time_seconds_count", name) == 2
    assert value("active_workers", name) == 0
    assert controller.queue.failures(A) == 0
    for one in ("reconcile_panics_total", "reconcile_timeouts_total"):
        assert value(one, name) == (1 if one == series else 0)
    if result == "error":
        assert value("reconcile_errors_total", name) == 1


async def test_a_terminal_error_is_counted_and_not_retried_until_the_next_change() -> None:
    script = Script(raising(TerminalError("spec is wrong")))
    now = 0.0
    async with running("terminal", script, clock=lambda: now) as controller:
        controller.enqueue(A)
        await until(lambda: script.passes and not controller.queue.in_progress)
        now += timedelta(days=1).total_seconds()
        assert len(controller.queue) == 0, "nothing comes due by itself"
        controller.enqueue(A)
        await asyncio.wait_for(script.resting.wait(), 60)
    assert value("terminal_reconcile_errors_total", "terminal") == 1
    assert value("reconcile_errors_total", "terminal") == 1


async def test_stop_finishes_work_in_progress_and_starts_nothing_new() -> None:
    release = asyncio.Event()
    order: list[str] = []

    async def held() -> Result | None:
        await release.wait()
        order.append("worked")
        return None

    script = Script(held)
    controller = Controller("stopping", script, workers=1)
    task = asyncio.create_task(controller.run())
    task.add_done_callback(lambda _: order.append("stopped"))
    controller.enqueue(A)
    controller.enqueue(B)
    await until(lambda: script.passes)
    controller.stop()
    asyncio.get_running_loop().call_soon(release.set)
    await asyncio.wait_for(task, 60)
    assert order == ["worked", "stopped"]
    assert script.passes == [A]


async def test_cancelling_ends_work_in_progress() -> None:
    script = Script(sleeping)
    controller = Controller("cancelled", script)
    task = asyncio.create_task(controller.run())
    controller.enqueue(A)
    await until(lambda: script.passes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert value("active_workers", "cancelled") == 0
    assert controller.queue.in_progress == 0


async def test_an_error_may_bound_how_long_its_key_rests() -> None:
    error = KubeError("somebody else's; who will not tell when it goes")
    error.retry_within = timedelta(milliseconds=5)
    script = Script(raising(error))
    async with running("bounded", script, backoff=Backoff(first=timedelta(hours=1))) as controller:
        controller.enqueue(A)
        await asyncio.wait_for(script.resting.wait(), 60)
    assert script.passes == [A, A]


async def test_a_slow_key_holds_up_no_other() -> None:
    let_go = asyncio.Event()

    async def slow() -> Result | None:
        await let_go.wait()
        return None

    script = Script(slow)
    async with running("parallel", script, workers=2) as controller:
        controller.enqueue(A)
        controller.enqueue(B)
        await asyncio.wait_for(script.resting.wait(), 60)
        assert script.passes == [A, B]
        assert controller.queue.in_progress, "the slow one is not done"
        let_go.set()
    assert value("max_concurrent_reconciles", "parallel") == 2


async def test_log_lines_of_a_pass_carry_its_identity() -> None:
    capture = LogCapture()

    async def talking() -> Result | None:
        structlog.get_logger().info("hello")
        return None

    script = Script(talking)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    try:
        async with running("logging", script) as controller:
            controller.enqueue(A)
            await until(lambda: script.passes and not controller.queue.in_progress)
            controller.enqueue(A)
            await asyncio.wait_for(script.resting.wait(), 60)
    finally:
        structlog.reset_defaults()
    (line,) = [entry for entry in capture.entries if entry["event"] == "hello"]
    assert (line["controller"], line["namespace"], line["name"]) == ("logging", "ns", "a")
    assert len(line["reconcile_id"]) == 16


class StillInformer:
    """Enough of an informer to hand changes to a controller."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[Change[ConfigMap]], None]] = []

    def on_change(self, fn: Callable[[Change[ConfigMap]], None]) -> None:
        self.handlers.append(fn)

    def tell(self, change: Change[ConfigMap]) -> None:
        for handler in self.handlers:
            handler(change)


async def test_initial_content_waits_behind_changes() -> None:
    informer: Any = StillInformer()
    controller = Controller("priorities", Script())
    controller.watch(informer, for_self, lambda change: change.obj.metadata.name != "ignored")
    for name in ("old-1", "old-2", "ignored"):
        informer.tell(Change(None, ConfigMap(metadata=ObjectMeta(name=name)), initial=True))
    informer.tell(Change(None, ConfigMap(metadata=ObjectMeta(name="new"))))
    order = [entry.item.name for entry in iter(controller.queue.get_nowait, None)]
    assert order == ["new", "old-1", "old-2"]


def test_a_controller_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Controller("lazy", Script(), workers=0)
