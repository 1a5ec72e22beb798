"""GET one page of metrics. An HTTP client of the usual size would be a tenth of the sidecar's memory."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import SplitResult, urlsplit

from httptools import HttpParserError, HttpResponseParser

_MAX_PAGE: Final = 32 << 20
_CHUNK: Final = 1 << 16


class ScrapeError(Exception):
    """The page cannot be had."""


async def scrape(url: str, within: float) -> str:
    """The page at an `http` or `https` URL.

    Raises:
        ScrapeError: it is not there within so many seconds, or the status is not 200.
    """
    try:
        async with asyncio.timeout(within):
            status, body = await _get(_split(url))
    except TimeoutError as error:
        raise ScrapeError(f"{url}: no page within {within:g} s") from error
    except ConnectionRefusedError as error:
        raise ScrapeError(f"{url}: connection refused") from error
    except (OSError, ValueError, HttpParserError) as error:
        raise ScrapeError(f"{url}: {error}") from error
    if status != 200:
        raise ScrapeError(f"{url}: HTTP status {status}")
    return body.decode(errors="replace")


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("no address of a page; write http://host:port/metrics")
    return parts


async def _get(url: SplitResult) -> tuple[int, bytes]:
    tls = ssl.create_default_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if tls else 80), ssl=tls)
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        request = f"GET {target} HTTP/1.1\r\nHost: {url.netloc}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        answer = _Answer()
        parser = HttpResponseParser(answer)
        while not answer.complete and (data := await reader.read(_CHUNK)):
            parser.feed_data(data)
        if not answer.begun:
            raise ScrapeError("the answer ended before it began")
        return parser.get_status_code(), bytes(answer.body)
    finally:
        writer.transport.abort()


class _Answer:
    """What the parser tells."""

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self.body = bytearray()

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > _MAX_PAGE:
            raise ValueError("the page is longer than any page of metrics")

    def on_message_complete(self) -> None:
        self.complete = True
