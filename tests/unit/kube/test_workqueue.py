"""The work queue against a model that can be checked by eye, and under concurrent workers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import REGISTRY

from inferencecache.kube.workqueue import LOW_PRIORITY, Backoff, QueueShutDown, WorkQueue
from tests.unit.kube.scripted import until

ITEMS = st.sampled_from(["a", "b", "c", "d"])
PRIORITIES = st.sampled_from([LOW_PRIORITY, 0, 10])


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    """What the model knows of an item that is not being worked on, or wanted again while it is."""

    due: float
    priority: int
    order: int


class QueueModel(RuleBasedStateMachine):
    """Every item has at most one place; the next one out is the best of those that are due. Nothing else is true."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.queue: WorkQueue[str] = WorkQueue("model", clock=self.clock)
        self.places: dict[str, Place] = {}
        self.working: set[str] = set()
        self.count = 0

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _settle(self) -> None:
        """Give those that became due their turn, in the order in which they became due."""
        for item in sorted(self.places, key=lambda item: (self.places[item].due, self.places[item].order)):
            place = self.places[item]
            if 0 < place.due <= self.clock.now:
                self.places[item] = Place(0, place.priority, self._next())

    def _want(self, item: str, due: float, priority: int) -> None:
        place = self.places.get(item)
        if place is None:
            self.places[item] = Place(due, priority, self._next())
            return
        priority = max(priority, place.priority)
        if due < place.due:
            self.places[item] = Place(due, priority, self._next())
        else:
            place.priority = priority

    @rule(item=ITEMS, priority=PRIORITIES)
    def add(self, item: str, priority: int) -> None:
        self._settle()
        self.queue.add(item, priority=priority)
        self._want(item, 0, priority)

    @rule(item=ITEMS, priority=PRIORITIES, delay=st.sampled_from([0, 1, 2.5, 7]))
    def add_after(self, item: str, priority: int, delay: float) -> None:
        self._settle()
        self.queue.add_after(item, delay, priority=priority)
        self._want(item, self.clock.now + delay if delay else 0, priority)

    @rule(seconds=st.sampled_from([0.5, 1, 3, 10]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self._settle()
        len(self.queue)  # a running loop's timers would have looked too

    @rule()
    def take(self) -> None:
        ready = {item: place for item, place in self.places.items() if place.due == 0 and item not in self.working}
        entry = self.queue.get_nowait()
        if not ready:
            assert entry is None
            return
        best = min(ready, key=lambda item: (-ready[item].priority, ready[item].order))
        assert entry == (best, ready[best].priority)
        del self.places[best]
        self.working.add(best)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.working)))
        self._settle()
        self.queue.done(item)
        self.working.remove(item)
        if item in self.places and self.places[item].due == 0:
            self.places[item].order = self._next()  # it queues up anew

    @invariant()
    def same_length(self) -> None:
        assert self.queue.in_progress == len(self.working)
        assert len(self.queue) == sum(p.due == 0 and i not in self.working for i, p in self.places.items())


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


async def test_an_item_is_never_with_two_workers_and_every_add_is_worked_off() -> None:
    queue: WorkQueue[int] = WorkQueue("busy")
    working: set[int] = set()
    wanted: dict[int, int] = {}
    seen: dict[int, int] = {}
    chance = random.Random(7)

    async def work() -> None:
        while True:
            try:
                item, _ = await queue.get()
            except QueueShutDown:
                return
            assert item not in working
            working.add(item)
            wish = wanted[item]
            await asyncio.sleep(chance.random() * 0.002)
            working.remove(item)
            seen[item] = wish
            queue.done(item)

    async def produce() -> None:
        for round_ in range(1500):
            item = chance.randrange(20)
            wanted[item] = round_
            match chance.randrange(3):
                case 0:
                    queue.add(item)
                case 1:
                    queue.add_after(item, chance.random() * 0.003)
                case _:
                    queue.add(item, priority=LOW_PRIORITY)
            if round_ % 10 == 0:
                await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(work())
        await produce()
        await until(lambda: seen == wanted)  # the last wish for each item, by a worker that started after it
        queue.shut_down()
        await queue.drained()


async def test_back_off_doubles_from_5_ms_to_1000_s_and_forget_starts_over() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue("backoff", clock=clock)
    delays = [queue.add_rate_limited("a") for _ in range(30)]
    assert delays[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert delays[-1] == 1000.0
    assert Backoff().delay(10**6) == 1000.0
    assert queue.failures("a") == 30
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.add_rate_limited("a") == pytest.approx(0.005)


async def test_a_bound_cuts_the_back_off_of_one_failure_and_no_other() -> None:
    queue: WorkQueue[str] = WorkQueue("bounded", clock=FakeClock())
    bound = timedelta(seconds=1)
    delays = [queue.add_rate_limited("a", longest=bound) for _ in range(10)]
    assert delays[:2] == pytest.approx([0.005, 0.01])
    assert delays[-1] == 1.0
    assert queue.add_rate_limited("a") == pytest.approx(0.005 * 2**10)


async def test_a_waiting_getter_is_woken_when_a_delay_ends_even_if_an_earlier_one_comes_later() -> None:
    queue: WorkQueue[str] = WorkQueue("timers")
    getter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("late", timedelta(seconds=30))
    queue.add_after("soon", 0.02)
    assert (await asyncio.wait_for(getter, 60)).item == "soon"


async def test_an_add_ends_a_wait() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue("ends-wait", clock=clock)
    queue.add_after("a", 300, priority=10)
    queue.add("a", priority=LOW_PRIORITY)
    assert queue.get_nowait() == ("a", 10)
    queue.done("a")
    clock.now += 1000
    assert queue.get_nowait() is None


async def test_a_cancelled_getter_passes_its_wake_up_on() -> None:
    queue: WorkQueue[str] = WorkQueue("cancelled")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first
    first.cancel()
    assert (await asyncio.wait_for(second, 60)).item == "a"
    third = asyncio.create_task(queue.get())
    fourth = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    third.cancel()  # before any wake-up
    queue.add("b")
    assert (await asyncio.wait_for(fourth, 60)).item == "b"


async def test_shutdown_hands_out_what_is_ready_then_ends_every_getter() -> None:
    queue: WorkQueue[str] = WorkQueue("drain")
    for item in ("a", "b"):
        queue.add(item)
    held = (await queue.get()).item
    queue.add(held)  # dirty
    queue.add_after("dropped", 60)
    queue.shut_down()
    queue.add("too late")
    assert (await queue.get()).item == "b"
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    drained = asyncio.create_task(queue.drained())
    await asyncio.sleep(0)
    assert not any(getter.done() for getter in getters)  # the dirty one may still come
    queue.done("b")
    queue.done(held)
    results = await asyncio.wait_for(asyncio.gather(*getters, return_exceptions=True), 60)
    assert [r for r in results if not isinstance(r, QueueShutDown)] == [(held, 0)]
    assert not drained.done()
    queue.done(held)
    await asyncio.wait_for(drained, 60)


async def test_a_discarding_shutdown_waits_only_for_work_in_progress() -> None:
    queue: WorkQueue[str] = WorkQueue("discard")
    for item in ("a", "b", "c"):
        queue.add(item)
    held = (await queue.get()).item
    queue.add(held)
    queue.shut_down(discard=True)
    with pytest.raises(QueueShutDown):
        await queue.get()
    drained = asyncio.create_task(queue.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    queue.done(held)
    await asyncio.wait_for(drained, 60)
    assert REGISTRY.get_sample_value("workqueue_depth", _labels("discard", priority="0")) == 0


async def test_postponing_again_and_again_keeps_the_memory_bounded() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue("bounded", clock=clock)
    for _ in range(10_000):
        queue.add_after("a", 300)
        queue.add("a")
        queue.get_nowait()
        queue.done("a")
    queue.add_after("a", 300)
    assert len(queue._waiting_heap) < 200


def _labels(name: str, **more: str) -> dict[str, str]:
    return (
        {"name": name, "controller": "shop", **more} if name == "series" else {"name": name, "controller": "", **more}
    )


async def test_series_have_the_names_and_labels_of_controller_runtime() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue("series", controller="shop", clock=clock)

    def value(series: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(series, _labels("series", **labels))

    queue.add("a")
    queue.add("a")
    queue.add("b", priority=LOW_PRIORITY)
    assert value("workqueue_depth", priority="0") == 1
    assert value("workqueue_depth", priority="-100") == 1
    assert value("workqueue_adds_total") == 2
    clock.now += 3
    queue.get_nowait()
    assert value("workqueue_depth", priority="0") == 0
    assert value("workqueue_queue_duration_seconds_sum") == 3
    clock.now += 4
    queue.get_nowait()
    clock.now += 1
    assert value("workqueue_longest_running_processor_seconds") == 5
    assert value("workqueue_unfinished_work_seconds") == 6
    queue.done("a")
    assert value("workqueue_work_duration_seconds_sum") == 5
    queue.add_rate_limited("a")
    assert value("workqueue_retries_total") == 1
