"""How one server stands to the others: alone, sharing a log with them, or starting from what one of them holds.

Whichever it is, the rest of the process asks two things: is this server ready to be asked, and is there anything to
remark about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyStore
from inferencecache.server.services import Services
from inferencecache.server.store import SharedLog, State, StoreSettings
from inferencecache.server.warm import warm_from


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """At most one of `index_store` and `warm_from` is set: a server with a shared log warms from that.

    Attributes:
        index_store: where the log is that the servers share.
        warm_from: URL of a peer's `/dump`.
        warm_token_file: holds the bearer token to show to the peer.
    """

    index_store: StoreSettings | None = None
    warm_from: str = ""
    warm_token_file: Path | None = None


class Standing(Protocol):
    """How this server stands to the others."""

    @property
    def ready(self) -> bool:
        """False while this server still collects what others hold."""

    @property
    def remark(self) -> str:
        """What an operator should know although the server is ready; empty if nothing."""


@asynccontextmanager
async def joined(
    settings: PeerSettings, services: Services, policies: PolicyStore, metrics: ServerMetrics, *, instance: str
) -> AsyncIterator[Standing]:
    """Take part with the other servers until the end of the context. `instance` names this process."""
    standing: Standing
    async with asyncio.TaskGroup() as tasks:
        work: list[asyncio.Task[None]] = []
        if settings.index_store is not None:
            log = SharedLog(
                settings.index_store,
                apply=services.intake.apply,
                dump=services.intake.dump,
                retention_seconds=lambda: policies.longest_ttl_us() / 1e6,
                registry=metrics.registry,
            )
            services.intake.share(log)
            work.append(tasks.create_task(log.run(), name="shared-log"))
            standing = _Sharing(log)
        elif settings.warm_from:
            warming = _warm(settings, services, instance)
            work.append(tasks.create_task(warming, name="warm-from"))
            standing = _Warming(work[0])
        else:
            standing = _Alone()
        try:
            yield standing
        finally:
            for task in work:
                task.cancel()


async def _warm(settings: PeerSettings, services: Services, instance: str) -> None:
    await warm_from(settings.warm_from, services.report, instance=instance, token_file=settings.warm_token_file)


class Readiness:
    """Whether the whole server may be asked: it serves, and has collected what others hold."""

    def __init__(self, serving: Callable[[], bool], standing: Standing) -> None:
        self._serving = serving
        self._standing = standing

    @property
    def ready(self) -> bool:
        """Send requests here."""
        return self._serving() and self._standing.ready

    @property
    def remark(self) -> str:
        """What an operator should know of this server's peers; empty if nothing."""
        return self._standing.remark


class _Alone:
    ready = True
    remark = ""


class _Sharing:
    def __init__(self, log: SharedLog) -> None:
        self._log = log

    @property
    def ready(self) -> bool:
        return self._log.state is not State.WARMING

    @property
    def remark(self) -> str:
        return "" if self._log.state is State.LIVE else f"index store: {self._log.state}"


class _Warming:
    def __init__(self, work: asyncio.Task[None]) -> None:
        self._work = work

    @property
    def ready(self) -> bool:
        return self._work.done()

    @property
    def remark(self) -> str:
        return "" if self.ready else "warming from a peer"
