"""The body of `/policy` (spec 05 §8)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from inferencecache.api.cachepolicy import CachePolicy
from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.policy.document import TENANTS, policy_document
from inferencecache.controllers.policy.reconciler import DOCUMENT, PolicyPushReconciler
from inferencecache.server.policy import PolicyStore, parse
from inferencecache.wire.limits import LONGEST_NAME


def policy(namespace: str = "team-a", name: str = "p", **spec: Any) -> CachePolicy:
    return CachePolicy.decode({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def tenant(name: str, tenant_id: str, quota: int | None = None, namespace: str = "a") -> CacheTenant:
    spec: dict[str, Any] = {"tenantID": tenant_id, "isolationMode": "Fairness"}
    if quota is not None:
        spec["quota"] = {"maxIndexEntries": quota}
    return CacheTenant.decode({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def document(policies: list[CachePolicy], tenants: list[CacheTenant] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(policy_document(policies, tenants or []).document)
    return found


def row(**spec: Any) -> dict[str, Any]:
    (found,) = document([policy(**spec)])["policies"]
    assert isinstance(found, dict)
    return found


def test_nothing_is_told_as_no_policies() -> None:
    assert policy_document([], []).document == b'{"version":7,"policies":[]}'


def test_every_field_has_its_place() -> None:
    told = document(
        [
            policy(
                eviction="LFU",
                evictionTTL="1h",
                minimumPrefixTokens=8,
                minimumMatchedTokens=64,
                routingFloorScore="0.1",
                lookupTimeoutMs=50,
                affinityRouting="Enabled",
                strategy={"enableChainMatching": True, "requireChain": False, "enableTenantHot": True},
            )
        ],
        [tenant("t", "t1", 1000)],
    )
    assert told == {
        "version": 7,
        "policies": [
            {
                "namespace": "team-a",
                "evictionTTL": 3_600_000_000_000,
                "minimumPrefixTokens": 8,
                "minimumMatchedTokens": 64,
                "routingFloorScore": 0.1,
                "lookupTimeoutMs": 50,
                "affinityRouting": True,
                "eviction": "lfu",
                "strategy": {"enableChainMatching": True, "requireChain": False, "enableTenantHot": True},
            }
        ],
        "tenants": [{"tenantID": "t1", "maxIndexEntries": 1000, "isolationMode": "Fairness"}],
    }


def test_what_is_not_set_and_what_is_zero_is_left_out() -> None:
    assert (
        row(minimumPrefixTokens=0, minimumMatchedTokens=0, lookupTimeoutMs=0)
        == row()
        == {
            "namespace": "team-a",
            "eviction": "lru",
        }
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("0.1", 0.1),
        ("12", 12),
        ("0.000001", 0.000001),
        ("", None),
        ("abc", 0.1),
        ("-1", 0.1),
        ("nan", 0.1),
        ("inf", 0.1),
        ("1e39", 0.1),
    ],
)
def test_a_floor_that_cannot_be_used_is_the_default_and_never_zero(text: str, number: float | None) -> None:
    assert row(routingFloorScore=text).get("routingFloorScore") == number


@pytest.mark.parametrize(("given", "told"), [("Enabled", True), ("Disabled", False), ("", None), ("odd", False)])
def test_affinity_is_on_off_or_not_told(given: str, told: bool | None) -> None:
    assert row(affinityRouting=given).get("affinityRouting") is told


def test_a_strategy_tells_only_what_it_sets() -> None:
    assert row(strategy={})["strategy"] == {}
    assert row(strategy={"requireChain": True})["strategy"] == {"requireChain": True}


def test_of_several_policies_in_a_namespace_the_smallest_name_counts_and_rows_are_sorted() -> None:
    given = [policy("b", "z"), policy("a", "y", eviction="LFU"), policy("a", "x"), policy("b", "a", eviction="LFU")]
    expected = [("a", "lru"), ("b", "lfu")]
    for order in (given, given[::-1]):
        assert [(one["namespace"], one["eviction"]) for one in document(order)["policies"]] == expected


def test_quotas_are_told_of_owners_only_and_a_zero_is_a_quota() -> None:
    tenants = [
        tenant("z", "shared", 5),
        tenant("y", "shared"),
        tenant("x", "free"),
        tenant("w", "none", 0),
        tenant("a", "shared", 9, namespace="b"),
    ]
    for order in (tenants, tenants[::-1]):
        told = document([], order)["tenants"]
        assert [(one["tenantID"], one["maxIndexEntries"]) for one in told] == [("none", 0), ("shared", 5)]


def test_tenants_without_quotas_are_not_mentioned() -> None:
    assert "tenants" not in document([], [tenant("t", "t1")])


def test_quotas_of_one_namespace_keep_no_policy_from_the_server() -> None:
    long_ids = [tenant(f"t{number}", f"{number:04}" + "é" * 1000, 1) for number in range(1000)]
    store = PolicyStore()
    told = policy_document([policy(eviction="LFU"), policy("team-z", eviction="LFU")], long_ids)
    store.replace(parse(told.document))
    assert store.is_lfu("team-a")
    assert store.is_lfu("team-z")
    taken = [one for one in long_ids if store.max_entries(one.spec.tenant_id) == 1]
    assert len(taken) == len(long_ids) - len(told.left_out[TENANTS])
    assert 400 < len(taken) < 600


async def test_it_is_said_once_what_found_no_place() -> None:
    class Given:
        missing = False

        def __init__(self, *objects: Any) -> None:
            self.list = lambda: list(objects)

    class Taken:
        async def push(self, _document: bytes) -> timedelta:
            return timedelta(seconds=30)

    tenants = [tenant(f"t{number}", f"{number:04}" + "é" * 1000, 1) for number in range(600)]
    given: Any = Given(policy()), Given(*tenants), Taken()
    reconciler = PolicyPushReconciler(policies=given[0], tenants=given[1], pusher=given[2])
    with capture_logs() as logs:
        await reconciler.reconcile(DOCUMENT)
        await reconciler.reconcile(DOCUMENT)
    left_out = policy_document([policy()], tenants).left_out[TENANTS]
    assert [(entry["log_level"], entry["objects"], entry["first"]) for entry in logs] == [
        ("warning", len(left_out), str(min(left_out)))
    ]


def test_a_quota_is_told_as_far_as_the_server_takes_reports_under_its_id() -> None:
    tenants = [tenant("a", "x" * LONGEST_NAME, 1), tenant("b", "y" * (LONGEST_NAME + 1), 1)]
    told = policy_document([], tenants)
    assert [one["tenantID"][0] for one in json.loads(told.document)["tenants"]] == ["x"]
    assert not any(told.left_out.values())


def test_the_server_understands_what_it_is_told() -> None:
    store = PolicyStore()
    pushed = policy_document(
        [policy(eviction="LFU", evictionTTL="90s", routingFloorScore="0", affinityRouting="Disabled")],
        [tenant("t", "team-b", 3)],
    )
    store.replace(parse(pushed.document))
    rules = store.of("team-a")
    assert (rules.lfu, rules.ttl_us, rules.routing_floor_score, rules.affinity) == (True, 90_000_000, 0, False)
    assert rules.minimum_matched_tokens == 0  # a policy that leaves it out opts out (version 7)
    assert (store.max_entries("team-b"), store.max_entries("team-a")) == (3, None)
