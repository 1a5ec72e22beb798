"""Readiness is asked from another thread; a check that is too slow for the prober harms nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from inferencecache.kube.health import Health
from tests.unit.kube.scripted import running


def _ask(health: Health) -> dict[str, str | None]:
    return asyncio.run(health.readiness_from_elsewhere())


async def test_a_check_that_answers_too_late_is_no_error_of_the_working_loop() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    health = Health()
    given_up = threading.Event()

    def slow() -> None:
        given_up.wait(60)

    def ask() -> dict[str, str | None]:
        try:
            return _ask(health)
        finally:
            given_up.set()

    health.add_ready_check("slow", slow)
    async with running(health.keep_beating()):
        await asyncio.sleep(0)  # the heartbeat notes the loop
        assert await asyncio.to_thread(ask) == {"event-loop": "no answer within 0.8 s"}
        await asyncio.sleep(0)
    assert errors == []


async def test_checks_are_told_by_name() -> None:
    health = Health()
    health.add_ready_check("good", lambda: None)
    health.add_ready_check("bad", lambda: "broken")
    health.add_ready_check("buggy", lambda: str(1 // 0))
    async with running(health.keep_beating()):
        await asyncio.sleep(0)
        while "event-loop" in (answer := await asyncio.to_thread(_ask, health)):
            pass  # a busy machine kept this loop from answering in time
    assert (answer["good"], answer["bad"]) == (None, "broken")
    assert "the check itself failed" in str(answer["buggy"])
