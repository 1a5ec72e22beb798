"""The snapshot document: frozen keys, what is omitted and what never is."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.index import ReplicaRow, Snapshot, Stats, TenantRow
from inferencecache.server.snapshot import render

_US = 1_700_000_000_000_000
_NEVER = "0001-01-01T00:00:00Z"


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _document(*replicas: ReplicaRow, tenants: tuple[TenantRow, ...] = (), total: int = 0) -> Any:
    return json.loads(render(Snapshot(replicas, tenants, total)))


def test_a_replica_with_everything_has_every_key() -> None:
    row = ReplicaRow("t", "r", Stats(1024, _float32(0.8), 0.25, 6, 10), _US, 7, _US + 250_000)
    assert _document(row)["replicas"] == [
        {
            "replicaId": "r",
            "tenant": "t",
            "cacheMemoryBytes": 1024,
            "hitRate": 0.8,
            "pressure": 0.25,
            "lastUpdate": "2023-11-14T22:13:20Z",
            "prefixCount": 7,
            "lastEventAt": "2023-11-14T22:13:20.250000Z",
            "statsReported": True,
            "t2HitTokens": 6,
            "t2QueryTokens": 10,
        }
    ]


def test_a_replica_without_stats_or_tenant_omits_presence_and_shows_zeros() -> None:
    assert _document(ReplicaRow("", "r", None, None, 0, None))["replicas"] == [
        {
            "replicaId": "r",
            "cacheMemoryBytes": 0,
            "hitRate": 0.0,
            "pressure": 0.0,
            "lastUpdate": _NEVER,
            "prefixCount": 0,
            "lastEventAt": _NEVER,
        }
    ]


def test_stats_of_zero_are_reported_all_the_same() -> None:
    (replica,) = _document(ReplicaRow("t", "r", Stats(0, 0.0, 0.0), _US, 0, None))["replicas"]
    assert replica["statsReported"] is True
    assert "t2HitTokens" not in replica


def test_tenants_show_their_mean_only_where_there_is_one() -> None:
    tenants = (TenantRow("", 2, None), TenantRow("t", 3, 0.5))
    assert _document(tenants=tenants, total=5) == {
        "replicas": None,
        "tenants": [
            {"tenantId": "", "indexEntries": 2, "hitRate": 0.0, "memoryUsed": 0},
            {"tenantId": "t", "indexEntries": 3, "hitRate": 0.5, "hitRateReported": True, "memoryUsed": 0},
        ],
        "totalPrefixes": 5,
        "hotPrefixes": 0,
    }


def test_an_empty_index_has_null_lists() -> None:
    assert _document() == {"replicas": None, "tenants": None, "totalPrefixes": 0, "hotPrefixes": 0}


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_rate_reads_back_as_the_same_float32(rate: float) -> None:
    (replica,) = _document(ReplicaRow("t", "r", Stats(0, rate, 0.0), _US, 0, None))["replicas"]
    assert struct.pack("f", replica["hitRate"]) == struct.pack("f", rate)
