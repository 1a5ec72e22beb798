from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.store.resp import BrokenReply, Connection, Reply, StoreError, encode, read_reply

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)


def as_the_store_writes(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(reply), reply)
        case _:
            return b"*%d\r\n" % len(reply) + b"".join(map(as_the_store_writes, reply))


def read(data: bytes) -> Reply:
    async def run() -> Reply:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        reply = await read_reply(reader)
        assert await reader.read() == b""
        return reply

    return asyncio.run(run())


@given(replies)
def test_every_reply_is_read_whole_and_nothing_beyond_it(reply: Any) -> None:
    assert read(as_the_store_writes(reply)) == reply


@pytest.mark.parametrize(
    ("data", "reply"), [(b"+OK\r\n", b"OK"), (b"*-1\r\n", None), (b"$0\r\n\r\n", b""), (b"*0\r\n", [])]
)
def test_the_forms_that_few_commands_use(data: bytes, reply: Reply) -> None:
    assert read(data) == reply


def test_an_error_inside_an_array_is_a_value() -> None:
    reply = read(b"*2\r\n:1\r\n-OOM no room\r\n")
    assert isinstance(reply, list)
    assert reply[0] == 1
    assert isinstance(reply[1], StoreError)
    assert str(reply[1]) == "OOM no room"


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\r\n", b":x\r\n", b"$x\r\n", b"*1\r\n" * 20, b"\r\n"],
    ids=repr,
)
def test_another_protocol_is_recognised(data: bytes) -> None:
    with pytest.raises(BrokenReply, match="not a reply of a Redis"):
        read(data)


@given(st.binary(max_size=60))
def test_whatever_comes_is_a_reply_or_one_of_two_errors(data: bytes) -> None:
    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        await read_reply(reader)

    try:
        asyncio.run(run())
    except (BrokenReply, EOFError):
        return


@given(st.lists(st.binary(max_size=20) | st.integers() | st.text(max_size=5), min_size=1))
def test_a_command_is_an_array_of_strings(command: list[bytes | int | str]) -> None:
    assert read(encode(command)) == [
        argument if isinstance(argument, bytes) else str(argument).encode() for argument in command
    ]


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected_to(serve: Serve) -> AsyncIterator[Connection]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        connection = await Connection.open(host, port, tls=None, within=60)
        try:
            yield connection
        finally:
            connection.close()


async def test_a_store_that_hangs_up_is_a_broken_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"$10\r\nhalf")

    async with connected_to(serve) as connection:
        with pytest.raises(ConnectionError, match="closed"):
            await connection.call(("GET", "x"), within=60)


async def test_a_store_that_says_nothing_is_given_up() -> None:
    ended = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await ended.wait()

    async with connected_to(serve) as connection:
        with pytest.raises(TimeoutError):
            await connection.call(("GET", "x"), within=0.05)
        ended.set()


async def test_calls_of_several_tasks_do_not_mix_their_replies() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            command = await read_reply(reader)
            assert isinstance(command, list)
            await asyncio.sleep(0)
            writer.write(as_the_store_writes(command[1]))

    async with connected_to(serve) as connection:
        answers = await asyncio.gather(
            *(connection.call(("ECHO", number), ("ECHO", -number), within=60) for number in range(1, 20))
        )
    assert answers == [[b"%d" % number, b"%d" % -number] for number in range(1, 20)]
