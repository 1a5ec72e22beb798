"""A real master, and clients of its admin interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from inferencecache.controllers.mooncake.admin import AdminClient, MooncakeClients
from tests.mooncake import Master


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with Master(tmp_path) as running:
        yield running


@pytest.fixture
def single_tenant(tmp_path: Path) -> Iterator[Master]:
    """A master that keeps no ledger."""
    with Master(tmp_path, tenants=False) as running:
        yield running


@pytest.fixture
async def clients() -> AsyncIterator[MooncakeClients]:
    clients = MooncakeClients(timeout=timedelta(minutes=1))
    running = asyncio.create_task(clients.run())
    yield clients
    running.cancel()
    await asyncio.wait([running])


@pytest.fixture
def admin(master: Master, clients: MooncakeClients) -> AdminClient:
    return clients.at(master.admin)
