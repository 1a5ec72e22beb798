"""The policy push: what is accepted, what each absent field means, and that it replaces everything before it."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.index import RESERVED_TENANT
from inferencecache.server.policy import (
    PolicyError,
    PolicyStore,
    TenantPolicy,
    parse,
)
from inferencecache.wire.limits import LARGEST_POLICIES

_HALF_HOUR_US = 30 * 60 * 1_000_000
_TENTH = struct.unpack("f", struct.pack("f", 0.1))[0]


def _store(version: int = 7, **document: Any) -> PolicyStore:
    store = PolicyStore()
    store.replace(parse(json.dumps({"version": version, **document}).encode()))
    return store


def _policy(version: int = 7, **row: Any) -> TenantPolicy:
    return _store(version, policies=[{"namespace": "ns", **row}]).of("ns")


def test_a_tenant_without_policy_has_the_documented_defaults() -> None:
    assert PolicyStore().of("anyone") == TenantPolicy(
        ttl_us=_HALF_HOUR_US,
        lfu=False,
        minimum_prefix_tokens=0,
        minimum_matched_tokens=64,
        routing_floor_score=_TENTH,
        lookup_timeout_s=None,
        chain_matching=True,
        require_chain=False,
        tenant_hot=True,
        affinity=True,
    )
    assert PolicyStore().max_entries("anyone") is None


def test_a_policy_without_fields_differs_from_none_in_the_matched_floor_only() -> None:
    assert _policy() == PolicyStore().of("ns")._replace(minimum_matched_tokens=0)


@pytest.mark.parametrize(
    ("row", "resolved"),
    [
        ({"evictionTTL": 60_000_000_000}, {"ttl_us": 60_000_000}),
        ({"evictionTTL": 0}, {"ttl_us": _HALF_HOUR_US}),
        ({"evictionTTL": -5}, {"ttl_us": _HALF_HOUR_US}),
        ({"evictionTTL": 1}, {"ttl_us": 1}),
        ({"eviction": "lfu"}, {"lfu": True}),
        ({"eviction": "LFU"}, {"lfu": True}),
        ({"eviction": "lru"}, {"lfu": False}),
        ({"eviction": "mru"}, {"lfu": False}),
        ({"minimumPrefixTokens": 100}, {"minimum_prefix_tokens": 100}),
        ({"minimumPrefixTokens": -1}, {"minimum_prefix_tokens": 0}),
        ({"minimumMatchedTokens": 256}, {"minimum_matched_tokens": 256}),
        ({"minimumMatchedTokens": 0}, {"minimum_matched_tokens": 0}),
        ({"minimumMatchedTokens": -3}, {"minimum_matched_tokens": 0}),
        ({"routingFloorScore": 100}, {"routing_floor_score": 100.0}),
        ({"routingFloorScore": 0}, {"routing_floor_score": 0.0}),
        ({"routingFloorScore": -1.5}, {"routing_floor_score": 0.0}),
        ({"routingFloorScore": None}, {"routing_floor_score": _TENTH}),
        ({"routingFloorScore": 1e200}, {"routing_floor_score": float("inf")}),
        ({"lookupTimeoutMs": 20}, {"lookup_timeout_s": 0.02}),
        ({"lookupTimeoutMs": 0}, {"lookup_timeout_s": None}),
        ({"lookupTimeoutMs": -1}, {"lookup_timeout_s": None}),
        ({"affinityRouting": False}, {"affinity": False}),
        ({"affinityRouting": None}, {"affinity": True}),
        ({"strategy": None}, {"chain_matching": True, "require_chain": False, "tenant_hot": True}),
        ({"strategy": {}}, {"chain_matching": True, "require_chain": False, "tenant_hot": True}),
        ({"strategy": {"enableChainMatching": False}}, {"chain_matching": False, "tenant_hot": True}),
        ({"strategy": {"requireChain": True}}, {"require_chain": True, "chain_matching": True}),
        ({"strategy": {"enableTenantHot": False}}, {"tenant_hot": False, "chain_matching": True}),
    ],
)
def test_each_field_resolves_as_documented(row: dict[str, Any], resolved: dict[str, Any]) -> None:
    policy = _policy(**row)
    assert {name: getattr(policy, name) for name in resolved} == resolved


@pytest.mark.parametrize(
    ("version", "row", "resolved"),
    [
        (3, {}, {"minimum_matched_tokens": 64, "routing_floor_score": _TENTH, "affinity": True}),
        (3, {"minimumMatchedTokens": 0}, {"minimum_matched_tokens": 64}),
        (3, {"minimumMatchedTokens": 128}, {"minimum_matched_tokens": 128}),
        (4, {}, {"minimum_matched_tokens": 0, "routing_floor_score": _TENTH}),
        (4, {"routingFloorScore": 0}, {"routing_floor_score": 0.0}),
        (5, {"routingFloorScore": 0}, {"routing_floor_score": 0.0, "chain_matching": True, "tenant_hot": True}),
        (5, {"strategy": {"enableChainMatching": False}}, {"chain_matching": False, "tenant_hot": True}),
        (6, {"affinityRouting": False}, {"affinity": False}),
        (6, {}, {"affinity": True}),
        (7, {}, {"minimum_matched_tokens": 0, "affinity": True}),
    ],
)
def test_older_bodies_are_filled_up_and_what_they_say_is_kept(
    version: int, row: dict[str, Any], resolved: dict[str, Any]
) -> None:
    policy = _policy(version, **row)
    assert {name: getattr(policy, name) for name in resolved} == resolved


@pytest.mark.parametrize("value", ["0.1", "0.3", "0.7", "42.666668", "92.8"])
def test_a_score_equal_to_the_floor_passes_it(value: str) -> None:
    score = struct.unpack("f", struct.pack("f", float(value)))[0]
    assert not score < _policy(routingFloorScore=float(value)).routing_floor_score


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "decode policy snapshot: "),
        (b"policy", "decode policy snapshot: "),
        (b"[]", "decode policy snapshot: "),
        (b'"\xff"', "decode policy snapshot: "),
        (b"[" * 100_000, "decode policy snapshot: "),
        (b'{"version": 7} {}', "decode policy snapshot: "),
        (b'{"version": 7}x', "decode policy snapshot: "),
        (b'{"version": 7, "colour": 1}', "colour"),
        (b'{"version": 7, "policies": [{"namespace": "ns", "minimumPrefixToken": 1}]}', "minimumPrefixToken"),
        (b'{"version": 7, "policies": [{"namespace": "ns", "strategy": {"chain": true}}]}', "strategy"),
        (b'{"version": 7, "policies": [{}]}', "namespace"),
        (b'{"version": 7, "tenants": [{"tenantID": "t"}]}', "maxIndexEntries"),
        (b'{"version": 7, "tenants": [{"tenantId": "t", "maxIndexEntries": 1}]}', "tenant"),
        (
            b'{"version": 7, "policies": [{"namespace": "ns", "minimumPrefixTokens": 2147483648}]}',
            "minimumPrefixTokens",
        ),
        (b'{"version": 7, "policies": [{"namespace": "ns", "evictionTTL": "30m"}]}', "evictionTTL"),
        (b'{"version": 7, "policies": [{"namespace": "ns", "routingFloorScore": "0.1"}]}', "routingFloorScore"),
        (b'{"version": 7, "policies": [{"namespace": "ns", "routingFloorScore": 1e999}]}', "decode policy snapshot: "),
        (b"{}", "unsupported policy snapshot version"),
        (b'{"version": 2}', "unsupported policy snapshot version"),
        (b'{"version": 99}', "unsupported policy snapshot version"),
        (b'{"version": 7}' + b" " * LARGEST_POLICIES, "decode policy snapshot: "),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_with_the_field(body: bytes, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse(body)


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    body = b'{"version": 7}'
    assert parse(body + b" " * (LARGEST_POLICIES - len(body))).version == 7


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7])
def test_null_lists_are_empty_lists(version: int) -> None:
    store = _store(version, policies=None, tenants=None)
    assert store.of("ns") == PolicyStore().of("ns")


def test_a_push_replaces_everything_before_it() -> None:
    store = PolicyStore()
    store.replace(
        parse(
            json.dumps(
                {
                    "version": 7,
                    "policies": [{"namespace": "a", "minimumPrefixTokens": 5}, {"namespace": "b", "eviction": "lfu"}],
                    "tenants": [{"tenantID": "a", "maxIndexEntries": 3, "isolationMode": "Fairness"}],
                }
            ).encode()
        )
    )
    assert (store.of("a").minimum_prefix_tokens, store.is_lfu("b"), store.max_entries("a")) == (5, True, 3)
    store.replace(parse(b'{"version": 7, "policies": [{"namespace": "b", "evictionTTL": 1000000}]}'))
    assert store.of("a") == PolicyStore().of("a")
    assert (store.is_lfu("b"), store.ttl_us("b"), store.max_entries("a")) == (False, 1000, None)


def test_a_refused_push_changes_nothing() -> None:
    store = _store(tenants=[{"tenantID": "a", "maxIndexEntries": 3}])
    with pytest.raises(PolicyError):
        store.replace(parse(b'{"version": 8}'))
    assert store.max_entries("a") == 3


@pytest.mark.parametrize(("given", "budget"), [(0, 0), (-4, 0), (7, 7), (2**63 - 1, 2**63 - 1)])
def test_quotas_are_never_negative_and_zero_admits_nothing(given: int, budget: int) -> None:
    assert _store(tenants=[{"tenantID": "t", "maxIndexEntries": given}]).max_entries("t") == budget


def test_of_two_rows_for_one_key_the_last_counts_and_nameless_rows_do_not() -> None:
    store = _store(
        policies=[
            {"namespace": "ns", "minimumPrefixTokens": 1},
            {"namespace": "", "minimumPrefixTokens": 9},
            {"namespace": "ns", "minimumPrefixTokens": 2},
        ],
        tenants=[
            {"tenantID": "t", "maxIndexEntries": 1},
            {"tenantID": "", "maxIndexEntries": 9},
            {"tenantID": "t", "maxIndexEntries": 2},
        ],
    )
    assert store.of("ns").minimum_prefix_tokens == 2
    assert store.of("") == PolicyStore().of("")
    assert (store.max_entries("t"), store.max_entries("")) == (2, None)


def test_the_reserved_tenant_has_neither_policy_nor_quota() -> None:
    store = _store(
        policies=[{"namespace": RESERVED_TENANT, "evictionTTL": 1}],
        tenants=[{"tenantID": RESERVED_TENANT, "maxIndexEntries": 0}],
    )
    assert store.of(RESERVED_TENANT) == PolicyStore().of(RESERVED_TENANT)
    assert store.max_entries(RESERVED_TENANT) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_a_whole_or_taken_as_a_whole(body: bytes) -> None:
    store = PolicyStore()
    before = store.of("ns")
    with contextlib.suppress(PolicyError):
        store.replace(parse(body))
    assert store.of("ns") == before


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_row = st.dictionaries(
    st.sampled_from(["evictionTTL", "minimumPrefixTokens", "minimumMatchedTokens", "routingFloorScore", "strategy"]),
    _json | st.integers(-10, 10),
)


@given(st.lists(_row, max_size=3))
def test_any_rows_resolve_to_values_in_range_or_are_refused(rows: list[dict[str, Any]]) -> None:
    try:
        policy = _store(policies=[{**row, "namespace": "ns"} for row in rows]).of("ns")
    except PolicyError:
        return
    assert policy.ttl_us > 0
    assert policy.minimum_prefix_tokens >= 0
    assert policy.minimum_matched_tokens >= 0
    assert policy.routing_floor_score >= 0
    assert policy.lookup_timeout_s is None or policy.lookup_timeout_s > 0


def test_the_longest_ttl_is_that_of_any_tenant_and_at_least_the_default() -> None:
    store = PolicyStore()
    assert store.longest_ttl_us() == 30 * 60 * 1_000_000
    store.replace(parse(b'{"version":7,"policies":[{"namespace":"t","evictionTTL":60000000000}]}'))
    assert store.longest_ttl_us() == 30 * 60 * 1_000_000
    store.replace(parse(b'{"version":7,"policies":[{"namespace":"t","evictionTTL":7200000000000}]}'))
    assert store.longest_ttl_us() == 2 * 60 * 60 * 1_000_000
