"""Telling the servers the engine's load, every few seconds, and noticing when that does not work (spec 08 §9).

Nothing here delays the events, or is delayed by them. A load signal that is missing is told once as an error after
three ticks, and its return is told once; in between there is silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct

from inferencecache.subscriber.channel import Channel, RpcError
from inferencecache.subscriber.load import LoadReader, NoLoad
from inferencecache.subscriber.messages import REPORT, Identity, Load, refusal
from inferencecache.subscriber.scrape import ScrapeError, scrape

STALE_AFTER: Final = 3
VLLM_METRICS: Final = "http://127.0.0.1:8000/metrics"
SGLANG_METRICS: Final = "http://127.0.0.1:30000/metrics"
_SCRAPE_SECONDS: Final = 5.0
_RPC_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class Freshness(Struct):
    """Counts the ticks in a row in which no load was delivered, and says what that means.

    One server that took it is a delivery: that another one cannot be reached is told where it is told everything.

    Attributes:
        failures: ticks in a row without a delivery.
        delivered: ticks with one, since the process began.
    """

    failures: int = 0
    delivered: int = 0

    @property
    def stale(self) -> bool:
        """Whether the load that the servers have of this process is too old to be used."""
        return self.failures >= STALE_AFTER

    def failed(self, reason: str) -> None:
        """A tick without a delivery."""
        self.failures += 1
        if self.failures < STALE_AFTER:
            _log.warning("the engine's load was not delivered", err=reason)
        elif self.failures == STALE_AFTER:
            _log.error(
                "this process delivers the engine's load no longer"
                if self.delivered
                else "this process has not delivered the engine's load yet",
                event_="load_signal_stale",
                consecutive_failures=self.failures,
                err=reason,
            )
        else:
            _log.debug("the engine's load was not delivered", err=reason)

    def succeeded(self) -> None:
        """A tick with a delivery."""
        if self.stale:
            _log.info(
                "the engine's load is delivered again", event_="load_signal_recovered", after_failures=self.failures
            )
        self.failures = 0
        self.delivered += 1


class Pages:
    """Where the engine's metrics are: the first address that has them, asked first from then on.

    Args:
        urls: in the order of preference. A later one is tried when those before have no such metrics: any container of
            the Pod may listen where engines do unless told otherwise.
    """

    def __init__(self, urls: Sequence[str], get: Callable[[str, float], Awaitable[str]] = scrape) -> None:
        self._urls = list(urls)
        self._get = get

    async def read(self, reader: LoadReader) -> Load:
        """What the page says.

        Raises:
            NoLoad: no address has one; the reasons of all.
        """
        reasons = []
        for url in self._urls:
            try:
                load = reader.read(await self._get(url, _SCRAPE_SECONDS))
            except ScrapeError as error:
                reasons.append(str(error))
            except NoLoad as error:
                reasons.append(f"{url}: {error}")
            else:
                self._urls.remove(url)
                self._urls.insert(0, url)
                return load
        raise NoLoad("; ".join(reasons))


class StatsReporter:
    """Scrapes, and tells all servers.

    Args:
        pages: where the metrics are.
        reader: reads them.
        identity: whose load it is.
        channels: to the servers of the moment.
        interval: seconds from one tick to the next; the first comes after one.
    """

    def __init__(
        self,
        pages: Pages,
        reader: LoadReader,
        identity: Identity,
        channels: Callable[[], Sequence[Channel]],
        *,
        interval: float = 10.0,
    ) -> None:
        self.freshness = Freshness()
        self._pages = pages
        self._reader = reader
        self._identity = identity
        self._channels = channels
        self._interval = interval

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.tick()

    async def tick(self) -> None:
        """Scrape and tell. A failure is counted and said."""
        try:
            load = await self._pages.read(self._reader)
        except NoLoad as error:
            self.freshness.failed(str(error))
            return
        update = self._identity.load(load, time.time_ns() // 1000)
        reasons = await asyncio.gather(*(_told(each, update) for each in self._channels()))
        if all(reasons):
            self.freshness.failed(reasons[0] if reasons else "no server is known")
        else:
            self.freshness.succeeded()


async def _told(channel: Channel, update: bytes) -> str:
    """Tell one server; why that failed, or nothing."""
    try:
        reason = refusal(await channel.call(REPORT, update, _RPC_SECONDS))
    except RpcError as error:
        return str(error)
    return reason and f"{channel.address}: {reason}"
