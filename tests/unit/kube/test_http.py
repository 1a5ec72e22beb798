"""What goes over the wire, and what becomes of the connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest

from inferencecache.kube import pki
from inferencecache.kube.http import HttpPool
from tests.unit.kube.scripted import until

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
        async with asyncio.timeout(60):
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
        slow = asyncio.create_task(pool.send("GET", "/slow", {}))
        await until(lambda: peer.requests)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        answer = await pool.send("GET", "/next", {})
        assert await answer.read() == b"ok"
        answer.close()
        assert peer.connections == 2


async def test_the_last_check_comes_when_there_is_a_connection_and_keeps_the_request_from_leaving() -> None:
    """Decision F14: connecting takes time, in which a lease can be lost."""
    async with peering(OK) as (peer, connector):

        def refuse() -> None:
            assert len(connector._acquired) == 1
            raise PermissionError

        pool = HttpPool(connector, peer.url)
        with pytest.raises(PermissionError):
            await pool.send("PATCH", "/", {}, b"{}", last_check=refuse)
        answer = await pool.send("GET", "/", {}, last_check=lambda: None)
        assert await answer.read() == b"ok"
        answer.close()
        assert [request.split(b" ")[0] for request in peer.requests] == [b"GET"]


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


async def test_requests_over_tls_go_through_the_tunnel_of_a_proxy() -> None:
    pair = pki.self_signed(["localhost"], now=datetime.now(UTC))
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    peer = Peer(OK, OK)
    asked: list[bytes] = []
    through = asyncio.Event()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        back, to_server = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(reader, to_server))
            group.create_task(pump(back, writer))
        through.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    def port_of(listener: asyncio.Server) -> int:
        return int(listener.sockets[0].getsockname()[1])

    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=pki.server_context(pair))
    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    connector = aiohttp.TCPConnector(ssl=client)
    async with server, proxy, asyncio.timeout(60):
        address = f"http://127.0.0.1:{port_of(proxy)}"
        pool = HttpPool(connector, "https://cluster.test:6443", proxy=address)
        for _ in range(2):
            answer = await pool.send("GET", "/a", {})
            assert await answer.read() == b"ok"
            answer.close()
        await connector.close()
        await through.wait()
    assert [request.partition(b"\r\n")[0] for request in asked] == [b"CONNECT cluster.test:6443 HTTP/1.1"]
    assert [request.partition(b"\r\n")[0] for request in peer.requests] == [b"GET /a HTTP/1.1"] * 2
