"""What the framework's integration tests share: the example's kind, a manager on free ports, and waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.echo import Widget
from inferencecache.kube import Client, Key, Manager, Options, connect
from inferencecache.kube.envtest import ControlPlane, install_crds

ROOT = Path(__file__).parents[3]
CRD = ROOT / "examples" / "echo.crd.yaml"


async def install_widgets(client: Client) -> None:
    await install_crds(client, [CRD])


def widget(key: Key, message: str) -> dict[str, Any]:
    metadata = {"namespace": key.namespace, "name": key.name}
    return {"apiVersion": "example.io/v1", "kind": "Widget", "metadata": metadata, "spec": {"message": message}}


async def eventually(what: str, probe: Callable[[], Awaitable[Any]], *, seconds: float = 60) -> Any:
    """Wait until `probe` returns something true; on failure tell what it said last."""
    deadline = time.monotonic() + seconds
    last: Any = None
    while time.monotonic() < deadline:
        try:
            last = await probe()
        except Exception as error:
            last = error
        else:
            if last:
                return last
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:g} s; the last look gave {last!r}")


def options(**more: Any) -> Options:
    quiet = Options(metrics_address="127.0.0.1:0", health_address="127.0.0.1:0", handle_signals=False)
    return replace(quiet, **more)


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(manager.run())
    try:
        yield task
    finally:
        manager.stop()
        await asyncio.wait([task], timeout=60)
        assert task.done(), "the manager did not stop"
        if not task.cancelled():
            task.exception()


@asynccontextmanager
async def connected(plane: ControlPlane, field_manager: str = "test") -> AsyncIterator[Client]:
    async with await connect(plane.admin) as connection:
        yield Client(connection, field_manager=field_manager)


__all__ = ["CRD", "ROOT", "Widget", "connected", "eventually", "install_widgets", "options", "running", "widget"]
