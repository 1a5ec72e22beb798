"""A stand-in for SGLang's LMCache worker: greets the Redis it is pointed at, then listens where the engine looks."""

import argparse
import asyncio
import json


async def greet(host: str, port: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"PING\r\n")
    print(f"{host}:{port} answers {(await reader.readline()).decode().strip()}", flush=True)
    writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunk-size", type=int, required=True)
    parser.add_argument("--l1-size-gb", type=int, required=True)
    parser.add_argument("--eviction-policy", required=True)
    parser.add_argument("--l2-adapter", type=json.loads)
    settings = parser.parse_args()
    if settings.l2_adapter:
        await greet(settings.l2_adapter["host"], settings.l2_adapter["port"])
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), settings.host, settings.port)
    await server.serve_forever()


asyncio.run(main())
