"""The page of conditions explains whatever the operator may say."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import yaml

from inferencecache.api.kvcache import MULTI_TENANCY_DISABLED
from inferencecache.cli.reference.conditions import KINDS, conditions_page
from inferencecache.controllers.cachebackend import reasons
from inferencecache.controllers.dataplane import served
from inferencecache.controllers.kvcachebackend import reasons as store_reasons
from inferencecache.controllers.kvcachepool import reasons as pool_reasons
from inferencecache.controllers.policy import tenant_status

CASES = Path(__file__).parents[2] / "cases" / "data" / "workload"
EXPLAINED = {
    kind: {(type_, row.status, row.reason) for type_, rows in conditions.items() for row in rows}
    for kind, conditions in KINDS.items()
}
EVENTS_ONLY = {
    reasons.BACKEND_DEGRADED,
    reasons.BACKEND_RECOVERED,
    reasons.FAIL_CLOSED_ENABLED,
    reasons.FAIL_OPEN_RESTORED,
    reasons.ENGINE_SELECTOR_UNMATCHED,
}


def constants(module: ModuleType) -> set[str]:
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.parametrize(
    ("module", "kind", "others"),
    [
        (reasons, "CacheBackend", EVENTS_ONLY),
        (tenant_status, "CacheTenant", {tenant_status.READY, tenant_status.QUOTA_EXCEEDED}),
        (served, "PromptTemplate", {served.READY}),
        (served, "PDTopology", {served.READY}),
        (store_reasons, "KVCacheBackend", {store_reasons.TEARDOWN_INCOMPLETE}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_reason_of_a_condition_is_explained(module: ModuleType, kind: str, others: set[str]) -> None:
    assert constants(module) - others <= {reason for _, _, reason in EXPLAINED[kind]}


def test_every_reason_of_a_pool_and_its_bindings_is_explained() -> None:
    explained = {reason for kind in ("KVCachePool", "KVCachePoolBinding") for _, _, reason in EXPLAINED[kind]}
    assert constants(pool_reasons) | {MULTI_TENANCY_DISABLED} == explained


def test_whatever_a_recorded_case_shows_is_explained() -> None:
    shown = {
        (one["type"], one["status"], one["reason"])
        for path in CASES.glob("*/expected.yaml")
        for snapshot in yaml.safe_load(path.read_text())["snapshots"]
        for status in snapshot["backends"].values()
        for one in status.get("conditions", ())
    }
    assert len(shown) > 20
    unexplained = shown - EXPLAINED["CacheBackend"]
    # Progressing repeats any reason of Ready with which nothing goes on.
    ready = {reason for type_, _, reason in EXPLAINED["CacheBackend"] if type_ == "Ready"}
    assert {one for one in unexplained if one[:2] != ("Progressing", "False") or one[2] not in ready} == set()


def test_each_reason_is_explained_once_per_status() -> None:
    for conditions in KINDS.values():
        for rows in conditions.values():
            assert len({(row.status, row.reason) for row in rows}) == len(rows)


def test_whatever_is_not_well_has_a_remedy() -> None:
    for conditions in KINDS.values():
        for row in conditions.get("Ready", ()):
            assert row.status == "True" or row.remedy, row


def test_the_page_has_every_row() -> None:
    page = conditions_page()
    assert page.count("\n| `") == sum(len(rows) for conditions in KINDS.values() for rows in conditions.values())
