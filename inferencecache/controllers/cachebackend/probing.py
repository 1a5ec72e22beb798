"""Calls the server's functional probe for one backend at a time, beside the passes (spec 05 §5, decision F3).

A pass never waits for a call. It asks for one, goes on with the outcome of the call before, and is woken when there is
a new one. So a server that does not answer costs each backend one deadline, and no other backend anything. The deadline
includes the wait for a turn: a backend whose call did not get its turn in time is told so like any other failure.

A backend, by its UID, has one window per call, whatever came of the call. Failed calls are spread by jitter, so that a
server that comes back is not met by all backends at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import msgspec
import structlog

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.metrics import count_probe
from inferencecache.controllers.cachebackend.outcomes import Answered, Outcome, Unanswered
from inferencecache.kube.errors import KubeError
from inferencecache.kube.resource import Key

WINDOW: Final = timedelta(seconds=30)
TIMEOUT: Final = timedelta(seconds=5)
AT_ONCE: Final = 64
MODEL: Final = "functional-self-test"

_log = structlog.stdlib.get_logger(__name__)


class ProbeEndpoint(Protocol):
    """The server's `/probe`."""

    async def send(self, method: str, body: bytes) -> bytes:
        """The body of a 2xx answer. Raises `KubeError` for anything else."""


@dataclass(slots=True)
class _Window:
    uid: str
    outcome: Outcome | None = None
    due: float = float("-inf")
    calling: bool = False


class Prober:
    """Windows and outcomes of all backends. `run` must run for calls to be made.

    Args:
        endpoint: whom to call; None turns probing off.
        wake: has a backend reconciled when there is a new outcome.
        clock: monotonic seconds.
        jitter: the part of a window that is added after a failed call, between 0 and 1.
    """

    def __init__(
        self,
        endpoint: ProbeEndpoint | None,
        wake: Callable[[Key], None],
        *,
        window: timedelta = WINDOW,
        timeout: timedelta = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0, 0.2),
    ) -> None:
        self._endpoint = endpoint
        self._wake = wake
        self._window = window.total_seconds()
        self._timeout = timeout.total_seconds()
        self._clock = clock
        self._jitter = jitter
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._windows: dict[Key, _Window] = {}
        self._calls: asyncio.TaskGroup | None = None

    @property
    def on(self) -> bool:
        """Whether there is a probe at all."""
        return self._endpoint is not None

    async def run(self) -> None:
        """Make calls until cancelled."""
        async with asyncio.TaskGroup() as calls:
            self._calls = calls
            try:
                await asyncio.Event().wait()
            finally:
                self._calls = None

    def outcome(self, backend: CacheBackend) -> Outcome | None:
        """What the last call for this very backend came to; None before the first."""
        known = self._windows.get(Key.of(backend))
        return known.outcome if known is not None and known.uid == backend.metadata.uid else None

    def ask(self, backend: CacheBackend) -> timedelta | None:
        """Have the backend probed if its window is over; the time until then, or None while a call is on its way."""
        key, uid = Key.of(backend), backend.metadata.uid
        known = self._windows.get(key)
        if known is None or known.uid != uid:
            known = self._windows[key] = _Window(uid)
        left = known.due - self._clock()
        if not known.calling and left > 0:
            return timedelta(seconds=left)
        if not known.calling and self._endpoint is not None and self._calls is not None:
            known.calling = True
            self._calls.create_task(self._call(self._endpoint, key, known, request_for(backend)))
        return None

    def forget(self, key: Key) -> None:
        """The backend is gone, or is not one to be probed any more."""
        self._windows.pop(key, None)

    async def _call(self, endpoint: ProbeEndpoint, key: Key, window: _Window, body: bytes) -> None:
        window.outcome = await self._asked(endpoint, key, body)
        window.calling = False
        length = self._window
        if isinstance(window.outcome, Answered):
            if self._windows.get(key) is window:
                count_probe(key, window.outcome)
        else:
            length *= 1 + self._jitter()
        window.due = self._clock() + length
        self._wake(key)

    async def _asked(self, endpoint: ProbeEndpoint, key: Key, body: bytes) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout), self._turns:
                return read_answer(await endpoint.send("POST", body), key)
        except TimeoutError:
            return Unanswered(f"no answer within {self._timeout:g} s")
        except KubeError as error:
            return Unanswered(str(error))
        except Exception:
            # A bug here must not end the calls of all other backends.
            _log.exception("probe failed by a bug", namespace=key.namespace, name=key.name)
            return Unanswered("the probe failed inside the controller; its log says how")


class _Request(msgspec.Struct, rename="camel", omit_defaults=True):
    backend: str
    model: str
    hash_scheme: str
    backend_type: str = ""


class _Error(msgspec.Struct):
    stage: str = ""
    message: str = ""


class _Answer(msgspec.Struct):
    backend: str = ""
    ingest: str = ""
    routing: str = ""
    t2: str = ""
    errors: tuple[_Error, ...] | None = None


def request_for(backend: CacheBackend) -> bytes:
    """The body of a call."""
    scheme = backend.runtime_id or "vllm"
    return msgspec.json.encode(_Request(str(Key.of(backend)), MODEL, scheme, backend.spec.type or ""))


def read_answer(body: bytes, key: Key) -> Outcome:
    """What an answer says, if it is one about this backend."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unanswered(f"the answer cannot be read: {error}")
    if answer.backend != str(key):
        return Unanswered(f"the answer is about {answer.backend!r}, not about {key}")
    errors = tuple((one.stage, one.message) for one in answer.errors or ())
    return Answered((answer.ingest, answer.routing, answer.t2), errors)
