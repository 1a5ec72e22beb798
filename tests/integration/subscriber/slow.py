"""A way to a server that is slow, and that can be cut."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Slow:
    """Forwards connections, each piece of bytes towards the server after a pause."""

    def __init__(self, target: str, seconds: float) -> None:
        host, _, port = target.rpartition(":")
        self._server_address = (host, int(port))
        self._seconds = seconds
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    @property
    def target(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Slow:
        self._listener = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._server_address)
        self._writers |= {writer, there_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, there_writer, self._seconds))
                group.create_task(_pump(there_reader, writer, 0.0))
        finally:
            self._writers -= {writer, there_writer}
            writer.transport.abort()
            there_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    try:
        while data := await reader.read(65_536):
            await asyncio.sleep(seconds)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()
