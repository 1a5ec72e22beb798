"""What goes over the wire, and what becomes of the connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from inferencecache.kube.http import HttpPool

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server that answers each request with the next of `answers`, and keeps what it got per connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), b":0")
                self.requests.append(head + await reader.readexactly(int(length.partition(b":")[2])))
                writer.write(self.answers.pop(0))
        writer.close()


@asynccontextmanager
async def peering(*answers: bytes) -> AsyncIterator[tuple[Peer, aiohttp.TCPConnector]]:
    peer = Peer(*answers)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    connector = aiohttp.TCPConnector()
    try:
        async with asyncio.timeout(10):
            yield peer, connector
    finally:
        await connector.close()
        server.close()


async def test_a_request_is_its_head_its_body_and_the_headers_given() -> None:
    async with peering(OK) as (peer, connector):
        answer = await HttpPool(connector, f"{peer.url}/below/").send("PUT", "/a?b=c", {"Accept": "x/y"}, b"body")
        assert (answer.status, await answer.read()) == (200, b"ok")
        answer.close()
    lines = peer.requests[0].decode().split("\r\n")
    assert lines[0] == "PUT /below/a?b=c HTTP/1.1"
    assert lines.count("Accept: x/y") == 1
    assert f"Host: {peer.url.removeprefix('http://')}" in lines
    assert lines[-3:] == ["Content-Length: 4", "", "body"]
    assert len([line for line in lines if line.lower().startswith("accept:")]) == 1


async def test_a_connection_whose_answer_was_read_is_used_again_and_another_is_cut() -> None:
    async with peering(OK, OK, OK) as (peer, connector):
        pool = HttpPool(connector, peer.url)
        for _ in range(2):
            answer = await pool.send("GET", "/", {})
            await answer.read()
            answer.close()
        assert peer.connections == 1
        unread = await pool.send("GET", "/", {})
        unread.close()
        peer.answers.append(OK)
        answer = await pool.send("GET", "/", {})
        assert await answer.read() == b"ok"
        answer.close()
        assert peer.connections == 2


async def test_a_cancelled_request_leaves_no_connection_that_would_answer_the_next() -> None:
    async with peering(b"", OK) as (peer, connector):
        pool = HttpPool(connector, peer.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.send("GET", "/slow", {})
        answer = await pool.send("GET", "/next", {})
        assert await answer.read() == b"ok"
        answer.close()
        assert peer.connections == 2


async def test_what_announces_an_answer_is_not_the_answer() -> None:
    async with peering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK) as (peer, connector):
        answer = await HttpPool(connector, peer.url).send("PATCH", "/", {}, b"{}")
        assert (answer.status, await answer.read()) == (200, b"ok")
        answer.close()


async def test_a_body_that_breaks_off_is_an_error() -> None:
    async with peering(OK.replace(b": 2", b": 9")) as (peer, connector):
        answer = await HttpPool(connector, peer.url).send("GET", "/", {}, idle_limit=0.1)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await answer.read()
        answer.close()


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/a HTTP/1.1\r\nX: y", {}), ("/", {"Authorization": "Bearer t\n"}), ("/", {"Authorization": "Bearer\rt"})],
)
async def test_nothing_can_be_slipped_into_the_head(target: str, headers: dict[str, str]) -> None:
    async with peering() as (peer, connector):
        with pytest.raises(ValueError, match="line break"):
            await HttpPool(connector, peer.url).send("GET", target, headers)
        assert peer.requests == []


async def test_a_proxy_that_does_not_tunnel_is_told_the_whole_address_and_who_asks() -> None:
    async with peering(OK) as (proxy, connector):
        address = proxy.url.replace("http://", "http://me:secret@")
        answer = await HttpPool(connector, "http://cluster.test", proxy=address).send("GET", "/a", {})
        assert await answer.read() == b"ok"
        answer.close()
    lines = proxy.requests[0].decode().split("\r\n")
    assert lines[0] == "GET http://cluster.test/a HTTP/1.1"
    assert "Host: cluster.test" in lines
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in lines
