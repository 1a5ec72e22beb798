"""Calls of the cache server, against a server of the test (spec 05 §1.2, §5, §7.1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from inferencecache.controllers.dataplane import client as dataplane
from inferencecache.controllers.dataplane.client import Endpoint, ServerCallError, ServerClient, TokenFile
from inferencecache.controllers.dataplane.server import CacheServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(patience: timedelta) -> AsyncIterator[ServerClient]:
    client = ServerClient(timeout=patience)
    running = asyncio.create_task(client.run())
    yield client
    running.cancel()
    await asyncio.wait([running])


@pytest.fixture
async def client() -> AsyncIterator[ServerClient]:
    async with connected(timedelta(minutes=1)) as client:
        yield client


def endpoint(client: ServerClient, url: str, token: Path | None = None, *, insists: bool = False) -> Endpoint:
    file = TokenFile(token or Path("/nonexistent"))
    return Endpoint(name="test", client=client, url=f"{url}/it", token=file, insists_on_token=insists)


async def told(request: web.Request) -> web.Response:
    """What came."""
    seen = {name: request.headers.get(name, "") for name in ("Authorization", "Content-Type")}
    return web.json_response({"method": request.method, "body": await request.text(), **seen})


async def test_a_request_carries_json_and_the_token_that_is_in_the_file_right_now(
    client: ServerClient, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    seen = []
    async with answering(told) as url:
        for token in (" first\n", "second"):
            file.write_text(token)
            seen.append(json.loads(await endpoint(client, url, file).send("POST", b"{}")))
    common = {"method": "POST", "body": "{}", "Content-Type": "application/json"}
    assert seen == [{**common, "Authorization": f"Bearer {token}"} for token in ("first", "second")]


@pytest.mark.parametrize("content", [None, "", " \n"], ids=["missing", "empty", "blank"])
@pytest.mark.parametrize("insists", [False, True])
async def test_without_a_token_nothing_is_claimed(
    client: ServerClient, tmp_path: Path, content: str | None, insists: bool
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    async with answering(told) as url:
        seen = json.loads(await endpoint(client, url, file, insists=insists).get())
    assert (seen["method"], seen["Authorization"], seen["Content-Type"]) == ("GET", "", "")


async def test_an_unreadable_token_keeps_only_those_from_calling_who_insist_on_it(
    client: ServerClient, tmp_path: Path
) -> None:
    async with answering(told) as url:
        assert json.loads(await endpoint(client, url, tmp_path).get())["Authorization"] == ""
        with pytest.raises(ServerCallError, match=r"was not called: token file"):
            await endpoint(client, url, tmp_path, insists=True).get()


@pytest.mark.parametrize(
    ("status", "readable", "accepted"),
    [(200, True, True), (204, False, True), (302, False, False), (404, False, False)],
)
async def test_a_read_takes_200_and_a_push_any_2xx(
    client: ServerClient, status: int, readable: bool, accepted: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else None)

    async def status_of(call: Awaitable[bytes]) -> int | None:
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        assert isinstance(outcome, (bytes, ServerCallError))
        return outcome.status if isinstance(outcome, ServerCallError) else None

    async with answering(answer) as url:
        here = endpoint(client, url)
        assert await status_of(here.get()) == (None if readable else status)
        assert await status_of(here.send("PUT", b"{}")) == (None if accepted else status)


async def test_a_refusal_is_quoted_up_to_a_kilobyte(client: ServerClient) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=503, text="token review unavailable " + "x" * 5000)

    async with answering(answer) as url:
        with pytest.raises(ServerCallError, match=r"GET .*/it: HTTP 503: token review unavailable x") as caught:
            await endpoint(client, url).get()
    assert 1024 <= len(str(caught.value)) < 1200


@pytest.mark.parametrize("begun", [False, True], ids=["silent", "stuck in the middle"])
async def test_a_server_that_hangs_costs_one_timeout_and_holds_up_nobody_else(begun: bool) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        if begun:
            await answer.prepare(request)
            await answer.write(b"{")
        await asyncio.sleep(3600)
        return answer

    def calls(client: ServerClient) -> list[asyncio.Task[bytes]]:
        return [asyncio.create_task(endpoint(client, stuck).get()) for _ in range(60)]

    async with answering(hang) as stuck, answering(told) as well:
        async with connected(timedelta(hours=1)) as client:
            hanging = calls(client)
            async with asyncio.timeout(60):
                await endpoint(client, well).get()
            assert not any(task.done() for task in hanging)
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)
        async with connected(timedelta(seconds=2)) as client, asyncio.timeout(60):  # in turn it would be two minutes
            for result in await asyncio.gather(*calls(client), return_exceptions=True):
                assert isinstance(result, ServerCallError)
                assert "no answer within 2 s" in str(result)


async def test_an_endless_answer_is_not_read_to_its_end(client: ServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataplane, "LARGEST_ANSWER", 1 << 16)

    async def flood(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 4096)

    async with answering(flood) as url:
        with pytest.raises(ServerCallError, match="longer than 65536 bytes"):
            await endpoint(client, url).get()


async def test_nobody_there_is_an_error_that_names_the_address(client: ServerClient) -> None:
    async with answering(told) as url:
        pass
    with pytest.raises(ServerCallError, match=url) as caught:
        await endpoint(client, url).get()
    assert caught.value.status is None


async def test_what_is_sent_to_all_reaches_every_address_of_the_name_under_that_name(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    async def note(request: web.Request) -> web.Response:
        assert request.transport is not None
        at = request.transport.get_extra_info("sockname")[0]
        seen.append((at, request.headers["Host"], await request.text()))
        return web.Response(status=204)

    async def several(host: str) -> list[str]:
        assert host == "servers.test"
        return ["127.0.0.1", "127.0.0.2"]

    client = ServerClient(timeout=timedelta(minutes=1), resolve=several)
    running = asyncio.create_task(client.run())
    async with answering(note) as first:
        port = int(first.rpartition(":")[2])
        everyone = endpoint(client, f"http://servers.test:{port}")
        # One that is away is told of, but keeps nobody else from being told.
        with pytest.raises(ServerCallError, match=r"127\.0\.0\.2"):
            await everyone.send_to_all("PUT", b"1")
        async with answering(note, "127.0.0.2", port):
            await everyone.send_to_all("PUT", b"2")
    running.cancel()
    await asyncio.wait([running])
    name = f"servers.test:{port}"
    assert sorted(seen) == [("127.0.0.1", name, "1"), ("127.0.0.1", name, "2"), ("127.0.0.2", name, "2")]


@pytest.mark.parametrize("found", [[], ["127.0.0.9"]], ids=["none", "one"])
async def test_a_name_without_several_addresses_is_called_as_it_is(found: list[str]) -> None:
    async def resolve(_: str) -> list[str]:
        if not found:
            raise OSError("no such name")
        return found

    client = ServerClient(timeout=timedelta(minutes=1), resolve=resolve)
    running = asyncio.create_task(client.run())
    async with answering(told) as url:
        await endpoint(client, url).send_to_all("PUT", b"{}")
    running.cancel()
    await asyncio.wait([running])


async def test_an_address_is_its_own_only_address() -> None:
    assert await dataplane.addresses_of("127.0.0.1") == ["127.0.0.1"]


async def test_calls_are_counted_by_what_became_of_them(client: ServerClient) -> None:
    def count(result: str) -> float:
        labels = {"endpoint": "test", "result": result}
        return REGISTRY.get_sample_value("inferencecache_controller_server_requests_total", labels) or 0.0

    before = count("ok"), count("error")
    async with answering(told) as url:
        await endpoint(client, url).get()
    with pytest.raises(ServerCallError):
        await endpoint(client, url).get()
    assert (count("ok"), count("error")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(
    ("policy_url", "templates_url"),
    [
        ("http://server:8081/policy", "http://server:8081/templates"),
        ("https://server/behind/policy", "https://server/behind/templates"),
    ],
)
async def test_documents_go_beside_the_policies_with_the_same_token(policy_url: str, templates_url: str) -> None:
    server = CacheServer(snapshot_url="http://server:8081/snapshot", policy_url=policy_url)
    policy, templates = (server.document(ServerClient(), name) for name in ("policy", "templates"))
    assert (policy.url, templates.url) == (policy_url, templates_url)
    assert policy.token == templates.token != server.snapshot(ServerClient()).token
