"""Blocking jobs beside the loop: a fixed number at a time, the rest refused at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from inferencecache.server.workers import Workers
from tests.unit.server.waiting import eventually


async def test_a_job_runs_beside_the_loop_and_its_result_comes_back() -> None:
    future = Workers().submit(threading.get_ident)
    assert future is not None
    assert await future != threading.get_ident()


async def test_a_job_that_raises_fails_its_future() -> None:
    future = Workers().submit(lambda: 1 // 0)
    assert future is not None
    with pytest.raises(ZeroDivisionError):
        await future


async def test_a_full_house_refuses_at_once_and_a_finished_job_makes_room() -> None:
    workers = Workers(slots=2)
    release = threading.Event()
    futures = [workers.submit(release.wait) for _ in range(3)]
    assert [future is None for future in futures] == [False, False, True]
    release.set()
    await asyncio.gather(*(future for future in futures if future))
    again = workers.submit(release.wait)
    assert again is not None
    assert await again


async def test_a_slot_is_taken_until_the_job_ends_even_if_nobody_waits() -> None:
    workers = Workers(slots=1)
    release = threading.Event()
    future = workers.submit(release.wait)
    assert future is not None
    future.cancel()
    assert workers.submit(int) is None
    release.set()
    later = await eventually(lambda: workers.submit(int))
    assert await later == 0


async def test_threads_that_cannot_be_started_are_slots_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers(slots=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert workers.submit(int) is None
    future = workers.submit(int)
    assert future is not None
    assert await future == 0


def test_a_job_that_never_ends_does_not_keep_the_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from inferencecache.server.workers import Workers\n"
        "async def main():\n"
        "    assert Workers().submit(threading.Event().wait) is not None\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=200, check=False).returncode == 0
