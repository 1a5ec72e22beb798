"""`/healthz` and `/readyz`: is this process stuck, and may traffic be sent to it?

The listener has a thread and an event loop of its own. If it shared the loop that does the work, a stuck loop would
be noticed only as a probe without an answer, which looks like a lost packet; from its own thread it can say what is
wrong. The working loop leaves a heartbeat every second, and `/healthz` fails when the last one is too old (decision
F5). Only code that never lets go of the interpreter can silence the thread as well; then the probe's timeout speaks.

Readiness checks are the application's own functions and look at its state, so they run on the working loop, with a
short time to answer.

Both answer in the form that Kubernetes components use: one line per check, `[+]` or `[-]`, and 500 when any fails.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, TypeAlias

import structlog
from aiohttp import web

from inferencecache.kube.serving import Address, listening

Check: TypeAlias = Callable[[], str | None]
"""Says why something is not well, or None. Raising counts as not well, too."""

_BEAT: Final = 1.0
_ANSWER_LIMIT: Final = 0.8  # a kubelet waits one second by default
_log = structlog.stdlib.get_logger(__name__)


class Health:
    """The checks of one process, and the heartbeat of its event loop.

    `stuck_after`: how old the last heartbeat may be. `clock` is monotonic.
    """

    def __init__(
        self, *, stuck_after: timedelta = timedelta(seconds=10), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stuck_after = stuck_after.total_seconds()
        self._clock = clock
        self._beat = clock()
        self._ready: dict[str, Check] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def add_ready_check(self, name: str, check: Check) -> None:
        """Let `/readyz` depend on a check. Raises `ValueError` if the name is taken."""
        if name in self._ready:
            raise ValueError(f"there is a ready check {name!r} already")
        self._ready[name] = check

    async def keep_beating(self) -> None:
        """Leave heartbeats until cancelled; run it on the loop that is judged."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._beat = self._clock()
            await asyncio.sleep(_BEAT)

    def liveness(self) -> dict[str, str | None]:
        """What is wrong with the process, by check; safe to ask from any thread."""
        age = self._clock() - self._beat
        stuck = f"the event loop has not come round for {age:.1f} s" if age > self._stuck_after else None
        return {"event-loop": stuck}

    def readiness(self) -> dict[str, str | None]:
        """What is wrong, by ready check; to be asked on the working loop."""
        return {name: _outcome(check) for name, check in self._ready.items()}

    async def readiness_from_elsewhere(self) -> dict[str, str | None]:
        """`readiness`, asked from another thread's event loop."""
        if self._loop is None:
            return {"event-loop": "not started"}
        answer: Future[dict[str, str | None]] = Future()

        def ask() -> None:
            if answer.set_running_or_notify_cancel():  # from here on the other thread cannot cancel it
                answer.set_result(self.readiness())

        try:
            self._loop.call_soon_threadsafe(ask)
            return await asyncio.wait_for(asyncio.wrap_future(answer), _ANSWER_LIMIT)
        except TimeoutError:
            return {"event-loop": f"no answer within {_ANSWER_LIMIT} s"}
        except RuntimeError:  # the loop is closed
            return {"event-loop": "ended"}

    def app(self) -> web.Application:
        """The two paths."""

        async def healthz(_: web.Request) -> web.Response:
            return _response("healthz", self.liveness())

        async def readyz(_: web.Request) -> web.Response:
            return _response("readyz", await self.readiness_from_elsewhere())

        app = web.Application()
        app.router.add_get("/healthz", healthz)
        app.router.add_get("/readyz", readyz)
        return app


@asynccontextmanager
async def listening_in_a_thread(app: Callable[[], web.Application], address: Address) -> AsyncIterator[Address]:
    """Serve an app from a thread with its own event loop. Raises `OSError` if it cannot listen."""
    bound: Future[Address] = Future()
    handles: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        handles.append((asyncio.get_running_loop(), end))
        if not bound.set_running_or_notify_cancel():
            return  # nobody waits for us any more
        async with listening(app(), address) as taken:
            bound.set_result(taken)
            await end.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if bound.done():
                _log.exception("the health listener ended")
            else:
                bound.set_exception(error)

    # A daemon, so that a process that must end is not kept by whoever still asks whether it lives.
    thread = threading.Thread(target=main, name="health", daemon=True)
    thread.start()
    try:
        yield await asyncio.wrap_future(bound)
    finally:
        for loop, end in handles:
            if not loop.is_closed():
                loop.call_soon_threadsafe(end.set)
        await asyncio.to_thread(thread.join, 2.0)


def _outcome(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"the check itself failed: {error!r}"


def _response(what: str, outcomes: dict[str, str | None]) -> web.Response:
    lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in outcomes.items()]
    healthy = not any(outcomes.values())
    lines.append(f"{what} check {'passed' if healthy else 'failed'}")
    return web.Response(text="\n".join(lines) + "\n", status=200 if healthy else 500)
