"""Several servers on one log in a real Redis. A server's index is here a plain list of what was applied, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inferencecache.kube.pki import issue, make_ca
from inferencecache.server.store import DOCUMENT, EVENT, Record, SharedLog, State, parse, shared_log, stream
from inferencecache.server.store.stream import DOCUMENTS, LOG
from tests.integration.server.redis_server import RedisServer


class Server:
    """One end of the log, and what it applied."""

    def __init__(self, url: str, *, password_file: Path | None = None, **options: float) -> None:
        self.applied: list[Record] = []
        self.holds: list[Record] = []
        self.registry = CollectorRegistry()
        self.log = SharedLog(
            parse(url, password_file),
            apply=self.applied.append,
            dump=lambda: iter(self.holds),
            retention_seconds=lambda: 1800.0,
            registry=self.registry,
            **options,  # type: ignore[arg-type]
        )

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.applied]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"inferencecache_index_store_{name}", labels)

    def accept(self, *bodies: bytes) -> list[asyncio.Future[None] | None]:
        return [self.log.accept(Record(EVENT, body)) for body in bodies]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        task = asyncio.create_task(self.log.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def live(self) -> None:
        await until(lambda: self.log.state is State.LIVE)


async def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def settled(futures: Iterable[asyncio.Future[None] | None]) -> None:
    """Every record is acknowledged the way of a live server."""
    async with asyncio.timeout(60):
        for future in futures:
            assert future is not None
            await future


@contextlib.asynccontextmanager
async def servers(url: str, count: int) -> AsyncIterator[list[Server]]:
    async with contextlib.AsyncExitStack() as stack:
        running = [await stack.enter_async_context(Server(url).running()) for _ in range(count)]
        for server in running:
            await server.live()
        yield running


async def test_every_server_applies_what_any_server_accepts_in_one_order(redis: RedisServer) -> None:
    async with servers(redis.url, 3) as running:
        for number in range(50):
            for index, server in enumerate(running):
                server.accept(b"%d-%d" % (index, number))
        await until(lambda: all(len(server.applied) == 150 for server in running))
    orders = [server.bodies() for server in running]
    assert orders[0] == orders[1] == orders[2]
    for index in range(3):
        assert [body for body in orders[0] if body.startswith(b"%d-" % index)] == [
            b"%d-%d" % (index, number) for number in range(50)
        ]


async def test_an_acknowledged_record_is_applied_here_and_in_the_log(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        await settled(server.accept(b"one"))
        assert server.bodies() == [b"one"]
        assert redis.client().xlen(LOG) == 1


async def test_acknowledgements_keep_the_order_of_acceptance(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        futures = server.accept(*(b"%d" % number for number in range(1000)))
        await settled(futures[-1:])
        assert len(server.applied) == 1000
        assert all(future is not None and future.done() for future in futures)


async def test_a_late_server_reads_the_log_from_its_start_before_it_is_live(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (first,):
        await settled(first.accept(*(b"%d" % number for number in range(300))))
        late = Server(redis.url)
        assert late.log.state is State.WARMING
        async with late.running():
            await late.live()
            assert late.bodies() == first.bodies()


async def test_the_newest_documents_reach_late_servers_even_when_the_log_forgot_them(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (first,):
        first.log.accept(Record(DOCUMENT, b"old", "policy"))
        await settled([first.log.accept(Record(DOCUMENT, b"new", "policy"))])
        await settled([first.log.accept(Record(DOCUMENT, b"t", "templates"))])
        redis.client().xtrim(LOG, maxlen=0)
        async with servers(redis.url, 1) as (late,):
            assert sorted(late.applied) == [
                Record(DOCUMENT, b"new", "policy"),
                Record(DOCUMENT, b"t", "templates"),
            ]


async def test_a_late_server_never_goes_through_documents_that_were_replaced(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (first,):
        await settled([first.log.accept(Record(DOCUMENT, body, "policy")) for body in (b"1", b"2", b"3")])
        async with servers(redis.url, 1) as (late,):
            await settled([first.log.accept(Record(DOCUMENT, b"4", "policy"))])
            await until(lambda: len(late.applied) == 2)
            assert late.bodies() == [b"3", b"4"]


async def test_pushing_the_document_in_force_again_writes_nothing(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        await settled([server.log.accept(Record(DOCUMENT, b"1", "policy"))])
        assert server.log.accept(Record(DOCUMENT, b"1", "policy")) is None
        assert redis.client().xlen(LOG) == 1
        assert server.bodies() == [b"1"]


async def test_a_document_is_pushed_again_while_another_is_on_its_way(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        await settled([server.log.accept(Record(DOCUMENT, b"1", "policy"))])
        await settled([server.log.accept(Record(DOCUMENT, body, "policy")) for body in (b"2", b"1")])
        assert server.bodies() == [b"1", b"2", b"1"]


async def test_an_outage_degrades_and_what_was_accepted_in_it_reaches_all_once_it_ends(redis: RedisServer) -> None:
    async with servers(redis.url, 2) as (one, two):
        await settled(one.accept(b"before"))
        await until(lambda: len(two.applied) == 1)
        redis.kill()
        await until(lambda: one.log.state is State.DEGRADED and two.log.state is State.DEGRADED)
        assert one.metric("up") == 0
        assert one.accept(b"one-a", b"one-b") == [None, None]
        assert two.accept(b"two-a") == [None]
        assert one.bodies() == [b"before", b"one-a", b"one-b"]
        assert one.metric("pending_records") == 2

        redis.start()
        await one.live()
        await two.live()
        await until(lambda: one.metric("pending_records") == 0 and two.metric("pending_records") == 0)
        await until(lambda: {b"one-a", b"one-b", b"two-a"} <= set(one.bodies()) & set(two.bodies()))
        await settled(two.accept(b"after"))
        await until(lambda: one.bodies()[-1] == b"after")
        assert one.metric("up") == 1


async def test_a_store_that_hangs_holds_nobody_up_for_long(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ANSWER_SECONDS", 2.0)
    async with servers(redis.url, 1) as (server,):
        redis.freeze()
        try:
            (waiting,) = server.accept(b"in flight")
            assert waiting is not None
            async with asyncio.timeout(60):
                await waiting
            assert server.bodies() == [b"in flight"]
            assert server.log.state is State.DEGRADED
        finally:
            redis.thaw()
        await server.live()
        await until(lambda: server.metric("pending_records") == 0)
        async with servers(redis.url, 1) as (late,):
            assert set(late.bodies()) == {b"in flight"}


async def test_a_record_that_was_appended_twice_is_applied_once_by_everybody_else(redis: RedisServer) -> None:
    async with servers(redis.url, 2) as (one, two):
        await settled(one.accept(b"a", b"b"))
        client = redis.client()
        for _, fields in client.xrange(LOG):
            client.xadd(LOG, fields)
        await settled(one.accept(b"c"))
        await until(lambda: two.bodies()[-1:] == [b"c"])
        assert two.bodies() == [b"a", b"b", b"c"]
        assert two.metric("missed_records_total", reason="gone") == 0


async def test_a_server_that_starts_without_its_store_says_so_and_serves(redis: RedisServer) -> None:
    redis.kill()
    async with Server(redis.url, warm_seconds=0.3).running() as server:
        assert server.log.state is State.WARMING
        assert server.accept(b"local") == [None]
        assert server.bodies() == [b"local"]
        await until(lambda: server.log.state is State.DEGRADED)
        redis.start()
        await server.live()
        async with servers(redis.url, 1) as (late,):
            await until(lambda: late.bodies() == [b"local"])


@pytest.mark.parametrize("loss", ["flushall", "restart", "only the log"])
async def test_a_lost_log_is_written_anew_by_exactly_one_server(redis: RedisServer, loss: str) -> None:
    async with servers(redis.url, 2) as (one, two):
        await settled([one.log.accept(Record(DOCUMENT, b"p", "policy"))])
        await settled(one.accept(b"x"))
        await until(lambda: len(two.applied) == 2)
        for server in (one, two):
            server.holds.append(Record(EVENT, b"held"))
        match loss:
            case "flushall":
                redis.client().flushall()
            case "only the log":
                redis.client().delete(LOG)
            case _:
                redis.kill()
                redis.start()
        await until(lambda: b"held" in one.bodies() and b"held" in two.bodies())
        await one.live()
        await two.live()
        await settled(two.accept(b"after"))
        await until(lambda: one.bodies()[-1:] == [b"after"])
        assert one.bodies().count(b"held") + two.bodies().count(b"held") == 2
        assert redis.client().hgetall(DOCUMENTS) == {b"policy": b"p"}
        async with servers(redis.url, 1) as (late,):
            assert late.applied == [
                Record(DOCUMENT, b"p", "policy"),
                Record(EVENT, b"held"),
                Record(EVENT, b"after"),
            ]


async def test_records_that_were_trimmed_before_they_were_read_are_counted(redis: RedisServer) -> None:
    # What trimming does to a reader that slept too long, as the reader sees it: numbers are missing.
    async with servers(redis.url, 2) as (one, two):
        await settled(one.accept(b"1"))
        client = redis.client()
        ((_, fields),) = client.xrevrange(LOG, count=1)
        for sequence in (20, 30, 40):
            client.xadd(LOG, fields | {b"sequence": b"%d" % sequence})
        await until(lambda: two.bodies() == [b"1"] * 4)
        assert two.metric("missed_records_total", reason="gone") == 18 + 9 + 9


async def test_foreign_entries_in_the_log_are_counted_and_passed_over(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        redis.client().xadd(LOG, {"what": "ever"})
        await settled(server.accept(b"fine"))
        assert server.bodies() == [b"fine"]
        assert server.metric("missed_records_total", reason="unreadable") == 1


async def test_after_a_buffer_overflowed_a_server_writes_all_it_holds(redis: RedisServer) -> None:
    redis.kill()
    async with Server(redis.url, buffer_bytes=1000, warm_seconds=0.0).running() as server:
        bodies = [b"%d" % number for number in range(20)]
        assert server.accept(*bodies) == [None] * 20
        assert server.bodies() == bodies
        lost = server.metric("missed_records_total", reason="overflow")
        assert lost is not None
        assert 0 < lost < 20
        server.holds.append(Record(EVENT, b"held"))
        redis.start()
        await server.live()
        await until(lambda: server.bodies()[-1] == b"held")
        async with servers(redis.url, 1) as (late,):
            assert late.bodies() == [*bodies[int(lost) :], b"held"]


async def test_a_log_that_is_too_large_is_cut_at_its_old_end(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "_TRIM_SECONDS", 3600.0)  # it trims when it begins, and then not before the end
    async with Server(redis.url, log_bytes=1 << 20).running() as server:
        await server.live()
        for _ in range(40):
            await settled(server.accept(bytes(100_000)))
        assert redis.client().xlen(LOG) == 40
    async with Server(redis.url, log_bytes=1 << 20).running() as server:
        await server.live()
        await until(lambda: redis.client().xlen(LOG) < 20)
        newest = redis.client().xinfo_stream(LOG)["last-entry"]
        assert newest is not None


async def test_the_past_is_forgotten_after_the_longest_ttl(redis: RedisServer) -> None:
    client = redis.client()
    client.xgroup_create(LOG, "created", id="0", mkstream=True)
    for hours_ago in range(3, 0, -1):
        for number in range(200):
            client.xadd(LOG, {"x": b"y"}, id=f"{1_700_000_000_000 - hours_ago * 3_600_000}-{number}")
    client.xadd(LOG, {"x": b"y"}, id="1700000000000-0")
    async with servers(redis.url, 1):
        # Whole nodes of a hundred entries or so go; the node at the edge may stay.
        await until(lambda: client.xlen(LOG) <= 101)


async def test_a_password_comes_from_a_file_and_is_read_anew_for_every_connection(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    with RedisServer(tmp_path, "--requirepass", "second") as redis:
        async with Server(redis.url, password_file=password, warm_seconds=0.0).running() as server:
            await until(lambda: server.log.state is State.DEGRADED)
            password.write_text("second\n")
            await server.live()


async def test_a_store_behind_tls_is_trusted_by_its_authority_only(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = make_ca("store", now=now, lifetime=timedelta(days=1))
    pair = issue(authority, ["127.0.0.1"], now=now, lifetime=timedelta(days=1))
    for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (tmp_path / name).write_bytes(content)
    flags = {"--tls-ca-cert-file": "ca.crt", "--tls-cert-file": "tls.crt", "--tls-key-file": "tls.key"}
    arguments = [text for flag, name in flags.items() for text in (flag, str(tmp_path / name))]
    with RedisServer(tmp_path, "--tls-auth-clients", "no", *arguments, tls=True) as redis:
        ca_file = tmp_path / "ca.crt"
        async with servers(f"rediss://127.0.0.1:{redis.port}?ca_file={ca_file}", 1) as (server,):
            await settled(server.accept(b"secret"))
        async with Server(f"rediss://127.0.0.1:{redis.port}", warm_seconds=0.0).running() as stranger:
            await until(lambda: stranger.log.state is State.DEGRADED)
            assert stranger.accept(b"x") == [None]


async def test_a_key_of_another_kind_in_the_place_of_the_log_degrades_and_is_left_alone(redis: RedisServer) -> None:
    redis.client().set(LOG, "mine")
    async with Server(redis.url, warm_seconds=0.0).running() as server:
        await until(lambda: server.log.state is State.DEGRADED)
        assert server.accept(b"x") == [None]
    assert redis.client().get(LOG) == b"mine"


async def test_a_document_under_a_name_that_is_no_text_ends_nothing(redis: RedisServer) -> None:
    redis.client().hset(DOCUMENTS, b"\xff", b"whose is it?")
    async with servers(redis.url, 1) as (server,):
        await settled(server.accept(b"x"))
        assert set(server.bodies()) == {b"whose is it?", b"x"}


async def test_something_that_only_looks_like_a_store_degrades() -> None:
    async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(agree, "127.0.0.1", 0) as impostor:
        port = impostor.sockets[0].getsockname()[1]
        async with Server(f"redis://127.0.0.1:{port}", warm_seconds=0.0).running() as server:
            await until(lambda: server.log.state is State.DEGRADED)
            assert server.accept(b"x") == [None]
            await asyncio.sleep(0.3)  # for an attempt or two to be over
            assert server.bodies() == [b"x"]
            assert server.log.state is State.DEGRADED


async def test_a_store_that_takes_no_more_degrades_and_recovers(redis: RedisServer) -> None:
    async with servers(redis.url, 1) as (server,):
        client = redis.client()
        client.config_set("maxmemory", "1")
        (waiting,) = server.accept(b"x")
        assert waiting is not None
        async with asyncio.timeout(60):
            await waiting
        assert server.bodies() == [b"x"]
        client.config_set("maxmemory", "0")
        await server.live()
        await until(lambda: server.metric("pending_records") == 0)
        assert client.xlen(LOG) == 1


async def test_stopping_leaves_nobody_waiting(redis: RedisServer) -> None:
    async with Server(redis.url).running() as server:
        await server.live()
        (waiting,) = server.accept(b"x")
    assert waiting is not None
    assert waiting.done()
    assert server.bodies()[:1] == [b"x"]
    assert server.accept(b"y") == [None]


async def test_lookups_get_their_turn_while_a_long_log_is_read(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "_TURN_SECONDS", 0.0)  # each turn is as short as can be, however fast the machine
    async with servers(redis.url, 1) as (first,):
        await settled(first.accept(*(bytes(20) for _ in range(20_000)))[-1:])
    late = Server(redis.url)
    async with late.running():
        most = 0
        while late.log.state is not State.LIVE:
            before = len(late.applied)
            await asyncio.sleep(0)
            most = max(most, len(late.applied) - before)
    assert len(late.applied) == 20_000
    assert most < 1000, "so many were applied between two turns of others"
