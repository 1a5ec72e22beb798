"""One page of metrics, however a server sends it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inferencecache.subscriber.scrape import ScrapeError, scrape


@asynccontextmanager
async def answering(answer: bytes, *, close: bool = True) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The URL of a server that answers every request with these bytes, and the requests."""
    requests: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []  # one that nobody holds is closed

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if close:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics?x=1", requests
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\npa\r\n2\r\nge\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\npage",
    ],
)
async def test_a_page_is_read_in_any_framing(answer: bytes) -> None:
    async with answering(answer) as (url, requests):
        assert await scrape(url, 5) == "page"
        assert requests[0].startswith(b"GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "HTTP status 500"),
        (b"", "ended before it began"),
        (b"SSH-2.0\r\n\r\n", "127.0.0.1"),
    ],
)
async def test_what_is_no_page_is_an_error(answer: bytes, said: str) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(ScrapeError, match=said):
            await scrape(url, 5)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_told() -> None:
    async with answering(b"", close=False) as (url, _):
        with pytest.raises(ScrapeError, match="no page within"):
            await scrape(url, 0.05)


@pytest.mark.parametrize("url", ["http://[::1/metrics", "http://127.0.0.1:99999/metrics", "http://a..b/metrics"])
async def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ScrapeError, match=re.escape(f"{url}: ")):
        await scrape(url, 5)


@pytest.mark.parametrize("url", ["", "here", "127.0.0.1:1/metrics", "localhost:1/metrics", "ftp://127.0.0.1:1/"])
async def test_it_is_told_how_a_url_is_written(url: str) -> None:
    with pytest.raises(ScrapeError, match="write http://host:port/metrics"):
        await scrape(url, 5)


async def test_it_is_told_that_nobody_listens() -> None:
    with pytest.raises(ScrapeError, match="refused"):
        await scrape("http://127.0.0.1:1/metrics", 5)
