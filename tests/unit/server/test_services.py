"""The whole server below its faces: real reports, real index, real policies, and what callers get (spec 06 §3, §11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencecache.server import lookup
from inferencecache.server.index import RESERVED_TENANT, PrefixIndex
from inferencecache.server.inputs import Tokenizer
from inferencecache.server.metrics import ServerMetrics
from inferencecache.server.policy import PolicyError, PolicyStore
from inferencecache.server.probe import ProbeError
from inferencecache.server.services import Services
from inferencecache.server.snapshot import render
from inferencecache.server.streams import MAX_SUBSCRIPTIONS, StreamEnded
from inferencecache.wire.fingerprint import chain
from inferencecache.wire.v1alpha1 import inferencecache_pb2 as pb
from tests.unit.server.callers import NOW_US, Caller, Clocks
from tests.unit.server.index.reports import snapshot_of
from tests.unit.server.waiting import counted_turns

_MINUTE = 60_000_000
_HOUR = 60 * _MINUTE
_SECOND = 1_000_000
_OPEN = {"minimumMatchedTokens": 0, "routingFloorScore": 0}
"""A policy without floors."""


class Server:
    """A server at a standing clock, and short ways to talk to it."""

    def __init__(
        self, *, policy: dict[str, Any] | None = None, tokenizer: Tokenizer | None = None, **settings: Any
    ) -> None:
        self.clocks = Clocks()
        self.metrics = ServerMetrics()
        policies = PolicyStore()
        self.index = PrefixIndex(
            policies, on_eviction=self.metrics.evicted, capacity=settings.pop("capacity", 1_000_000)
        )
        self.services = Services(
            index=self.index,
            policies=policies,
            metrics=self.metrics,
            tokenizer=tokenizer,
            clock=self.clocks.clock,
            **settings,
        )
        if policy is not None:
            self.push(policies=[{"namespace": "t", **policy}])

    def push(self, **document: Any) -> None:
        self.services.push("policy", json.dumps({"version": 7, **document}).encode())

    def report(
        self,
        replica: str,
        *entries: pb.PrefixEntry,
        age_us: int = 0,
        stats: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        known: dict[str, Any] = {"tenant_id": "t", "model_id": "m", "hash_scheme": "vllm"}
        self.services.report(
            pb.CacheStateUpdate(
                replica_id=replica,
                timestamp_us=self.clocks.us - age_us,
                prefixes=entries,
                stats=None if stats is None else pb.ReplicaStats(**stats),
                **known | fields,
            )
        )

    def event(self, kind: pb.CacheEvent.Type, replica: str, **fields: Any) -> pb.Ack:
        known: dict[str, Any] = {"tenant_id": "t", "model_id": "m"}
        return self.services.publish_event(pb.CacheEvent(type=kind, replica_id=replica, **known | fields))

    def lookup(self, **fields: Any) -> pb.LookupRouteResponse:
        known: dict[str, Any] = {"tenant_id": "t", "model_id": "m", "hash_scheme": "vllm"}
        reply = self.services.lookup_route(pb.LookupRouteRequest(**known | fields), Caller())
        assert isinstance(reply, pb.LookupRouteResponse)
        return reply

    def snapshot(self) -> Any:
        return json.loads(render(snapshot_of(self.index)))

    def total(self, series: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == series and labels.items() <= sample.labels.items()
        )


def _entry(hash_: bytes, tokens: int = 64, **fields: Any) -> pb.PrefixEntry:
    return pb.PrefixEntry(prefix_hash=hash_, token_count=tokens, **fields)


def _blocks(*hashes: bytes, tokens: int = 64) -> dict[str, Any]:
    return {"block_hashes": list(hashes), "block_token_counts": [tokens] * len(hashes)}


def _chain(*hashes: bytes, tokens: int = 64, **fields: Any) -> pb.PrefixEntry:
    return pb.PrefixEntry(**_blocks(*hashes, tokens=tokens), **fields)


def _replicas(reply: pb.LookupRouteResponse) -> list[str]:
    return [replica.replica_id for replica in reply.replica_scores]


_B = [f"b{number}".encode() for number in range(5)]


# -- the worked check of §6.6 -----------------------------------------------------------------------------------------


@pytest.fixture
def worked() -> Server:
    server = Server()
    server.report("A", _chain(*_B[:3], tier=1), age_us=_MINUTE, stats={"hit_rate": 0.8, "pressure": 0.25})
    server.report("B", _chain(*_B[:2], tier=2), age_us=2 * _MINUTE, stats={"hit_rate": 0.8})
    server.report("C", _chain(*_B[:1], tier=1), age_us=4 * _MINUTE, stats={"hit_rate": 0.8})
    return server


@pytest.mark.parametrize(
    ("request_", "code", "scores"),
    [
        (_blocks(*_B), "PREFIX_MATCH", [("A", 92.8, 192, 1), ("B", 39.822224, 128, 2), ("C", 0.0, 64, 1)]),
        (
            _blocks(*_B) | {"slo": {"ttft_ms": 100}},
            "PREFIX_MATCH",
            [("A", 182.50668, 192, 1), ("B", 76.98964, 128, 2), ("C", 0.0, 64, 1)],
        ),
        ({"prefix_hash": b"b1"}, "PREFIX_MATCH", [("B", 39.822224, 128, 2), ("A", 30.933332, 128, 1)]),
        ({"prefix_hash": b"?"}, "TENANT_HOT", [("A", 0.48, 0, 0), ("B", 0.48, 0, 0), ("C", 0.16, 0, 0)]),
    ],
)
def test_the_worked_check_comes_out_of_the_whole_server(
    worked: Server, request_: dict[str, Any], code: str, scores: list[tuple[str, float, int, int]]
) -> None:
    reply = worked.lookup(**request_)
    assert reply.reason_code == code
    expected = [
        pb.ReplicaScore(replica_id=replica, score=score, matched_tokens=tokens, tier=tier)  # type: ignore[arg-type]
        for replica, score, tokens, tier in scores
    ]
    told = [(got.replica_id, got.score, got.matched_tokens, got.tier) for got in reply.replica_scores]
    # The contract prints prefix scores to float32's last digit, and the others to two.
    exact = code == "PREFIX_MATCH"
    assert told == [
        (want.replica_id, want.score if exact else pytest.approx(want.score), want.matched_tokens, want.tier)
        for want in expected
    ]


# -- hits and misses --------------------------------------------------------------------------------------------------


def test_an_exact_hit_is_a_prefix_match_and_names_the_adapter_asked_for() -> None:
    server = Server()
    server.report("r", _entry(b"x", adapter_id="a"))
    reply = server.lookup(prefix_hash=b"x", adapter_id="a")
    assert (reply.reason_code, reply.adapter_id) == ("PREFIX_MATCH", "a")
    ((replica),) = reply.replica_scores
    assert (replica.replica_id, replica.matched_tokens, replica.score) == ("r", 64, 64.0)
    assert replica.estimated_cache_hit_prob == 1.0


def test_a_miss_with_a_warm_replica_is_tenant_hot() -> None:
    server = Server()
    server.report("r", _entry(b"x"), stats={"hit_rate": 0.5})
    reply = server.lookup(prefix_hash=b"y")
    assert reply.reason_code == "TENANT_HOT"
    ((replica),) = reply.replica_scores
    assert (replica.matched_tokens, replica.tier, replica.estimated_cache_hit_prob) == (0, 0, 0.5)


def test_an_empty_index_has_no_hint() -> None:
    assert Server().lookup(prefix_hash=b"x").reason_code == "NO_HINT"


@pytest.mark.parametrize("entries", [[], [_entry(b"x")]])
def test_a_request_without_any_input_never_matches_an_entry(entries: list[pb.PrefixEntry]) -> None:
    server = Server()
    server.report("r", pb.PrefixEntry(token_count=640), *entries)
    reply = server.lookup()
    assert (reply.reason_code, _replicas(reply)) == ("NO_HINT", [])


@pytest.mark.parametrize(("tier", "told"), [(0, 1), (1, 1), (2, 2), (3, 3), (99, 0), (-1, 0)])
def test_tiers_come_back_as_reported_and_corrupt_ones_as_unspecified(tier: int, told: int) -> None:
    server = Server()
    server.report("r", _entry(b"x", tier=tier))
    assert [replica.tier for replica in server.lookup(prefix_hash=b"x").replica_scores] == [told]


def test_a_chain_is_only_as_warm_as_its_coldest_block() -> None:
    server = Server()
    server.report("r", _entry(b"b0", 64, tier=1), _entry(b"b1", 128, tier=99), _entry(b"b2", 192, tier=2))
    assert [replica.tier for replica in server.lookup(**_blocks(*_B[:3])).replica_scores] == [0]
    assert [replica.tier for replica in server.lookup(**_blocks(*_B[:1])).replica_scores] == [1]


@pytest.mark.parametrize(("ttft", "score"), [(0, 32.0), (1, 48.0), (199, 48.0), (200, 32.0), (-1, 32.0)])
def test_a_tight_objective_raises_the_score_of_what_is_fresh(ttft: int, score: float) -> None:
    server = Server()
    server.report("r", _entry(b"x"), age_us=15 * _MINUTE)
    assert [r.score for r in server.lookup(prefix_hash=b"x", slo={"ttft_ms": ttft}).replica_scores] == [score]


def test_part_of_a_chain_counts_the_blocks_that_match() -> None:
    server = Server()
    server.report("r", _chain(*_B[:3]))
    assert [r.matched_tokens for r in server.lookup(**_blocks(*_B)).replica_scores] == [192]


def test_a_chain_that_misses_is_never_tenant_hot() -> None:
    server = Server(policy={"affinityRouting": False})
    server.report("r", _entry(b"x"), stats={"hit_rate": 0.9})
    assert server.lookup(**_blocks(b"?")).reason_code == "NO_HINT"
    assert server.lookup(**_blocks(b"?"), prefix_hash=b"x").reason_code == "NO_HINT"
    assert server.lookup(block_hashes=[b"x"], block_token_counts=[1, 2]).reason_code == "NO_HINT"
    assert server.lookup(block_token_counts=[64], prefix_hash=b"x").reason_code == "NO_HINT"


def test_stored_prompts_match_and_novel_ones_do_not() -> None:
    server = Server(policy=_OPEN | {"affinityRouting": False})
    prompts = [list(range(start, start + 40)) for start in range(0, 4000, 40)]
    stored, novel = prompts[::2], prompts[1::2]
    for prompt in stored:
        hashes, counts = chain(prompt, 16)
        server.report("r", pb.PrefixEntry(block_hashes=hashes, block_token_counts=counts))
    assert {server.lookup(token_ids=prompt).reason_code for prompt in stored} == {"PREFIX_MATCH"}
    assert {server.lookup(token_ids=prompt).reason_code for prompt in novel} == {"NO_HINT"}


def test_token_ids_the_chain_and_the_single_hash_find_what_a_producer_reported() -> None:
    server = Server(policy=_OPEN)
    tokens = list(range(1, 52))
    hashes, counts = chain(tokens, 16)
    server.report("r", *(_entry(hash_, 16 * (number + 1)) for number, hash_ in enumerate(hashes)))
    by_ids = server.lookup(token_ids=tokens)
    by_chain = server.lookup(block_hashes=hashes, block_token_counts=counts)
    by_hash = server.lookup(prefix_hash=hashes[-1], prefix_token_count=48)
    assert by_ids.replica_scores == by_chain.replica_scores == by_hash.replica_scores
    assert [r.matched_tokens for r in by_ids.replica_scores] == [48]
    assert by_ids.token_ids == []


def test_the_block_size_is_the_servers() -> None:
    tokens = list(range(128))
    for block_size, code in ((64, "PREFIX_MATCH"), (16, "NO_HINT")):
        server = Server(block_size=block_size, policy=_OPEN | {"affinityRouting": False})
        hashes, counts = chain(tokens, 64)
        server.report("r", pb.PrefixEntry(block_hashes=hashes, block_token_counts=counts))
        assert server.lookup(token_ids=tokens).reason_code == code


def test_token_ids_shorter_than_a_block_are_no_hint_even_with_warm_replicas() -> None:
    server = Server()
    server.report("r", _entry(b"x"), stats={"hit_rate": 0.9})
    assert server.lookup(token_ids=range(15)).reason_code == "NO_HINT"
    assert server.lookup(prefix_hash=b"y").reason_code == "TENANT_HOT"


# -- keys that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ({"tenant_id": "T"}, "UNKNOWN_TENANT"),
        ({"model_id": "M"}, "UNKNOWN_MODEL"),
        ({"hash_scheme": "sglang"}, "UNKNOWN_HASH_SCHEME"),
        ({"tenant_id": "T", "model_id": "M", "hash_scheme": "sglang"}, "UNKNOWN_TENANT"),
        ({"model_id": "M", "hash_scheme": "sglang"}, "UNKNOWN_MODEL"),
        ({"hash_scheme": ""}, "NO_HINT"),
        ({"tenant_id": ""}, "NO_HINT"),
        ({"model_id": ""}, "NO_HINT"),
    ],
)
@pytest.mark.parametrize("input_", [{"prefix_hash": b"b0"}, _blocks(b"b0"), {}])
def test_a_key_nobody_reported_is_named_outermost_first(key: dict[str, str], code: str, input_: dict[str, Any]) -> None:
    server = Server()
    server.report("r", _entry(b"b0"), stats={"hit_rate": 0.9})
    reply = server.lookup(**input_ | key)
    assert (reply.reason_code, _replicas(reply)) == (code, [])
    assert server.total("inferencecache_lookup_route_calls_total", hint_used="false", reason_code=code) == 1


def test_adapters_share_hashes_and_never_each_others_holds() -> None:
    server = Server()
    server.report("r1", _entry(b"x"), adapter_id="one")
    server.report("r2", _entry(b"x", adapter_id="two"))
    server.report("r3", _entry(b"x"))
    by_adapter = {
        adapter: _replicas(server.lookup(prefix_hash=b"x", adapter_id=adapter)) for adapter in ("one", "two", "")
    }
    assert by_adapter == {"one": ["r1"], "two": ["r2"], "": ["r3"]}
    unseen = server.lookup(prefix_hash=b"x", adapter_id="three")
    assert unseen.reason_code == "AFFINITY_HINT"


# -- floors with real scores ------------------------------------------------------------------------------------------


def test_a_prefix_that_every_replica_has_tells_them_not_apart() -> None:
    server = Server()
    for replica in ("r1", "r2", "r3"):
        server.report(replica, _entry(b"system", 1500))
    assert server.lookup(prefix_hash=b"system").reason_code == "AFFINITY_HINT"
    server.push(policies=[{"namespace": "t", "routingFloorScore": 0}])
    assert [r.score for r in server.lookup(prefix_hash=b"system").replica_scores] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("floor", "code"), [(None, "PREFIX_MATCH"), (42.5, "PREFIX_MATCH"), (100, "AFFINITY_HINT")])
def test_a_match_of_one_among_three_is_worth_two_thirds(floor: float | None, code: str) -> None:
    server = Server(policy={"routingFloorScore": floor})
    server.report("r1", _entry(b"x", 64))
    server.report("r2", _entry(b"y"))
    server.report("r3", _entry(b"z"))
    reply = server.lookup(prefix_hash=b"x")
    assert reply.reason_code == code
    if code == "PREFIX_MATCH":
        assert [r.score for r in reply.replica_scores] == [pytest.approx(42.666668)]


def test_a_single_replica_keeps_its_match() -> None:
    server = Server()
    server.report("r", _entry(b"x", 1500))
    assert server.lookup(prefix_hash=b"x").reason_code == "PREFIX_MATCH"


@pytest.mark.parametrize(
    ("policy", "tokens", "code"),
    [
        (None, 64, "PREFIX_MATCH"),
        (None, 63, "AFFINITY_HINT"),
        ({}, 16, "PREFIX_MATCH"),
        ({"minimumMatchedTokens": 256}, 256, "PREFIX_MATCH"),
        ({"minimumMatchedTokens": 256}, 255, "AFFINITY_HINT"),
    ],
)
def test_a_match_must_be_as_long_as_the_policy_says(policy: dict[str, Any] | None, tokens: int, code: str) -> None:
    server = Server(policy=policy)
    server.report("r", _entry(b"x", tokens))
    assert server.lookup(prefix_hash=b"x").reason_code == code


def test_a_match_of_no_tokens_is_delivered_only_where_no_floor_stands() -> None:
    server = Server()
    server.report("r", _entry(b"x", 0))
    assert server.lookup(prefix_hash=b"x").reason_code == "AFFINITY_HINT"
    server.push(policies=[{"namespace": "t", **_OPEN}])
    assert [r.score for r in server.lookup(prefix_hash=b"x").replica_scores] == [0.0]


def test_one_tenants_policy_is_nobody_elses() -> None:
    server = Server(policy={"minimumMatchedTokens": 1000, "affinityRouting": False})
    for tenant in ("t", "u"):
        server.report("r", _entry(b"x"), tenant_id=tenant)
    assert server.lookup(prefix_hash=b"x").reason_code == "NO_HINT"
    assert server.lookup(prefix_hash=b"x", tenant_id="u").reason_code == "PREFIX_MATCH"


def test_a_shorter_ttl_takes_effect_on_the_next_lookup() -> None:
    server = Server()
    server.report("r", _entry(b"x"), age_us=10 * _MINUTE)
    assert server.lookup(prefix_hash=b"x").reason_code == "PREFIX_MATCH"
    server.push(policies=[{"namespace": "t", "evictionTTL": 60 * 1_000_000_000}])
    assert server.lookup(prefix_hash=b"x").reason_code == "AFFINITY_HINT"


# -- affinity ---------------------------------------------------------------------------------------------------------


def test_equal_novel_prompts_go_to_one_serving_replica() -> None:
    server = Server()
    for replica in ("pod-c", "pod-a", "pod-b"):
        server.report(replica, _entry(b"other" + replica.encode()))
    for _ in range(3):
        reply = server.lookup(prefix_hash=b"p")
        assert (reply.reason_code, _replicas(reply)) == ("AFFINITY_HINT", ["pod-b"])
    v3, counts = chain(range(1, 33), 16)
    assert _replicas(server.lookup(block_hashes=v3, block_token_counts=counts)) == ["pod-a"]
    assert _replicas(server.lookup(prefix_hash=v3[-1])) == ["pod-c"]


def test_affinity_knows_the_replicas_of_its_scope_only() -> None:
    server = Server()
    server.report("r", _entry(b"x"), hash_scheme="sglang")
    server.report("stats-only", stats={"hit_rate": 0.0})
    assert server.lookup(prefix_hash=b"p").reason_code == "UNKNOWN_HASH_SCHEME"
    assert _replicas(server.lookup(prefix_hash=b"p", hash_scheme="sglang")) == ["r"]


# -- LFU and quotas ---------------------------------------------------------------------------------------------------


def test_a_delivered_hit_protects_an_older_hold_at_the_cap() -> None:
    for hits, survivors in ((0, {"b", "c"}), (1, {"a", "c"})):
        server = Server(policy=_OPEN | {"eviction": "lfu", "affinityRouting": False}, capacity=2)
        server.report("r", _entry(b"a"), age_us=3 * _SECOND)
        server.report("r", _entry(b"b"), age_us=2 * _SECOND)
        for _ in range(hits):
            assert server.lookup(prefix_hash=b"a").reason_code == "PREFIX_MATCH"
        server.report("r", _entry(b"c"), age_us=_SECOND)
        found = {h for h in "abc" if server.lookup(prefix_hash=h.encode()).reason_code == "PREFIX_MATCH"}
        assert found == survivors
        assert server.total("inferencecache_index_evictions_total", algorithm="lfu", reason="cap") == 1


def test_a_quota_is_kept_from_the_tenants_next_report_on() -> None:
    server = Server()
    server.report("r", _entry(b"a"), age_us=2 * _SECOND)
    server.report("r", _entry(b"b"), age_us=_SECOND)
    server.push(tenants=[{"tenantID": "t", "maxIndexEntries": 1}])
    assert server.snapshot()["totalPrefixes"] == 2
    server.report("r", stats={"hit_rate": 0.5})
    assert server.snapshot()["totalPrefixes"] == 1
    assert server.lookup(prefix_hash=b"b").reason_code == "PREFIX_MATCH"
    assert server.total("inferencecache_tenant_evictions_total", tenant_id="t", reason="over_entries") == 1
    server.push()
    server.report("r", _entry(b"a"), _entry(b"c"))
    assert server.snapshot()["totalPrefixes"] == 3


# -- reports and events -----------------------------------------------------------------------------------------------


def test_what_is_unusable_in_a_report_is_counted_by_reason() -> None:
    server = Server()
    server.report("r", pb.PrefixEntry(), _entry(b"x"), pb.PrefixEntry(block_hashes=[b"y"]))
    server.report("r", _entry(b"x"), hash_scheme="")
    server.report("r", age_us=-60 * _SECOND)
    dropped = "inferencecache_report_entries_dropped_total"
    assert [server.total(dropped, reason=reason) for reason in ("no_hash", "broken_chain", "no_hash_scheme")] == [1] * 3
    assert server.total("inferencecache_report_timestamps_clamped_total") == 1
    assert server.snapshot()["totalPrefixes"] == 1


def test_a_report_from_the_future_outlives_its_ttl_by_seconds_at_most() -> None:
    server = Server(policy=_OPEN)
    server.report("r", _entry(b"x"), age_us=-365 * 24 * 60 * _MINUTE)
    server.clocks.advance(30 * 60 + 4)
    assert server.lookup(prefix_hash=b"x").reason_code == "PREFIX_MATCH"
    server.clocks.advance(1)
    assert server.lookup(prefix_hash=b"x").reason_code == "AFFINITY_HINT"


def test_reports_without_a_time_have_the_servers() -> None:
    server = Server()
    server.report("r", _entry(b"x"), age_us=NOW_US)
    assert server.snapshot()["replicas"][0]["lastEventAt"] == "2023-11-14T22:13:20Z"


def test_events_are_accepted_and_do_what_their_type_says() -> None:
    server = Server()
    event = pb.CacheEvent
    server.report("r", _entry(b"x"), _entry(b"x", adapter_id="a"), _entry(b"y"), stats={"hit_rate": 0.5})
    server.report("s", _entry(b"x"))

    def keys() -> tuple[int, int]:
        rows = {row["replicaId"]: row["prefixCount"] for row in server.snapshot()["replicas"]}
        return rows.get("r", 0), rows.get("s", 0)

    assert server.event(event.PREFIX_ADDED, "r", prefix_hash=b"new") == pb.Ack(accepted=True)
    assert server.event(event.TYPE_UNSPECIFIED, "r", prefix_hash=b"x") == pb.Ack(accepted=True)
    assert server.event(77, "r", prefix_hash=b"x") == pb.Ack(accepted=True)  # type: ignore[arg-type]
    assert keys() == (3, 1)
    server.event(event.PREFIX_EVICTED, "r", prefix_hash=b"x", adapter_id="a")
    assert keys() == (2, 1)
    server.report("r", _entry(b"x", adapter_id="a"))
    server.event(event.PREFIX_EVICTED, "r", prefix_hash=b"x")
    assert keys() == (1, 1)
    server.event(event.ALL_CLEARED, "r", adapter_id="ignored")
    assert keys() == (0, 1)
    assert "r" not in {row["replicaId"] for row in server.snapshot()["replicas"]}


def test_a_sign_of_life_moves_only_the_time_of_the_stats_row() -> None:
    server = Server()
    event = pb.CacheEvent
    server.event(event.REPLICA_UPDATED, "r", timestamp_us=NOW_US)
    assert server.snapshot()["replicas"] is None
    server.report("r", _entry(b"x"), stats={"hit_rate": 0.5})

    def times() -> tuple[str, str]:
        (row,) = server.snapshot()["replicas"]
        return row["lastUpdate"], row["lastEventAt"]

    server.event(event.REPLICA_UPDATED, "r", timestamp_us=NOW_US - 20 * _SECOND)
    assert times() == ("2023-11-14T22:13:00Z", "2023-11-14T22:13:20Z")
    server.event(event.REPLICA_UPDATED, "r", timestamp_us=NOW_US + 3600 * _SECOND)
    assert times() == ("2023-11-14T22:13:25Z", "2023-11-14T22:13:20Z")
    assert server.total("inferencecache_report_timestamps_clamped_total") == 1
    server.event(event.REPLICA_UPDATED, "r")
    assert times() == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z")


# -- clocks that step, and bugs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_us", "code"), [(-3600 * _SECOND, "PREFIX_MATCH"), (29 * _MINUTE, "PREFIX_MATCH"), (_HOUR, "AFFINITY_HINT")]
)
def test_a_step_of_the_wall_clock_ages_holds_and_moves_no_deadline(step_us: int, code: str) -> None:
    server = Server(policy=_OPEN | {"lookupTimeoutMs": 50})
    server.report("r", _entry(b"x"))
    server.clocks.us += step_us
    assert server.lookup(prefix_hash=b"x").reason_code == code
    server.report("r", _entry(b"x"))
    assert server.lookup(prefix_hash=b"x").reason_code == "PREFIX_MATCH"


def test_a_bug_in_the_index_reaches_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_names: object) -> None:
        raise ZeroDivisionError

    server = Server()
    for method in ("ingest", "evict", "cache_state", "match"):
        monkeypatch.setattr(PrefixIndex, method, fail)
    server.report("r", _entry(b"x"))
    assert server.event(pb.CacheEvent.PREFIX_EVICTED, "r", prefix_hash=b"x") == pb.Ack(accepted=True)
    state = server.services.get_cache_state(pb.GetCacheStateRequest(tenant_id="t", model_id="m"))
    assert state == pb.GetCacheStateResponse(summary=pb.CacheSummary())
    assert server.lookup(prefix_hash=b"x").reason_code == "NO_HINT"
    for rpc in ("ReportCacheState", "PublishEvent", "GetCacheState", "LookupRoute"):
        assert server.total("inferencecache_server_internal_errors_total", rpc=rpc) == 1


# -- reading the state ------------------------------------------------------------------------------------------------


def test_cache_state_tells_the_replicas_of_one_model_and_counts_keys_once() -> None:
    server = Server()
    stats = {"cache_memory_bytes": 9, "hit_rate": 0.5, "pressure": 0.25, "t2_hit_tokens": 6, "t2_query_tokens": 10}
    server.report("s", _entry(b"x"), _entry(b"x", adapter_id="a"), stats=stats | {"client_version": "1"})
    server.report("r", _entry(b"x"), hash_scheme="sglang", stats={})
    server.report("r", _entry(b"x"))
    server.report("q", _entry(b"x"), model_id="M", stats={})
    reply = server.services.get_cache_state(pb.GetCacheStateRequest(tenant_id="t", model_id="m"))
    assert reply == pb.GetCacheStateResponse(
        replicas=[pb.ReplicaStats(replica_id="r"), pb.ReplicaStats(replica_id="s", **stats)],
        summary=pb.CacheSummary(total_prefixes=3),
    )


def test_cache_state_of_nobody_is_empty_with_a_summary() -> None:
    reply = Server().services.get_cache_state(pb.GetCacheStateRequest())
    assert reply.HasField("summary")
    assert reply == pb.GetCacheStateResponse(summary=pb.CacheSummary())


def test_untenanted_state_is_kept_under_the_empty_name() -> None:
    server = Server()
    server.report("r", _entry(b"x"), tenant_id="", model_id="")
    assert server.services.get_cache_state(pb.GetCacheStateRequest()).summary.total_prefixes == 1
    document = server.snapshot()
    assert "tenant" not in document["replicas"][0]
    assert [tenant["tenantId"] for tenant in document["tenants"]] == [""]


def test_the_snapshot_adds_up_and_gauges_stay_at_zero_for_drained_models() -> None:
    server = Server()
    for tenant, model, hashes in (("t", "m", (b"1", b"2")), ("u", "m", (b"1",)), ("u", "n", (b"1", b"2", b"3"))):
        server.report("r", *map(_entry, hashes), tenant_id=tenant, model_id=model)
    document = server.snapshot()
    assert document["totalPrefixes"] == sum(tenant["indexEntries"] for tenant in document["tenants"]) == 6
    gauge = "inferencecache_index_entries"
    assert (server.total(gauge, model="m"), server.total(gauge, model="n")) == (3, 3)
    server.event(pb.CacheEvent.ALL_CLEARED, "r", tenant_id="u", model_id="n")
    assert {"model": "n"} in [
        sample.labels for family in server.metrics.registry.collect() for sample in family.samples
    ]
    assert (server.total(gauge, model="m"), server.total(gauge, model="n")) == (3, 0)


# -- the reserved tenant ----------------------------------------------------------------------------------------------


async def test_nothing_goes_into_or_comes_out_of_the_reserved_tenant() -> None:
    server = Server()
    server.report("r", _entry(b"x"), tenant_id=RESERVED_TENANT, stats={"hit_rate": 0.5})
    assert server.event(pb.CacheEvent.ALL_CLEARED, "r", tenant_id=RESERVED_TENANT) == pb.Ack(accepted=True)
    assert server.snapshot() == {"replicas": None, "tenants": None, "totalPrefixes": 0, "hotPrefixes": 0}
    state = server.services.get_cache_state(pb.GetCacheStateRequest(tenant_id=RESERVED_TENANT, model_id="m"))
    assert state == pb.GetCacheStateResponse(summary=pb.CacheSummary())
    assert server.lookup(prefix_hash=b"x", tenant_id=RESERVED_TENANT) == pb.LookupRouteResponse(reason_code="NO_HINT")
    assert server.total("inferencecache_lookup_route_calls_total", reason_code="NO_HINT") == 1
    await server.services.probe(b'{"backend": "ns/b", "model": "m", "hashScheme": "vllm"}')
    assert server.total("inferencecache_index_entries") == 0
    assert server.lookup(prefix_hash=b"x").reason_code == "NO_HINT"


# -- policy, probe, prompts, sweep ------------------------------------------------------------------------------------


def test_a_refused_push_leaves_the_rules_as_they_were() -> None:
    server = Server(policy={"minimumMatchedTokens": 1000})
    server.report("r", _entry(b"x"))
    with pytest.raises(PolicyError):
        server.services.push("policy", b'{"version": 7} trailing')
    assert server.lookup(prefix_hash=b"x").reason_code == "AFFINITY_HINT"


async def test_a_probe_goes_through_the_server() -> None:
    result = await Server().services.probe(b'{"backend": "ns/b", "model": "m", "hashScheme": "vllm"}')
    assert (result.ingest, result.routing, result.t2) == ("ok", "ok", "skipped")
    with pytest.raises(ProbeError):
        await Server().services.probe(b"{}")


class _WordPerToken:
    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        return [len(word) for word in messages[0]["content"].split()]

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        raise NotImplementedError


async def test_a_prompt_finds_what_its_tokens_stored() -> None:
    server = Server(tokenizer=_WordPerToken(), policy=_OPEN)
    prompt = " ".join("x" * (1 + number % 7) for number in range(40))
    tokens = [1 + number % 7 for number in range(40)]
    hashes, counts = chain(tokens, 16)
    server.report("r", pb.PrefixEntry(block_hashes=hashes, block_token_counts=counts))
    reply = server.services.lookup_route(
        pb.LookupRouteRequest(tenant_id="t", model_id="m", hash_scheme="vllm", prompt_text=prompt), Caller()
    )
    assert not isinstance(reply, pb.LookupRouteResponse)
    answer = await reply
    assert (answer.reason_code, list(answer.token_ids), _replicas(answer)) == ("PREFIX_MATCH", tokens, ["r"])


def _many_replicas_with_a_long_chain() -> tuple[Server, pb.LookupRouteRequest]:
    server = Server(policy=_OPEN)
    hashes = [b"%d" % number for number in range(4096)]
    for replica in range(16):
        server.report(f"r{replica}", _chain(*hashes))
    return server, pb.LookupRouteRequest(tenant_id="t", model_id="m", hash_scheme="vllm", **_blocks(*hashes, b"no"))


async def test_a_long_chain_of_many_replicas_is_matched_in_turns_with_others() -> None:
    server, request = _many_replicas_with_a_long_chain()
    reply = server.services.lookup_route(request, Caller())
    assert not isinstance(reply, pb.LookupRouteResponse)
    async with counted_turns() as turns:
        answer = await reply
    assert turns.count >= 4
    assert answer.reason_code == "PREFIX_MATCH"
    assert {score.matched_tokens for score in answer.replica_scores} == {4096 * 64}
    assert len(answer.replica_scores) == 16
    assert server.total("inferencecache_lookup_route_calls_total", reason_code="PREFIX_MATCH") == 1


async def test_what_is_asked_of_very_many_replicas_is_answered_in_turns_with_others() -> None:
    server = Server(policy=_OPEN | {"eviction": "lfu"})
    for replica in range(2000):
        server.report(f"r{replica:04}", _entry(b"x"))
    request = pb.LookupRouteRequest(tenant_id="t", model_id="m", hash_scheme="vllm", prefix_hash=b"x")
    reply = server.services.lookup_route(request, Caller())
    assert not isinstance(reply, pb.LookupRouteResponse)
    async with counted_turns() as turns:
        answer = await reply
    assert turns.count >= 3 * (2000 // 512)
    assert _replicas(answer) == [f"r{replica:04}" for replica in range(2000)]


async def test_a_long_chain_is_given_up_at_the_deadline() -> None:
    server, request = _many_replicas_with_a_long_chain()
    reply = server.services.lookup_route(request, Caller(deadline=server.clocks.seconds + 1))
    assert not isinstance(reply, pb.LookupRouteResponse)
    answering = asyncio.ensure_future(reply)
    await asyncio.sleep(0)
    assert not answering.done()
    server.clocks.advance(1)
    answer = await answering
    assert (answer.reason_code, _replicas(answer)) == ("TIMEOUT", [])


@pytest.mark.parametrize(("turns", "code", "uses"), [(16, "TIMEOUT", 0), (10_000, "PREFIX_MATCH", 2000)])
async def test_what_is_named_too_late_counts_as_no_use(
    turns: int, code: str, uses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "SLICE", 100)  # twenty turns of naming, after some that match
    server = Server(policy=_OPEN | {"eviction": "lfu"})
    for replica in range(2000):
        server.report(f"r{replica:04}", _entry(b"x"))
    request = pb.LookupRouteRequest(tenant_id="t", model_id="m", hash_scheme="vllm", prefix_hash=b"x")
    reply = server.services.lookup_route(request, Caller(deadline=server.clocks.seconds + 1))
    assert not isinstance(reply, pb.LookupRouteResponse)
    answering = asyncio.ensure_future(reply)
    for _ in range(turns):
        await asyncio.sleep(0)
    server.clocks.advance(1)
    assert (await answering).reason_code == code
    (partition,) = server.index._tree.model("t", "m").partitions()  # type: ignore[union-attr]
    assert sum(lane.credits[b"x"] for lane in partition.lanes.values()) == uses


async def test_a_sweep_removes_what_has_expired_and_gives_way_in_between() -> None:
    server = Server()
    server.report("old", *(_entry(b"%d" % number) for number in range(5000)), age_us=10 * _MINUTE)
    server.report("new", _entry(b"x"))
    server.clocks.advance(25 * 60)
    async with counted_turns() as turns:
        assert await server.services.sweep() == 5000
    assert turns.count > 2
    assert [row["replicaId"] for row in server.snapshot()["replicas"]] == ["new"]
    assert server.total("inferencecache_index_evictions_total", reason="ttl") == 5000


async def test_what_the_index_puts_off_is_done_in_the_background_in_turns_with_other_work() -> None:
    server = Server()
    for replica, first in (("large", 0), ("small", 9_000)):
        server.report(replica, *(_entry(b"%d" % number) for number in range(first, 10_000)))
    counted = set()
    async with asyncio.TaskGroup() as group:
        settling = group.create_task(server.services.settle())
        server.event(pb.CacheEvent.ALL_CLEARED, "large")
        while (keys := server.snapshot()["totalPrefixes"]) > 1000:
            counted.add(keys)
            await asyncio.sleep(0)
        settling.cancel()
    assert len(counted) > 2


async def test_so_many_may_follow_the_metrics_and_a_place_is_free_again_when_one_leaves() -> None:
    server = Server()
    streams = [server.services.stream_metrics(pb.StreamMetricsRequest()) for _ in range(MAX_SUBSCRIPTIONS)]
    for stream in streams:
        assert (await anext(stream)).name
    with pytest.raises(StreamEnded):
        await anext(server.services.stream_metrics(pb.StreamMetricsRequest()))
    await streams.pop().aclose()  # type: ignore[attr-defined]
    streams.append(server.services.stream_metrics(pb.StreamMetricsRequest()))
    assert (await anext(streams[-1])).name
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


# -- any message at all -----------------------------------------------------------------------------------------------

_int32 = st.sampled_from([0, 1, 16, 64, -1, 2**31 - 1, -(2**31)])
_int64 = st.sampled_from([0, 1, NOW_US, NOW_US - _MINUTE, -1, 2**63 - 1, -(2**63)])
_hash = st.sampled_from([b"", b"a", b"b", b"c" * 8])
_float = st.sampled_from([0.0, 0.5, 1.0, -1.0, 2.0, float("nan"), float("inf"), float("-inf"), 3.0e38])
_tenant = st.sampled_from(["", "t", "u", RESERVED_TENANT])
_model = st.sampled_from(["", "m", "n"])
_scheme = st.sampled_from(["", "vllm", "sglang"])
_adapter = st.sampled_from(["", "a"])
_replica = st.sampled_from(["", "r", "s", "__probe-ns/b"])
_counts = st.lists(_int32, max_size=3)

_lookup = st.builds(
    pb.LookupRouteRequest,
    model_id=_model,
    tenant_id=_tenant,
    prefix_hash=_hash,
    prefix_token_count=_int32,
    hash_scheme=_scheme,
    slo=st.none() | st.builds(pb.SLO, ttft_ms=_int32, tbt_ms=_int32),
    block_hashes=st.lists(_hash, max_size=3),
    block_token_counts=_counts,
    token_ids=st.just([]) | st.lists(st.integers(0, 2**32 - 1), max_size=40),
    adapter_id=_adapter,
)
_report = st.builds(
    pb.CacheStateUpdate,
    replica_id=_replica,
    model_id=_model,
    tenant_id=_tenant,
    hash_scheme=_scheme,
    timestamp_us=_int64,
    prefixes=st.lists(
        st.builds(
            pb.PrefixEntry,
            prefix_hash=_hash,
            token_count=_int32,
            block_hashes=st.lists(_hash, max_size=3),
            block_token_counts=_counts,
            tier=_int32,
            adapter_id=_adapter,
        ),
        max_size=3,
    ),
    stats=st.none()
    | st.builds(
        pb.ReplicaStats,
        replica_id=_replica,
        cache_memory_bytes=_int64,
        hit_rate=_float,
        pressure=_float,
        t2_hit_tokens=_int64,
        t2_query_tokens=_int64,
    ),
    adapter_id=_adapter,
)
_event = st.builds(
    pb.CacheEvent,
    type=st.integers(-1, 6),
    replica_id=_replica,
    model_id=_model,
    tenant_id=_tenant,
    prefix_hash=_hash,
    timestamp_us=_int64,
    adapter_id=_adapter,
)
_state = st.builds(pb.GetCacheStateRequest, tenant_id=_tenant, model_id=_model)
_policy = st.fixed_dictionaries(
    {},
    optional={
        "evictionTTL": st.sampled_from([1, 10**9, 3600 * 10**9]),
        "eviction": st.sampled_from(["lru", "lfu"]),
        "minimumPrefixTokens": st.sampled_from([0, 20]),
        "minimumMatchedTokens": st.sampled_from([0, 20]),
        "routingFloorScore": st.sampled_from([0, 0.1, 30]),
        "lookupTimeoutMs": st.sampled_from([0, 1]),
        "affinityRouting": st.booleans(),
        "strategy": st.fixed_dictionaries(
            {},
            optional={
                "enableChainMatching": st.booleans(),
                "requireChain": st.booleans(),
                "enableTenantHot": st.booleans(),
            },
        ),
    },
)
_push = st.builds(
    lambda policy, quota: {
        "policies": [{"namespace": "t", **policy}],
        "tenants": [] if quota is None else [{"tenantID": "t", "maxIndexEntries": quota}],
    },
    _policy,
    st.none() | st.integers(0, 3),
)
_step = _lookup | _report | _event | _state | _push | st.floats(0, 3600)
_CODES = {
    *("PREFIX_MATCH", "TENANT_HOT", "AFFINITY_HINT", "UNKNOWN_TENANT", "UNKNOWN_MODEL", "UNKNOWN_HASH_SCHEME"),
    *("NO_HINT", "TIMEOUT", "POLICY_REQUIRES_CHAIN"),
}


def _obeys_the_shape_of_its_code(request: pb.LookupRouteRequest, reply: pb.LookupRouteResponse) -> None:
    """The response table of §3.3, as far as one request and reply show it."""
    code, scores = reply.reason_code, reply.replica_scores
    assert code in _CODES
    assert list(reply.token_ids) == []
    if code in ("TIMEOUT", "POLICY_REQUIRES_CHAIN"):
        assert reply.adapter_id == ""
    elif code == "NO_HINT":
        assert reply.adapter_id in ("", request.adapter_id)
    else:
        assert reply.adapter_id == request.adapter_id
    if code in ("PREFIX_MATCH", "TENANT_HOT"):
        assert scores
        order = [(-score.score, score.replica_id.encode()) for score in scores]
        assert order == sorted(order)
    elif code == "AFFINITY_HINT":
        assert list(scores) == [pb.ReplicaScore(replica_id=scores[0].replica_id)]
    else:
        assert not scores
    if code == "TENANT_HOT":
        assert {(score.matched_tokens, score.tier) for score in scores} == {(0, 0)}


@settings(max_examples=300)
@given(st.lists(_step, max_size=25))
def test_no_sequence_of_messages_breaks_anything(steps: list[Any]) -> None:
    server = Server(capacity=4)
    lookups = 0
    for step in steps:
        match step:
            case pb.LookupRouteRequest():
                reply = server.services.lookup_route(step, Caller())
                assert isinstance(reply, pb.LookupRouteResponse)
                lookups += 1
                _obeys_the_shape_of_its_code(step, reply)
            case pb.CacheStateUpdate():
                server.services.report(step)
            case pb.CacheEvent():
                assert server.services.publish_event(step) == pb.Ack(accepted=True)
            case pb.GetCacheStateRequest():
                state = server.services.get_cache_state(step)
                assert [row.replica_id for row in state.replicas] == sorted(row.replica_id for row in state.replicas)
            case float():
                server.clocks.advance(step)
            case _:
                server.push(**step)
        document = server.snapshot()
        assert document["totalPrefixes"] == sum(tenant["indexEntries"] for tenant in document["tenants"] or [])
        assert RESERVED_TENANT not in {row.get("tenant") for row in document["replicas"] or []}
    assert server.total("inferencecache_lookup_route_calls_total") == lookups
    assert server.total("inferencecache_lookup_route_latency_seconds_count") == lookups
    assert server.total("inferencecache_server_internal_errors_total") == 0
    server.metrics.exposition()


_words = st.none() | st.text("ab ", max_size=60)
_caller = st.builds(Caller, deadline=st.sampled_from([None, 0.0, 1e9]), cancelled=st.booleans())


@settings(max_examples=100)
@given(st.lists(st.tuples(_lookup, _words, _caller), max_size=6), _policy)
def test_every_lookup_is_counted_once_whoever_asks_and_however(
    lookups: list[tuple[pb.LookupRouteRequest, str | None, Caller]], policy: dict[str, Any]
) -> None:
    server = Server(policy=policy, tokenizer=_WordPerToken(), block_size=2)
    server.report("r", _entry(b"a"), stats={"hit_rate": 0.5})

    async def ask() -> list[str]:
        codes = []
        for request, words, caller in lookups:
            if words is not None:
                request.prompt_text = words
            reply = server.services.lookup_route(request, caller)
            codes.append((reply if isinstance(reply, pb.LookupRouteResponse) else await reply).reason_code)
        return codes

    codes = asyncio.run(ask())
    assert set(codes) <= _CODES
    for code in _CODES:
        assert server.total("inferencecache_lookup_route_calls_total", reason_code=code) == codes.count(code)
    assert server.total("inferencecache_server_internal_errors_total") == 0


@given(st.binary(max_size=100))
def test_any_bytes_that_are_a_request_have_an_answer(body: bytes) -> None:
    try:
        request = pb.LookupRouteRequest.FromString(body)
    except Exception:
        return
    server = Server()
    reply = server.services.lookup_route(request, Caller())
    assert isinstance(reply, pb.LookupRouteResponse)
    assert reply.reason_code in _CODES
    assert server.total("inferencecache_lookup_route_calls_total") == 1
    assert server.total("inferencecache_server_internal_errors_total") == 0


def test_rpcs_without_data_answer_so_that_callers_go_on() -> None:
    services = Server().services
    rendered = services.render_template(pb.RenderTemplateRequest())
    assert rendered == pb.RenderTemplateResponse(reason_code="TEMPLATE_NOT_FOUND")
    assert services.lookup_pd_route(pb.LookupPDRouteRequest()) == pb.LookupPDRouteResponse(reason_code="NO_HINT")
