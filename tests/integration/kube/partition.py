"""A way to the API server that can be cut, mended, and frozen."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from inferencecache.kube.client import Client
from inferencecache.kube.connection import connect
from inferencecache.kube.envtest import ControlPlane


class Proxy:
    """A TCP relay in front of an API server. `freeze` silences the connections that exist, but not later ones.

    `swallowed` counts the bytes that frozen connections should have carried.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.swallowed = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        self._frozen |= self._writers

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_upstream}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, to_upstream))
                group.create_task(self._pump(upstream, writer))
        finally:
            self._writers -= {writer, to_upstream}
            writer.transport.abort()
            to_upstream.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if writer in self._frozen:
                    self.swallowed += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


@asynccontextmanager
async def partition(plane: ControlPlane) -> AsyncIterator[tuple[Client, Proxy]]:
    """A client whose way to the API server can be cut, mended, and frozen."""
    proxy = Proxy(plane.port)
    await proxy.mend()
    config = plane.folder / f"proxied-{uuid.uuid4().hex}.kubeconfig"
    config.write_text(plane.admin.read_text().replace(plane.url, f"https://127.0.0.1:{proxy.port}"))
    async with await connect(config) as connection:
        yield Client(connection, field_manager="test", timeout=timedelta(seconds=10)), proxy
        await proxy.cut()
