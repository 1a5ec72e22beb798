"""What the admin client makes of answers (spec 10 §6.3), against a server that gives those no real master can be made
to give at will. What a real master says is asked in tests/integration/mooncake/test_master.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.admin import (
    LARGEST_ANSWER,
    LARGEST_TEXT,
    TIMEOUT,
    AdminClient,
    BadQuota,
    BadTenant,
    CannotPersist,
    Health,
    LedgerEntry,
    MasterError,
    MasterFailure,
    MooncakeClients,
    MultiTenancyOff,
    Segment,
    SegmentsNotServed,
    TenantNotEmpty,
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

ENTRY = {
    "tenant_id": "a",
    "requested_quota_bytes": 16,
    "effective_quota_bytes": 8,
    "charged_bytes": 4,
    "admission_closed": False,
    "over_quota": False,
    "has_explicit_policy": True,
}
OLDER_ENTRY = {
    "tenant_id": "a",
    "requested_quota_bytes": 16,
    "effective_quota_bytes": 8,
    "used_bytes": 3,
    "reserved_bytes": 1,
    "committed_count": 1,
    "metadata_object_count": 1,
    "over_quota": False,
    "has_explicit_policy": True,
}

CALLS: dict[str, Callable[[AdminClient], Awaitable[Any]]] = {
    "LIST": lambda admin: admin.quotas(),
    "PUT": lambda admin: admin.put_quota("a", 16),
    "DELETE": lambda admin: admin.delete_quota("a"),
    "metrics": lambda admin: admin.metrics(),
    "health": lambda admin: admin.health(),
    "segments": lambda admin: admin.segments(),
}
LEDGER = ("LIST", "PUT", "DELETE")


@pytest.mark.parametrize("call", CALLS)
async def test_who_may_not_write_any_more_sends_no_write_and_reads_on(clients: MooncakeClients, call: str) -> None:
    class MayNot(Exception):
        pass

    def held() -> None:
        raise MayNot

    writes = call in ("PUT", "DELETE")
    # Nobody serves there: what is sent fails as a master's failure.
    with pytest.raises(MayNot if writes else MasterFailure):
        await CALLS[call](clients.at("127.0.0.1:1", held))


@pytest.fixture
async def clients() -> AsyncIterator[MooncakeClients]:
    clients = MooncakeClients(timeout=timedelta(minutes=1))
    running = asyncio.create_task(clients.run())
    yield clients
    running.cancel()
    await asyncio.wait([running])


@asynccontextmanager
async def master(answer: Answer) -> AsyncIterator[str]:
    """The address of a server that gives one answer to everything."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def saying(status: int, body: Any) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=content)

    return answer


def refusing(status: int, code: int, message: str = "") -> Answer:
    return saying(status, {"success": False, "error_code": code, "error_message": message})


async def outcome(clients: MooncakeClients, answer: Answer, call: str) -> Any:
    """What a call returns, or the exception it raises."""
    async with master(answer) as address:
        try:
            return await CALLS[call](clients.at(address))
        except MasterError as error:
            return error


@pytest.mark.parametrize("call", LEDGER)
@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, -600, "Missing or invalid Tenant_ID", BadTenant),
        (400, -600, "Tenant quota must be positive", BadQuota),
        (400, -601, "tenant_id", MasterFailure),
        (404, 0, "", MasterFailure),
        (404, -703, "OBJECT_NOT_FOUND", MasterFailure),
        (409, -1011, "", MultiTenancyOff),
        (409, -1010, "multi-tenancy off", MasterFailure),
        (409, -1702, "", TenantNotEmpty),
        (409, -1, "TENANT_NOT_EMPTY", MasterFailure),
        (500, -1503, "", CannotPersist),
        (500, -1702, "", MasterFailure),
        (500, 0, "", MasterFailure),
        (503, -1011, "service plane is not active", MasterFailure),
        (503, -1503, "", MasterFailure),
        (503, -1702, "", MasterFailure),
        (200, -1011, "", MasterFailure),
        (201, 0, "", MasterFailure),
    ],
)
async def test_a_refusal_is_told_by_its_status_first_and_then_by_its_code(
    clients: MooncakeClients, call: str, status: int, code: int, message: str, kind: type[MasterError]
) -> None:
    assert type(await outcome(clients, refusing(status, code, message), call)) is kind


@pytest.mark.parametrize(("call", "expected"), [("LIST", MasterFailure), ("PUT", MasterFailure), ("DELETE", None)])
async def test_only_deleting_a_tenant_may_find_nothing(
    clients: MooncakeClients, call: str, expected: type[MasterError] | None
) -> None:
    found = await outcome(clients, refusing(404, -704), call)
    assert found is None if expected is None else type(found) is expected


@pytest.mark.parametrize("call", LEDGER)
@pytest.mark.parametrize(
    "body",
    [b"", b"404 Not Found", b"<html><body>-704</body></html>", b'{"error_code": "-704"}', b"[-704]", b"\xff\xfe"],
)
async def test_a_404_that_is_not_the_masters_own_says_nothing_about_the_ledger(
    clients: MooncakeClients, call: str, body: bytes
) -> None:
    assert type(await outcome(clients, saying(404, body), call)) is MasterFailure


@pytest.mark.parametrize("call", LEDGER)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html></html>",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        {},
        {"success": True},
        {"data": [ENTRY]},
        {"success": False, "data": [ENTRY]},
        {"success": False, "data": ENTRY},
        {"success": False, "data": None},
        {"success": "true", "data": [ENTRY]},
        {"success": True, "data": "ENTRY"},
        {"success": True, "data": 0},
        {"success": True, "data": {}},
        {"success": True, "data": {**ENTRY, "tenant_id": ""}},
        {"success": True, "data": {**ENTRY, "tenant_id": None}},
        {"success": True, "data": {key: value for key, value in ENTRY.items() if key != "tenant_id"}},
        {"success": True, "data": {key: value for key, value in ENTRY.items() if key != "has_explicit_policy"}},
        {"success": True, "data": {key: value for key, value in ENTRY.items() if key != "requested_quota_bytes"}},
        {"success": True, "data": {**ENTRY, "requested_quota_bytes": "16"}},
        {"success": True, "data": {**ENTRY, "requested_quota_bytes": 16.5}},
        b"[" * 100_000,
        json.dumps({"success": True, "data": [ENTRY]}).encode()[:-1],
    ],
)
async def test_a_success_that_does_not_say_what_it_should_is_a_failure(
    clients: MooncakeClients, call: str, body: Any
) -> None:
    assert type(await outcome(clients, saying(200, body), call)) is MasterFailure


@pytest.mark.parametrize(
    "data", [None, [None], [{}], [ENTRY, ENTRY], [ENTRY, {**ENTRY, "tenant_id": ""}], {"a": ENTRY}]
)
async def test_a_list_that_cannot_be_relied_on_is_not_an_empty_ledger(clients: MooncakeClients, data: Any) -> None:
    assert type(await outcome(clients, saying(200, {"success": True, "data": data}), "LIST")) is MasterFailure


async def test_the_entries_of_both_versions_are_read(clients: MooncakeClients) -> None:
    common = {"tenant_id": "a", "requested_quota_bytes": 16, "effective_quota_bytes": 8, "over_quota": False}
    for row, charged in ((ENTRY, 4), (OLDER_ENTRY, None)):
        entry = LedgerEntry(**common, has_explicit_policy=True, charged_bytes=charged)
        assert await outcome(clients, saying(200, {"success": True, "data": [row]}), "LIST") == {"a": entry}
    assert await outcome(clients, saying(200, {"success": True, "data": []}), "LIST") == {}


@pytest.mark.parametrize("left", [None, {**ENTRY, "has_explicit_policy": False}])
async def test_a_deletion_may_leave_an_entry_behind(clients: MooncakeClients, left: Any) -> None:
    assert await outcome(clients, saying(200, {"success": True, "data": left}), "DELETE") is None


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(clients: MooncakeClients, call: str, status: int) -> None:
    asked = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    assert type(await outcome(clients, redirect, call)) is MasterFailure
    assert len(asked) == 1
    assert "/elsewhere" not in asked


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("over", [0, 1])
async def test_an_answer_of_eight_mebibytes_is_read_and_a_longer_one_is_not(
    clients: MooncakeClients, chunked: bool, over: int
) -> None:
    async def long(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        if chunked:
            answer.enable_chunked_encoding()
        else:
            answer.content_length = LARGEST_ANSWER + over
        await answer.prepare(request)
        await answer.write(b"x" * (LARGEST_ANSWER + over))
        return answer

    found = await outcome(clients, long, "metrics")
    if over:
        assert type(found) is MasterFailure
        assert "longer than 8388608 bytes" in str(found)
    else:
        assert len(found) == LARGEST_ANSWER


async def hanging(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


async def trickling(request: web.Request) -> web.StreamResponse:
    """Never silent for long, and never done."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" ")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [hanging, trickling])
async def test_a_master_that_does_not_come_to_an_end_costs_one_timeout(answer: Answer) -> None:
    clients = MooncakeClients(timeout=timedelta(seconds=0.3))
    running = asyncio.create_task(clients.run())
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(outcome(clients, answer, call) for call in CALLS))
    running.cancel()
    await asyncio.wait([running])
    assert {type(error) for error in found} == {MasterFailure}
    assert {str(error).partition(": ")[2] for error in found} == {"no answer within 0.3 s"}


def test_a_request_has_five_seconds() -> None:
    assert timedelta(seconds=5) == TIMEOUT


async def test_an_answer_that_breaks_off_is_a_failure(clients: MooncakeClients) -> None:
    async def breaking(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.content_length = 100
        await answer.prepare(request)
        await answer.write(b'{"success": true, "data": []}')
        assert request.transport is not None
        request.transport.close()
        return answer

    assert type(await outcome(clients, breaking, "LIST")) is MasterFailure


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "no such host:9003", "127.0.0.1:port", "127.0.0.1:99999", "", "::1"]
)
async def test_an_address_that_leads_nowhere_is_a_failure(clients: MooncakeClients, address: str) -> None:
    with pytest.raises(MasterFailure):
        await clients.at(address).health()


@pytest.mark.parametrize(
    "tenant",
    ["a", "qwen-72b-v2", "a b", "a+b", "a&tenant_id=b", "a/b", "a#b", "%41", "é", "😀", '"', "a=b", "?", "\x85"],
)
async def test_a_tenant_id_arrives_as_it_is(clients: MooncakeClients, tenant: str) -> None:
    seen = []

    async def recording(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, dict(request.query), await request.text(), request.content_type))
        return web.json_response({"success": True, "data": {**ENTRY, "tenant_id": tenant}})

    async with master(recording) as address:
        admin = clients.at(address)
        await admin.put_quota(tenant, 2**63 - 1)
        await admin.delete_quota(tenant)
    (put, deleted) = seen
    assert [row[:3] for row in seen] == [
        (method, "/api/v1/tenant_quotas", {"tenant_id": tenant}) for method in ("PUT", "DELETE")
    ]
    assert json.loads(put[3]) == {"requested_quota_bytes": 9223372036854775807}
    assert put[4] == "application/json"
    assert deleted[3] == ""


async def test_an_empty_tenant_id_is_never_sent(clients: MooncakeClients) -> None:
    """The master would take it for a question about, or an order for, all tenants."""
    asked = []

    async def recording(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response({"success": True, "data": []})

    async with master(recording) as address:
        admin = clients.at(address)
        for call in (admin.put_quota("", 1), admin.delete_quota("")):
            with pytest.raises(BadTenant):
                await call
    assert asked == []


@pytest.mark.parametrize(
    ("body", "ready"),
    [
        ({"status": "ok", "role": "leader", "service_ready": True}, True),
        ({"status": "ok", "role": "standby", "service_ready": False}, False),
        ({"status": "ok", "role": "leader"}, None),
        ({"service_ready": "yes"}, None),
        (b"ok", None),
    ],
)
async def test_health_is_whether_the_master_says_it_serves(
    clients: MooncakeClients, body: Any, ready: bool | None
) -> None:
    found = await outcome(clients, saying(200, body), "health")
    assert type(found) is MasterFailure if ready is None else found == Health(service_ready=ready)


@pytest.mark.parametrize("status", [404, 503])
async def test_a_master_too_old_to_list_segments_differs_from_one_that_does_not_serve(
    clients: MooncakeClients, status: int
) -> None:
    kind = SegmentsNotServed if status == 404 else MasterFailure
    assert type(await outcome(clients, saying(status, b""), "segments")) is kind


async def test_segments_are_read_whatever_else_is_said_of_them(clients: MooncakeClients) -> None:
    row = {"segment_id": "1-2", "client_id": "3-4", "segment_name": "10.0.0.1:13527", "size_bytes": 64, "new": [1]}
    segments = [{**row, "protocol": "tcp", "te_endpoint": "10.0.0.1:15298", "status": "OK"}, row]
    common = {"segment_id": "1-2", "client_id": "3-4", "segment_name": "10.0.0.1:13527", "size_bytes": 64}
    assert await outcome(clients, saying(200, {"total_segments": 2, "segments": segments}), "segments") == [
        Segment(**common, protocol="tcp", te_endpoint="10.0.0.1:15298", status="OK"),
        Segment(**common),
    ]
    assert type(await outcome(clients, saying(200, {"total_segments": 0}), "segments")) is MasterFailure


async def test_a_failure_quotes_what_the_master_said(clients: MooncakeClients) -> None:
    error = await outcome(clients, refusing(503, -1011, "service plane\n is not active"), "PUT")
    assert str(error).endswith("tenant_id=a: HTTP 503, code -1011: service plane is not active")
    page = b"<html>\r\n" + b"<p>Bad gateway</p>" * 1000
    assert "<html> <p>Bad gateway" in str(await outcome(clients, saying(502, page), "LIST"))


@given(st.text(st.characters()))
def test_the_text_of_a_failure_fits_into_a_condition(said: str) -> None:
    text = str(MasterFailure(f"GET: {said}"))
    assert len(text) <= LARGEST_TEXT == 512
    assert text.isprintable()
    assert text == text.strip()


async def test_stopping_closes_the_connections(clients: MooncakeClients) -> None:
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"service_ready": true}')
        assert await reader.read() == b""
        writer.close()
        closed.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        mine = MooncakeClients(timeout=timedelta(minutes=1))
        running = asyncio.create_task(mine.run())
        host, port = server.sockets[0].getsockname()
        assert await mine.at(f"{host}:{port}").health() == Health(service_ready=True)
        assert not closed.is_set()
        running.cancel()
        await asyncio.wait_for(closed.wait(), 60)
    assert running.cancelled()
