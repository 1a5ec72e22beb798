"""The snapshot as the CacheIndex shows it (spec 05 §7.2)."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.cacheindex import CacheIndexStatus
from inferencecache.controllers.cacheindex.index_status import index_status
from inferencecache.controllers.cacheindex.rates import rate_text
from inferencecache.controllers.cacheindex.snapshot import Snapshot, SnapshotError, parse

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
URL = "http://server/snapshot"
NEVER = "0001-01-01T00:00:00Z"


def snapshot(**document: Any) -> Snapshot:
    return parse(json.dumps(document).encode())


def replica(replica_id: str = "e-0", **fields: Any) -> dict[str, Any]:
    return {"replicaId": replica_id, "tenant": "a", "lastUpdate": "2026-03-02T08:15:00Z", **fields}


def told(before: dict[str, Any] | None = None, **document: Any) -> dict[str, Any] | None:
    return index_status(CacheIndexStatus.model_validate(before or {}), snapshot(**document), URL, NOW)


def shown(**document: Any) -> dict[str, Any]:
    status = told(**document)
    assert status is not None
    return status


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (0.8, "0.8"),
        (0.800000011920929, "0.8"),
        (0.75, "0.75"),
        (1 / 3, "0.33333334"),
        (1e-05, "0.00001"),
        (16777216.0, "16777216"),
        (1e20, "100000000000000000000"),
    ],
)
def test_rates_read_as_people_write_them(value: float, text: str) -> None:
    assert rate_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_rate_is_a_plain_decimal_that_is_the_same_float32_and_zero_for_zero_only(value: float) -> None:
    text = rate_text(value)
    assert not set(text) - set("-.0123456789")
    assert (float(text) == 0) == (value == 0)
    if abs(value) < 3e38 and abs(value) > 1e-37:
        assert struct.pack("f", float(text)) == struct.pack("f", value)


def test_an_empty_index_shows_its_zeros_and_where_it_was_read() -> None:
    assert shown(replicas=None, tenants=None, totalPrefixes=0, hotPrefixes=0) == {
        "replicas": None,
        "tenants": None,
        "prefixes": {"summary": {"total": 0, "hot": 0}},
        "observedServer": URL,
        "lastUpdated": "2026-03-02T09:30:00Z",
    }


def test_a_replica_that_reported_load_is_shown_and_one_that_did_not_is_not() -> None:
    rows = [replica("b", pressure=0.5, hitRate=0.8, cacheMemoryBytes=9), replica("a"), replica("c", lastUpdate=NEVER)]
    assert shown(replicas=rows)["replicas"] == [
        {"id": "a", "tenant": "a", "pressure": "0", "hitRate": "0", "lastUpdate": "2026-03-02T08:15:00Z"},
        {
            "id": "b",
            "tenant": "a",
            "pressure": "0.5",
            "hitRate": "0.8",
            "cacheMemoryBytes": 9,
            "lastUpdate": "2026-03-02T08:15:00Z",
        },
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_equal_ids_the_last_tenant_is_shown_whatever_the_order(order: tuple[int, ...]) -> None:
    rows = [replica(tenant="a"), replica(tenant="b"), replica(tenant="c", lastUpdate=NEVER)]
    (row,) = shown(replicas=[rows[at] for at in order])["replicas"]
    assert row["tenant"] == "b"


@pytest.mark.parametrize(
    ("row", "rate"),
    [
        ({"hitRate": 0.0, "hitRateReported": True}, "0"),
        ({"hitRate": 0.25, "hitRateReported": True}, "0.25"),
        ({"hitRate": 0.25}, "0.25"),
        ({"hitRate": 0.0}, None),
    ],
)
def test_a_tenants_hit_rate_is_shown_if_it_was_reported(row: dict[str, Any], rate: str | None) -> None:
    (tenant,) = shown(tenants=[{"tenantId": "t", "indexEntries": 3, "memoryUsed": 77, **row}])["tenants"]
    assert tenant == {"id": "t", "indexEntries": 3, "memoryUsed": 0, **({"hitRate": rate} if rate else {})}


def test_traffic_without_a_tenant_has_a_row_under_the_empty_id() -> None:
    rows = [{"tenantId": "", "indexEntries": 1}, {"tenantId": "t", "indexEntries": 0}]
    assert [row["id"] for row in shown(tenants=rows)["tenants"]] == ["", "t"]


def test_times_alone_are_no_reason_to_write() -> None:
    before = shown(replicas=[replica()], tenants=[{"tenantId": "t", "indexEntries": 1}], totalPrefixes=4)
    later = [replica(lastUpdate="2026-03-02T09:29:59.123456789Z")]
    assert told(before, replicas=later, tenants=[{"tenantId": "t", "indexEntries": 1}], totalPrefixes=4) is None


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": [replica(pressure=0.1)]},
        {"replicas": []},
        {"tenants": [{"tenantId": "t", "indexEntries": 2}]},
        {"tenants": None},
        {"totalPrefixes": 5},
        {"hotPrefixes": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_else_is(change: dict[str, Any]) -> None:
    document = {"replicas": [replica()], "tenants": [{"tenantId": "t", "indexEntries": 1}], "totalPrefixes": 4}
    assert told(shown(**document), **{**document, **change}) is not None


def test_another_server_is_a_reason_to_write() -> None:
    before = CacheIndexStatus.model_validate(shown())
    assert index_status(before, snapshot(), "http://other/snapshot", NOW) is not None


def test_unknown_keys_are_skipped_and_missing_ones_are_zero() -> None:
    seen = snapshot(novelty=1, replicas=[{"replicaId": "x", "novelty": {}}])
    assert seen.replicas is not None
    assert (seen.replicas[0].updated, seen.replicas[0].last_event, seen.tenants) == (None, None, None)


def test_a_negative_amount_of_one_replica_is_none_and_costs_nobody_a_row() -> None:
    odd = {"replicaId": "odd", "cacheMemoryBytes": -1, "t2HitTokens": -(2**63), "t2QueryTokens": -2}
    seen = snapshot(replicas=[odd, {"replicaId": "x", "cacheMemoryBytes": 7}])
    assert [(row.cache_memory_bytes, row.t2_hit_tokens, row.t2_query_tokens) for row in seen.replicas or ()] == [
        (0, 0, 0),
        (7, 0, 0),
    ]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"replicas": 1}', b'{"totalPrefixes": -1}', b'{"replicas": [{"t', b"\xff"]
)
def test_what_is_no_snapshot_is_refused(body: bytes) -> None:
    with pytest.raises(SnapshotError):
        parse(body)
