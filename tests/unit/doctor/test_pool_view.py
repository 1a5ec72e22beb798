"""What the `pool` command shows of pools and their Bindings."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.cli.pool import bar
from inferencecache.doctor.pool_view import pool_view


def pool(**status: Any) -> KVCachePool:
    spec = {"backends": ["dram"], "quota": {"total": "900Gi"}}
    return KVCachePool.decode({"metadata": {"name": "shared"}, "spec": spec, "status": status})


def binding(domain: str = "qwen", *, pool: str = "shared", ceiling: str = "600Gi", **status: Any) -> KVCachePoolBinding:
    return KVCachePoolBinding.decode(
        {
            "metadata": {"name": "team", "namespace": "a"},
            "spec": {
                "poolRef": {"name": pool},
                "quota": {"ceiling": ceiling},
                "domain": {"name": domain, "blockSize": 64, "dtype": "fp8_e4m3"},
            },
            "status": status,
        }
    )


def condition(type_: str, status: str, reason: str, message: str) -> dict[str, str]:
    when = "2026-01-01T00:00:00Z"
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": when}


def test_a_domain_shows_its_ceiling_its_grant_and_how_full_it_is() -> None:
    (row,) = pool_view(pool(), [binding(effectiveQuota="450Gi", usage="225Gi", phase="Ready")]).rows
    assert (row.domain, row.binding) == ("qwen", "a/team")
    assert (row.ceiling, row.grant, row.usage, row.fill) == ("600Gi", "450Gi", "225Gi", 0.5)


@pytest.mark.parametrize(
    ("status", "fill"),
    [
        ({}, None),
        ({"usage": "1Gi"}, None),
        ({"effectiveQuota": "0", "usage": "0"}, None),
        ({"effectiveQuota": "2Gi", "usage": "0"}, 0.0),
        ({"effectiveQuota": "1Gi", "usage": "1536Mi", "overQuota": True}, 1.5),
    ],
)
def test_what_was_not_observed_is_not_drawn_as_empty(status: dict[str, Any], fill: float | None) -> None:
    (row,) = pool_view(pool(), [binding(**status)]).rows
    assert row.fill == fill


def test_bindings_of_other_pools_are_not_counted() -> None:
    view = pool_view(pool(), [binding(), binding("other", pool="another")])
    assert [row.domain for row in view.rows] == ["qwen"]
    assert view.ceilings == 600 << 30


def test_a_domain_whose_binding_was_forced_away_is_still_shown() -> None:
    listed = {"name": "old", "binding": {"namespace": "b", "name": "gone"}, "blockSize": 16, "dtype": "bfloat16"}
    (row,) = pool_view(pool(domains=[listed]), []).rows
    assert (row.domain, row.binding) == ("old", "b/gone")
    assert "the Binding is gone" in row.note


def test_a_held_deletion_says_its_reason_before_anything_else() -> None:
    held = condition("Releasable", "False", "LedgerNotReleased", "drain qwen")
    (row,) = pool_view(pool(), [binding(phase="Deleting", phaseMessage="m", conditions=[held])]).rows
    assert row.note == "LedgerNotReleased: drain qwen"


def test_an_error_is_explained_and_a_ready_pool_is_not_commented() -> None:
    assert pool_view(pool(phase="Error", phaseMessage="nothing mounted"), []).note == "nothing mounted"
    assert pool_view(pool(phase="Ready", phaseMessage="single tenant"), []).note == ""


def test_an_oversubscribed_pool_says_so_although_it_is_ready() -> None:
    over = condition("QuotaWithinTotal", "False", "Oversubscribed", "1Ti of 900Gi")
    assert pool_view(pool(phase="Ready", conditions=[over]), []).note == "Oversubscribed: 1Ti of 900Gi"


def test_an_oversubscribed_pool_that_is_in_error_says_why_it_is() -> None:
    over = condition("QuotaWithinTotal", "False", "Oversubscribed", "1Ti of 900Gi")
    assert pool_view(pool(phase="Error", phaseMessage="no answer", conditions=[over]), []).note == "no answer"


@pytest.mark.parametrize(
    ("fill", "drawn"),
    [
        (None, ""),
        (0.0, "···················· 0%"),
        (0.5, "██████████·········· 50%"),
        (0.53, "██████████▋········· 53%"),
        (1.0, "████████████████████ 100%"),
        (1.5, "████████████████████ 150%"),
    ],
)
def test_a_bar_is_as_long_as_the_grant_is_full(fill: float | None, drawn: str) -> None:
    assert bar(fill) == drawn
