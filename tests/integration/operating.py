"""An operator that runs in the process of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from inferencecache.kube.client import Client
from inferencecache.kube.manager import Manager, Options

FIELD_MANAGER: Final = "inferencecache-controller"


def operator_client(client: Client) -> Client:
    """A client of the operator's name, over the same connection."""
    return Client(client.connection, field_manager=FIELD_MANAGER)


def quiet_manager(client: Client) -> Manager:
    """A manager without listeners and signal handlers."""
    return Manager(client, options=Options(metrics_address="0", health_address="0", handle_signals=False))


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[Manager]:
    """The manager at work, its caches in step; on leaving it ends, and has told what it had to tell."""
    task = asyncio.create_task(manager.run())
    try:
        await manager.wait_started()
        yield manager
    finally:
        manager.stop()
        await task
