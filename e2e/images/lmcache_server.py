#!/usr/bin/env python3
"""A stand-in for `lmcache_server HOST PORT DEVICE`: accepts connections, reads what is sent, answers nothing."""

import asyncio
import signal
import sys


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass
    writer.close()


async def main(host: str, port: int) -> None:
    server = await asyncio.start_server(swallow, host, port)
    print(f"listening on {host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    # As a container's first process it would outlive the signal otherwise, and end with the Pod's grace period.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
