"""What is said of a request that got no answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from yarl import URL

from inferencecache.controllers.connections import Connections, NoAnswer


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    connections = Connections(timeout=timedelta(minutes=1), proxies=False)
    running = asyncio.create_task(connections.run())
    yield connections
    running.cancel()
    await asyncio.wait([running])


async def test_a_refused_connection_is_told_without_a_word_of_tls(connections: Connections) -> None:
    with socket.socket() as taken:  # bound and not listening, so that nobody answers there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(NoAnswer, match=f"^cannot connect: .*{port}") as told:
            await connections.request("GET", URL(f"http://127.0.0.1:{port}/"), largest=1)
    assert "ssl" not in str(told.value)


async def test_a_name_that_does_not_resolve_is_told_so(connections: Connections) -> None:
    with pytest.raises(NoAnswer, match=r"^cannot connect: \S"):
        await connections.request("GET", URL("http://no-such-host.invalid/"), largest=1)
