"""The example is a whole operator: it runs as a user would run it, against a real API server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inferencecache.kube import Client, ConfigMap, Key, NotFound
from inferencecache.kube.envtest import ControlPlane
from tests.integration.kube.widgets import ROOT, Widget, eventually, install_widgets, widget


@asynccontextmanager
async def operator(plane: ControlPlane) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "KUBECONFIG": str(plane.admin), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "echo.py"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def message(client: Client, key: Key) -> str:
    return (await client.get(ConfigMap, key)).data.get("message", "")


async def test_the_example_is_short_and_keeps_each_widget_echoed(
    control_plane: ControlPlane, client: Client, namespace: str
) -> None:
    source = (ROOT / "examples" / "echo.py").read_text()
    assert len(source.splitlines()) < 60
    await install_widgets(client)
    key = Key(namespace, "hello")
    await client.apply(widget(key, "one"))
    await client.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "foreign"}}
    )
    await client.apply(widget(Key(namespace, "foreign"), "mine?"))
    async with operator(control_plane) as process:

        async def says(text: str) -> bool:
            return await message(client, key) == text

        await eventually("a ConfigMap for the Widget", lambda: says("one"))
        await client.apply(widget(key, "two"))
        await eventually("the new message", lambda: says("two"))
        await client.patch(ConfigMap.resource, key, {"data": {"message": "drifted"}})
        await eventually("drift corrected", lambda: says("two"))
        await client.delete(ConfigMap.resource, key)
        await eventually("the ConfigMap made anew", lambda: says("two"))

        child = await client.get(ConfigMap, key)
        (owner,) = child.metadata.owner_references
        assert (owner.kind, owner.name, owner.controller) == ("Widget", "hello", True)
        assert (await client.get(ConfigMap, Key(namespace, "foreign"))).data == {}

        # Each kind is heard of in order, and so are the keys: what was done for a later Widget, and for its ConfigMap,
        # comes after whatever is done for the one that went.
        later = Key(namespace, "later")

        async def echoed() -> bool:
            return await message(client, later) == "still here"

        await client.delete(Widget.resource, key)
        await client.apply(widget(later, "still here"))
        await eventually("the later Widget", echoed)
        await client.delete(ConfigMap.resource, key)  # no garbage collector runs here
        for _ in range(3):
            await client.delete(ConfigMap.resource, later)
            await eventually("the later Widget's ConfigMap made anew", echoed)
        with pytest.raises(NotFound):
            await client.get(ConfigMap, key)

        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        assert process.stdout is not None
        said = (await process.stdout.read()).decode()
        assert "somebody else's" in said
        assert "Traceback" not in said
