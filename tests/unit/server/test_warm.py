from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server import warm
from inferencecache.server.index import Holds, PrefixIndex, Report
from inferencecache.server.policy import PolicyStore
from inferencecache.server.warm import DumpError, read, warm_from
from inferencecache.wire.v1alpha1.inferencecache_pb2 import CacheStateUpdate

NOW_US = 1_700_000_000_000_000


async def pieces_of(data: bytes, sizes: Sequence[int]) -> AsyncIterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


async def messages_in(data: bytes, sizes: Sequence[int] = ()) -> list[CacheStateUpdate]:
    return [update async for update in read(pieces_of(data, sizes))]


def index_with(replicas: int) -> PrefixIndex:
    index = PrefixIndex(PolicyStore())
    for number in range(replicas):
        hashes = [bytes([number, block]) * 4 for block in range(200)]
        holds = [Holds("", 1, hashes, [16] * 200)]
        index.ingest(Report(f"r{number}", "t", "m", "vllm", NOW_US, holds, None), NOW_US)
    return index


async def body_of(index: PrefixIndex) -> bytes:
    return b"".join([piece async for piece in warm.dump(index)])


@given(st.lists(st.integers(0, 400), max_size=20))
async def test_a_dump_is_read_whatever_pieces_it_comes_in(sizes: list[int]) -> None:
    index = index_with(3)
    updates = await messages_in(await body_of(index), sizes)
    assert sum(len(update.prefixes) for update in updates) == 600
    assert {update.replica_id for update in updates} == {"r0", "r1", "r2"}


async def test_the_dump_of_an_empty_index_is_empty() -> None:
    assert await body_of(PrefixIndex(PolicyStore())) == b""
    assert await messages_in(b"") == []


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x05\x0a", "ends within a message"),
        (b"\xff\xff\xff\xff", "makes no sense"),
        (b"\xff\xff\xff\x7f", "over the limit"),
        (b"\x02\xff\xff", "cannot be read"),
        (b"<html>", "ends within a message"),
    ],
)
async def test_what_is_no_dump_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(DumpError, match=complaint):
        await messages_in(data)


class Peer:
    """An HTTP server that answers each request with the next of its answers, and the last one for ever."""

    def __init__(self, *answers: web.Response) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __aenter__(self) -> Peer:
        app = web.Application()
        app.router.add_get("/dump", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/dump"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization", ""))
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return web.Response(body=answer.body, status=answer.status, headers=dict(answer.headers))


async def test_a_server_takes_everything_its_peer_has(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    taken: list[CacheStateUpdate] = []
    async with Peer(web.Response(body=await body_of(index_with(4)))) as peer:
        assert await warm_from(peer.url, taken.append, instance="me", token_file=token) == len(taken)
    assert sum(len(update.prefixes) for update in taken) == 800
    assert peer.asked == ["Bearer secret"]


async def test_a_peer_that_is_not_ready_is_asked_again() -> None:
    taken: list[CacheStateUpdate] = []
    async with Peer(web.Response(status=503), web.Response(body=await body_of(index_with(1)))) as peer:
        assert await warm_from(peer.url, taken.append, instance="me", pause_seconds=0) == 1
    assert len(peer.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=403, text="forbidden"),
        web.Response(body=b"\xff\xff\xff\xff"),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        web.Response(body=b"", headers={warm.INSTANCE_HEADER: "me"}),
    ],
    ids=["refused", "no dump", "sent elsewhere", "itself"],
)
async def test_a_peer_of_no_use_is_given_up(answer: web.Response) -> None:
    async with Peer(answer) as peer:
        assert await warm_from(peer.url, print, instance="me", pause_seconds=0) == 0
    assert len(peer.asked) == 3


async def test_without_a_peer_a_server_goes_on_empty() -> None:
    assert await warm_from("http://127.0.0.1:1/dump", print, instance="me", pause_seconds=0) == 0


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"two\nlines"])
async def test_a_token_file_of_no_use_is_a_reason_to_go_on_without(tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    async with Peer(web.Response(body=b"")) as peer:
        assert await warm_from(peer.url, print, instance="me", token_file=token, pause_seconds=0) == 0
    assert peer.asked == []


async def test_warming_ends_in_time_with_what_it_got() -> None:
    body = await body_of(index_with(2))

    async def stall(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        await reply.write(body)
        await reply.write(b"\x05")
        await asyncio.Event().wait()
        return reply

    app = web.Application()
    app.router.add_get("/dump", stall)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    taken: list[CacheStateUpdate] = []
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/dump"
        assert await warm_from(url, taken.append, instance="me", within=4) == len(taken) == 2
    finally:
        await runner.cleanup()
