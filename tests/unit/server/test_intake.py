"""What is accepted, alone and with a shared log; the log here only remembers what it was given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from inferencecache.server.dump import updates
from inferencecache.server.faults import Faults
from inferencecache.server.index import RESERVED_TENANT, PrefixIndex, Report
from inferencecache.server.intake import POLICY, TEMPLATES, TOPOLOGIES, Intake, State
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.pdroute import PDRouter
from inferencecache.server.policy import PolicyStore
from inferencecache.server.reports import MAX_HASH_BYTES
from inferencecache.server.store import DOCUMENT, EVENT, UPDATE, Record
from inferencecache.server.streams import EventHub
from inferencecache.server.templates import Rendered, TemplateStore
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.unit.server.callers import NOW_US
from tests.unit.server.index.reports import snapshot_of

AHEAD_US = NOW_US + 60_000_000


class MemoryLog:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def accept(self, record: Record) -> asyncio.Future[None] | None:
        self.records.append(record)
        return asyncio.get_running_loop().create_future()


class Server:
    def __init__(self, now_us: int = NOW_US) -> None:
        policies, metrics = PolicyStore(), ServerMetrics()
        index = PrefixIndex(policies)
        self.metrics = metrics
        self.state = State(index, policies, TemplateStore(), PDRouter(index, policies), EventHub())
        self.intake = Intake(
            self.state, metrics=metrics, faults=Faults(metrics), wall_us=lambda: now_us, put_off=lambda: None
        )

    def holds(self) -> int:
        return snapshot_of(self.state.index).total_prefixes


def update(*hashes: bytes, timestamp_us: int = NOW_US, tenant: str = "t") -> pb.CacheStateUpdate:
    return pb.CacheStateUpdate(
        replica_id="r",
        model_id="m",
        tenant_id=tenant,
        hash_scheme="vllm",
        timestamp_us=timestamp_us,
        prefixes=[pb.PrefixEntry(prefix_hash=each, token_count=16) for each in hashes],
    )


def cleared(timestamp_us: int = NOW_US) -> pb.CacheEvent:
    return pb.CacheEvent(
        type=pb.CacheEvent.ALL_CLEARED, replica_id="r", model_id="m", tenant_id="t", timestamp_us=timestamp_us
    )


TEMPLATES_BODY = json.dumps(
    {
        "version": 1,
        "templates": [{"namespace": "t", "name": "n", "body": "x"}, {"namespace": "t", "name": "b", "body": "{{"}],
    }
).encode()
TOPOLOGIES_BODY = json.dumps(
    {
        "version": 1,
        "topologies": [
            {
                "namespace": "t",
                "name": "pd",
                "prefillPools": [{"name": "p", "replicas": ["a"]}],
                "decodePools": [{"name": "d", "replicas": ["b"]}],
            }
        ],
    }
).encode()


def test_alone_everything_is_in_force_at_once() -> None:
    server = Server()
    assert server.intake.report(update(b"1", b"2")) is None
    assert server.holds() == 2
    assert server.intake.publish(cleared()) is None
    assert server.holds() == 0


async def test_observers_hear_of_what_was_applied() -> None:
    server = Server()
    events = server.state.events.subscribe(pb.StreamEventsRequest())
    server.intake.report(update(b"1", timestamp_us=0))
    server.intake.publish(cleared())
    heard = [await anext(events), await anext(events)]
    assert [event.type for event in heard] == [pb.CacheEvent.PREFIX_ADDED, pb.CacheEvent.ALL_CLEARED]
    assert heard[0].timestamp_us == NOW_US


async def test_observers_hear_nothing_of_what_was_left_out() -> None:
    server = Server()
    events = server.state.events.subscribe(pb.StreamEventsRequest())
    without_scheme = update(b"1")
    without_scheme.hash_scheme = ""
    server.intake.report(without_scheme)
    without_scheme.stats.pressure = 0.5
    server.intake.report(without_scheme)
    broken = pb.PrefixEntry(prefix_hash=b"2", block_hashes=[b"1", b"2"], block_token_counts=[16])
    server.intake.report(pb.CacheStateUpdate(tenant_id="t", hash_scheme="vllm", prefixes=[broken]))
    server.intake.report(update(b"x" * (MAX_HASH_BYTES + 1), b"3"))
    heard = [await anext(events), await anext(events)]
    assert [(event.type, event.prefix_hash) for event in heard] == [
        (pb.CacheEvent.REPLICA_UPDATED, b""),
        (pb.CacheEvent.PREFIX_ADDED, b"3"),
    ]


async def test_with_a_log_nothing_is_in_force_before_the_log_gives_it_back() -> None:
    server, log = Server(), MemoryLog()
    server.intake.share(log)
    assert server.intake.report(update(b"1")) is not None
    assert server.intake.publish(cleared()) is not None
    assert server.intake.push(POLICY, b'{"version":7,"policies":[]}') is not None
    assert server.holds() == 0
    assert [record.kind for record in log.records] == [UPDATE, EVENT, DOCUMENT]
    server.intake.apply(log.records[0])
    assert server.holds() == 1
    server.intake.apply(log.records[1])
    assert server.holds() == 0


@pytest.mark.parametrize(
    ("said", "meant"), [(0, NOW_US), (AHEAD_US, NOW_US + 5_000_000), (NOW_US - 7, NOW_US - 7), (-1, 1)]
)
async def test_the_clock_of_the_accepting_server_counts_for_all(said: int, meant: int) -> None:
    server, log = Server(), MemoryLog()
    server.intake.share(log)
    server.intake.report(update(b"1", timestamp_us=said))
    server.intake.publish(cleared(timestamp_us=said))
    assert pb.CacheStateUpdate.FromString(log.records[0].body).timestamp_us == meant
    assert pb.CacheEvent.FromString(log.records[1].body).timestamp_us == meant


@pytest.mark.parametrize("said", [-(2**63), -1, 1])
async def test_what_is_from_before_all_clocks_is_so_on_every_server(said: int) -> None:
    accepting, other, log = Server(), Server(NOW_US + 1), MemoryLog()
    accepting.intake.share(log)
    accepting.intake.report(update(b"1", timestamp_us=said))
    other.intake.apply(log.records[0])
    warmed = Server(NOW_US + 2)
    for copy in updates(other.state.index):
        warmed.intake.report(copy)
    assert [snapshot_of(server.state.index).replicas[0].last_event_us for server in (other, warmed)] == [1, 1]


@pytest.mark.parametrize("shared", [False, True])
async def test_the_reserved_tenants_messages_go_nowhere(shared: bool) -> None:
    server, log = Server(), MemoryLog()
    if shared:
        server.intake.share(log)
    assert server.intake.report(update(b"1", tenant=RESERVED_TENANT)) is None
    assert server.intake.publish(pb.CacheEvent(tenant_id=RESERVED_TENANT)) is None
    assert log.records == []


@pytest.mark.parametrize("document", [POLICY, TEMPLATES, TOPOLOGIES])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_document_is_refused_before_others_see_it(document: str, shared: bool) -> None:
    server, log = Server(), MemoryLog()
    if shared:
        server.intake.share(log)
    with pytest.raises(ValueError, match="decode"):
        server.intake.push(document, b"{")
    assert log.records == []


async def test_every_document_comes_into_force_on_servers_that_read_the_log() -> None:
    first, second, log = Server(), Server(), MemoryLog()
    first.intake.share(log)
    policy = b'{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":7}]}'
    for name, body in ((POLICY, policy), (TEMPLATES, TEMPLATES_BODY), (TOPOLOGIES, TOPOLOGIES_BODY)):
        first.intake.push(name, body)
    for record in log.records:
        second.intake.apply(record)
    assert second.state.policies.of("t").minimum_matched_tokens == 7
    rendered = second.state.templates.render(pb.RenderTemplateRequest(template_ref="t/n", tenant_id="t"))
    assert isinstance(rendered, Rendered)
    assert rendered.prompt == "x"
    routed = second.state.topologies.route(pb.LookupPDRouteRequest(pd_topology_ref="t/pd", tenant_id="t"), NOW_US)
    assert (routed.prefill_replica_id, routed.decode_replica_id) == ("a", "b")


@pytest.mark.parametrize(
    "record",
    [
        Record(UPDATE, b"\xff"),
        Record(EVENT, b"\xff"),
        Record(DOCUMENT, b"{", POLICY),
        Record(DOCUMENT, b"{}", "from-the-future"),
    ],
)
def test_a_record_that_cannot_be_used_changes_nothing_and_raises_nothing(record: Record) -> None:
    server = Server()
    server.intake.report(update(b"1"))
    server.intake.apply(record)
    assert server.holds() == 1


def test_a_dump_is_records_that_make_another_server_alike() -> None:
    server, other = Server(), Server()
    server.intake.report(update(b"1", b"2"))
    for record in server.intake.dump():
        other.intake.apply(record)
    assert other.holds() == 2


def test_an_error_in_the_index_is_counted_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    def fail(*_arguments: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(server.state.index, "ingest", fail)
    assert server.intake.report(update(b"1")) is None
    errors = server.metrics.registry.get_sample_value(
        "inferencecache_server_internal_errors_total", {"rpc": "ReportCacheState"}
    )
    assert errors == 1


def test_an_error_in_a_dump_ends_it_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    def broken() -> Iterator[Report]:
        yield Report("r", "t", "m", "vllm", NOW_US, (), None)
        raise RuntimeError("bug")

    monkeypatch.setattr(server.state.index, "dump", broken)
    assert len(list(server.intake.dump())) == 1
    assert server.metrics.registry.get_sample_value("inferencecache_server_internal_errors_total", {"rpc": "dump"}) == 1
