"""Work that must not hold up the event loop, and that nobody can stop once it runs.

A job gets a thread of its own, out of a fixed number of slots. When all are taken the job is refused at once: a queue
would only make callers wait for an answer that comes too late. A slot is given back when its job ends, not when its
caller loses patience, so that a stuck tokenizer costs at most its slots. The threads are daemons: a job that never ends
does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

SLOTS = 64

T = TypeVar("T")


class Workers:
    """Runs blocking jobs beside one event loop; all methods are for that loop's thread."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._free = slots

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T] | None:
        """The job's coming result, or None when no slot is free. A job that raises fails its future.

        A caller that no longer waits should cancel the future; the job itself runs on.
        """
        if not self._free:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                settle, value = future.set_result, job()
            except Exception as error:
                settle, value = future.set_exception, error  # type: ignore[assignment]

            def done() -> None:
                self._free += 1
                if not future.done():
                    settle(value)

            # The loop may have been closed while the job ran: then nobody waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done)

        self._free -= 1
        try:
            threading.Thread(target=run, name="server-worker", daemon=True).start()
        except RuntimeError:
            # The process may not have more threads: that is no free slot either.
            self._free += 1
            return None
        return future
