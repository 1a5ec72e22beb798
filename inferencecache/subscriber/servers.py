"""Which servers to tell: every address behind `--server`, looked up again and again.

A server's index is its own unless servers share a store, so with several of them each has to be told everything. That
is what a headless Service is for: its name has an address per server. Each address gets a channel and a delivery of
its own, and one that is down keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog

from inferencecache.subscriber.channel import Address
from inferencecache.subscriber.delivery import Delivery
from inferencecache.wire.servers import hosts_and_ports

LOOKUP_SECONDS: Final = 15.0
_RESOLVER_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class Target(NamedTuple):
    """One name of `--server`."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As it is asked for, and as its certificate must name it."""
        return str(Address(self.host, self.port))


def parse_targets(text: str) -> list[Target]:
    """The names in `--server`. Raises `ValueError` as `hosts_and_ports` does."""
    return [Target(host, port) for host, port in hosts_and_ports("--server", text)]


async def addresses_of(target: Target) -> list[Address]:
    """The addresses of a name: those of IPv4, or if it has none, of IPv6. Of a server with both, one is enough.

    Raises:
        OSError: the name cannot be looked up.
    """
    try:
        async with asyncio.timeout(_RESOLVER_SECONDS):
            found = await _look_up(target)
    except TimeoutError as error:
        raise TimeoutError(f"no name server answers within {_RESOLVER_SECONDS:g} s") from error
    families = {family for family, *_ in found}
    wanted = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return sorted({Address(str(where[0]), target.port) for family, _, _, _, where in found if family == wanted})


async def _look_up(target: Target) -> list[Any]:
    """What the resolver says, from a thread that nobody waits for.

    No lookup can be broken off, and an event loop that made one does not close before it has ended: while no name
    server answers, that is half a minute more than the process has for its end.
    """
    answer: Future[list[Any]] = Future()

    def look_up() -> None:
        with suppress(InvalidStateError):  # it was waited for long enough
            try:
                answer.set_result(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
            except OSError as error:
                answer.set_exception(error)

    threading.Thread(target=look_up, name=f"look up {target.host}", daemon=True).start()
    return await asyncio.wrap_future(answer)


class Servers:
    """The deliveries to all servers; `run` keeps them in step with what the names mean.

    Args:
        targets: the names.
        begin: makes the delivery to an address.
        interval: seconds between lookups.
    """

    def __init__(
        self,
        targets: list[Target],
        begin: Callable[[Address, Target], Delivery],
        *,
        interval: float = LOOKUP_SECONDS,
    ) -> None:
        self.deliveries: dict[Address, Delivery] = {}
        self._targets = targets
        self._begin = begin
        self._interval = interval
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._names: dict[Address, Target] = {}
        self._unknown: set[Target] = set()

    async def run(self) -> None:
        """Deliver to all of them until cancelled. Run anew after it failed, it takes the deliveries up again."""
        self._tasks.clear()
        async with asyncio.TaskGroup() as group:
            while True:
                wanted: dict[Address, Target] = {}
                for target in self._targets:
                    wanted |= dict.fromkeys(await self._lookup(target), target)
                self._adjust(wanted, group)
                await asyncio.sleep(self._interval if self.deliveries else 1.0)

    async def flush(self) -> None:
        """Tell all servers what is pending, once, after `run` has ended; errors are logged."""
        async with asyncio.TaskGroup() as group:
            for delivery in self.deliveries.values():
                group.create_task(_last_words(delivery))

    def close(self) -> None:
        """Let go of all connections."""
        for delivery in self.deliveries.values():
            delivery.channel.close()

    async def _lookup(self, target: Target) -> list[Address]:
        """The addresses of a target; those of before while it cannot be looked up."""
        try:
            addresses = await addresses_of(target)
        except OSError as error:
            if target not in self._unknown:
                self._unknown.add(target)
                _log.warning("the server's name cannot be looked up", server=target.authority, error=str(error))
            return [address for address, name in self._names.items() if name == target]
        self._unknown.discard(target)
        return addresses

    def _adjust(self, wanted: dict[Address, Target], group: asyncio.TaskGroup) -> None:
        self._names = wanted
        for address in [address for address in self.deliveries if address not in wanted]:
            _log.info("a server is gone", server=str(address))
            if address in self._tasks:
                self._tasks.pop(address).cancel()
            self.deliveries.pop(address).channel.close()
        for address, target in wanted.items():
            if address not in self.deliveries:
                _log.info("a server to tell", server=str(address), name=target.authority)
                self.deliveries[address] = self._begin(address, target)
            if address not in self._tasks:
                self._tasks[address] = group.create_task(self.deliveries[address].run(), name=f"deliver to {address}")


async def _last_words(delivery: Delivery) -> None:
    try:
        await delivery.flush()
    except Exception as error:
        _log.warning("a server was not told everything", server=str(delivery.channel.address), error=str(error))
