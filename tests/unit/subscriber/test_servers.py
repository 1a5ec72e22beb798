"""Which servers are told, and that a delivery which failed is taken up again."""

from __future__ import annotations

import asyncio

import pytest

from inferencecache.subscriber.channel import Address, Channel
from inferencecache.subscriber.delivery import Delivery
from inferencecache.subscriber.messages import Identity
from inferencecache.subscriber.servers import Servers, Target
from tests.unit.server.waiting import eventually


class _Broken(Delivery):
    """Fails in a way that nobody foresaw the first `failures` times that it runs."""

    failures = 1

    def __init__(self, address: Address) -> None:
        super().__init__(Channel(address), Identity("r", "m"), lambda: iter(()))
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise RuntimeError("nobody foresaw this")
        await asyncio.get_running_loop().create_future()


@pytest.fixture
def begun() -> list[_Broken]:
    return []


async def test_deliveries_go_on_when_they_are_run_anew_after_a_failure(begun: list[_Broken]) -> None:
    def begin(address: Address, _target: Target) -> Delivery:
        begun.append(_Broken(address))
        return begun[-1]

    servers = Servers([Target("127.0.0.1", 1)], begin)
    with pytest.raises(ExceptionGroup):
        async with asyncio.timeout(60):
            await servers.run()
    again = asyncio.create_task(servers.run())
    await eventually(lambda: begun[0].runs == 2 or None)
    assert len(begun) == 1, "what is pending for the server must not be lost"
    again.cancel()
    await asyncio.wait([again])


async def test_an_address_that_is_gone_is_told_no_longer(begun: list[_Broken]) -> None:
    def begin(address: Address, _target: Target) -> Delivery:
        begun.append(_Broken(address))
        begun[-1].failures = 0
        return begun[-1]

    targets = [Target("127.0.0.1", 1), Target("127.0.0.1", 2)]
    servers = Servers(targets, begin, interval=0.01)
    running = asyncio.create_task(servers.run())
    await eventually(lambda: len(servers.deliveries) == 2 or None)
    del targets[1]
    await eventually(lambda: list(servers.deliveries) == [Address("127.0.0.1", 1)] or None)
    running.cancel()
    await asyncio.wait([running])
