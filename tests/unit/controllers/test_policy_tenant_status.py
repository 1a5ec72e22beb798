"""CacheTenant status (spec 05 §7.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferencecache.api.cachetenant import CacheTenant
from inferencecache.controllers.policy.owners import owners
from inferencecache.controllers.policy.tenant_status import tenant_status
from inferencecache.kube.resource import Key
from inferencecache.wire.limits import LONGEST_NAME

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def tenant(
    name: str,
    quota: int | None = None,
    tenant_id: str = "t1",
    namespace: str = "a",
    status: dict[str, Any] | None = None,
) -> CacheTenant:
    spec: dict[str, Any] = {"tenantID": tenant_id}
    if quota is not None:
        spec["quota"] = {"maxIndexEntries": quota}
    metadata = {"name": name, "namespace": namespace, "generation": 4}
    return CacheTenant.decode({"metadata": metadata, "spec": spec, "status": status or {}})


def conditions(status: dict[str, Any] | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    assert {one["observedGeneration"] for one in status["conditions"]} == {4}
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


OBSERVED, DUPLICATE = ("True", "Observed"), ("False", "DuplicateTenantID")


@pytest.mark.parametrize(
    ("this", "others", "held", "ready", "exceeded"),
    [
        pytest.param(tenant("m", 5), [], 4, OBSERVED, ("False", "WithinBudget"), id="under"),
        pytest.param(tenant("m", 5), [], 5, OBSERVED, ("False", "WithinBudget"), id="just"),
        pytest.param(tenant("m", 5), [], 6, OBSERVED, ("True", "OverEntryBudget"), id="over"),
        pytest.param(tenant("m", 0), [], 0, OBSERVED, ("False", "WithinBudget"), id="a quota of zero"),
        pytest.param(tenant("m", 0), [], 1, OBSERVED, ("True", "OverEntryBudget"), id="over a quota of zero"),
        pytest.param(tenant("m"), [], 9, OBSERVED, ("False", "NoQuota"), id="no quota"),
        pytest.param(tenant("m", 5), [tenant("a", 9)], 6, DUPLICATE, ("False", "NotEffective"), id="owned before"),
        pytest.param(tenant("m"), [tenant("z", 9)], 6, DUPLICATE, ("False", "NotEffective"), id="owned, no quota here"),
        pytest.param(tenant("m", 5), [tenant("a")], 4, OBSERVED, ("False", "WithinBudget"), id="the other has none"),
        pytest.param(tenant("m"), [tenant("a")], 4, OBSERVED, ("False", "NoQuota"), id="nobody has one"),
        pytest.param(
            tenant("a", 5, namespace="b"),
            [tenant("z", 9)],
            4,
            DUPLICATE,
            ("False", "NotEffective"),
            id="namespaces come before names",
        ),
        pytest.param(
            tenant("m", 5), [tenant("a", 9, tenant_id="t2")], 4, OBSERVED, ("False", "WithinBudget"), id="another id"
        ),
    ],
)
def test_what_a_tenant_is_told(
    this: CacheTenant, others: list[CacheTenant], held: int, ready: tuple[str, str], exceeded: tuple[str, str]
) -> None:
    status = tenant_status(this, owners([this, *others]), {"t1": held}, (), NOW)
    assert conditions(status) == {"Ready": ready, "QuotaExceeded": exceeded}
    assert status is not None
    assert (status["indexEntries"], status["observedGeneration"]) == (held, 4)


@pytest.mark.parametrize("quota", [5, None])
@pytest.mark.parametrize(("length", "reason"), [(LONGEST_NAME, "Observed"), (LONGEST_NAME + 1, "TenantIDTooLong")])
def test_a_tenant_id_that_the_server_takes_nothing_for_is_told_to_be_shortened(
    quota: int | None, length: int, reason: str
) -> None:
    this = tenant("m", quota, tenant_id="x" * length)
    status = tenant_status(this, owners([this]), {}, (), NOW)
    assert conditions(status)["Ready"][1] == reason
    assert status is not None
    assert ("shorten spec.tenantID" in status["conditions"][0]["message"]) is (reason == "TenantIDTooLong")
    assert len(status["conditions"][0]["message"]) < 200, "the id itself is of no help"


def test_a_quota_that_found_no_room_in_the_document_is_told_so() -> None:
    this, other = tenant("m", 5), tenant("n", 5, tenant_id="t2")
    of = owners([this, other])
    assert conditions(tenant_status(this, of, {}, {Key.of(this)}, NOW)) == {
        "Ready": ("False", "DocumentFull"),
        "QuotaExceeded": ("False", "NotEffective"),
    }
    assert conditions(tenant_status(other, of, {}, {Key.of(this)}, NOW))["Ready"] == OBSERVED


def test_the_owner_of_a_shared_id_is_named() -> None:
    status = tenant_status(tenant("m", 5), owners([tenant("m", 5), tenant("a", 1)]), {}, (), NOW)
    assert status is not None
    assert "a/a" in status["conditions"][0]["message"]


def test_a_tenant_that_the_server_does_not_know_holds_nothing() -> None:
    status = tenant_status(tenant("m", 5), {}, {"other": 7}, (), NOW)
    assert status is not None
    assert status["indexEntries"] == 0


def test_what_is_said_already_is_not_said_again() -> None:
    first = tenant_status(tenant("m", 5), {}, {"t1": 3}, (), NOW)
    later = NOW + timedelta(hours=1)
    assert tenant_status(tenant("m", 5, status=first), {}, {"t1": 3}, (), later) is None
    assert tenant_status(tenant("m", 5, status=first), {}, {"t1": 4}, (), later) is not None


def test_conditions_of_others_stay() -> None:
    foreign = {
        "type": "Audited",
        "status": "True",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = tenant_status(tenant("m", status={"conditions": [foreign]}), {}, {}, (), NOW)
    assert status is not None
    assert [one["type"] for one in status["conditions"]] == ["Audited", "Ready", "QuotaExceeded"]
