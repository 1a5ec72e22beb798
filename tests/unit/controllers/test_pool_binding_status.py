"""What a Binding's status says, row by row (spec 10 §7.2, §8, §10)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.controllers.kvcachepool.binding_status import (
    Release,
    Sight,
    binding_status,
    held_status,
    release,
    used_status,
)
from inferencecache.controllers.mooncake.admin import CannotPersist, MasterFailure, MultiTenancyOff
from inferencecache.controllers.mooncake.exposition import TenantFigures
from inferencecache.controllers.mooncake.ledger import DECLARED_OFF, Outcome, Verdict
from inferencecache.kube.resource import Key
from tests.unit.controllers.pools import binding

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = "2025-01-01T00:00:00Z"
FIGURES = {"requestedQuota": "1Mi", "effectiveQuota": "1Mi", "usage": "0", "overQuota": False}
SEEN = TenantFigures(
    requested=16 << 20,
    effective=6100806,
    usage=4096,
    usage_includes_in_flight=True,
    over_quota=True,
    explicit_policy=True,
)
READ = {"requestedQuota": "16Mi", "effectiveQuota": "6100806", "usage": "4Ki", "overQuota": True}


def condition(kind: str, status: str, reason: str, message: str = "said before") -> dict[str, Any]:
    """A condition as it is stored."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": BEFORE}


def said(changes: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and reason of the conditions that are written."""
    return {one["type"]: (one["status"], one["reason"]) for one in changes.get("conditions", ())}


EXCLUSIVE = {"DomainExclusive": ("True", "Exclusive")}
OBSERVED = {"QuotaObserved": ("True", "Observed")}


@pytest.mark.parametrize(
    ("sight", "conditions", "figures", "phase"),
    [
        pytest.param(
            Sight(rivals=(Key("other", "two"),), tenants={"alpha": SEEN}),
            {"DomainExclusive": ("False", "DomainClaimedByMultipleBindings")},
            FIGURES,
            "Error",
            id="1: contested, whatever else is seen",
        ),
        pytest.param(
            Sight(no_ledger=True, tenants={}),
            {
                **EXCLUSIVE,
                "QuotaObserved": ("True", "NoTenantLedger"),
                "QuotaGranted": ("True", "Unenforced"),
            },
            {},
            "Ready",
            id="2: no ledger",
        ),
        pytest.param(
            Sight(no_ledger=True, blind="no scrape"),
            {
                **EXCLUSIVE,
                "QuotaObserved": ("True", "NoTenantLedger"),
                "QuotaGranted": ("True", "Unenforced"),
            },
            {},
            "Ready",
            id="2: no ledger, and no scrape either",
        ),
        pytest.param(
            Sight(blind="refused"),
            {**EXCLUSIVE, "QuotaObserved": ("False", "MasterNotScraped")},
            FIGURES,
            "Error",
            id="3: not scraped",
        ),
        pytest.param(
            Sight(rivals=None, blind="no backend"),
            {"QuotaObserved": ("False", "MasterNotScraped")},
            FIGURES,
            "Error",
            id="3: not scraped, and nobody knows who else claims the domain",
        ),
        pytest.param(
            Sight(tenants={"beta": SEEN}),
            {
                **EXCLUSIVE,
                "QuotaObserved": ("True", "TenantNotInLedger"),
                "QuotaGranted": ("False", "NoLedgerEntry"),
            },
            {},
            "Error",
            id="4: not in the scrape",
        ),
        pytest.param(
            Sight(tenants={"alpha": replace(SEEN, effective=None)}),
            {**EXCLUSIVE, **OBSERVED, "QuotaGranted": ("False", "GrantNotExported")},
            {name: value for name, value in READ.items() if name != "effectiveQuota"},
            "Error",
            id="5a: no grant is told",
        ),
        pytest.param(
            Sight(tenants={"alpha": replace(SEEN, effective=0, over_quota=False)}),
            {**EXCLUSIVE, **OBSERVED, "QuotaGranted": ("False", "ZeroGranted")},
            {**READ, "effectiveQuota": "0", "overQuota": False},
            "Error",
            id="5b: nothing is granted",
        ),
        pytest.param(
            Sight(tenants={"alpha": SEEN}),
            {**EXCLUSIVE, **OBSERVED, "QuotaGranted": ("True", "Granted")},
            READ,
            "Ready",
            id="5c: a grant",
        ),
    ],
)
def test_each_row_says_its_conditions_and_treats_the_figures_as_it_should(
    sight: Sight, conditions: dict[str, tuple[str, str]], figures: dict[str, Any], phase: str
) -> None:
    one = binding(status=FIGURES)
    changes = binding_status(one, sight, NOW)
    after = {**one.status.manifest(), **changes}
    assert said(changes) == conditions
    assert {name: after.get(name) for name in FIGURES} == {name: figures.get(name) for name in FIGURES}
    assert after["phase"] == phase
    again = binding(status={name: value for name, value in after.items() if value is not None})
    assert binding_status(again, sight, NOW.replace(year=2027)) == {}


def test_a_binding_whose_deletion_workloads_hold_says_so_first_and_its_figures_go_on() -> None:
    one = binding(deleting=True, used_by=["llm", "chat"])
    changes = binding_status(one, Sight(tenants={"alpha": SEEN}), NOW)
    assert said(changes)["Releasable"] == ("False", "HeldByWorkloads")
    assert said(changes)["QuotaGranted"] == ("True", "Granted")
    assert changes["phase"] == "Deleting"
    assert changes["phaseMessage"] == changes["conditions"][0]["message"]
    assert "ModelDeployment/llm, ModelDeployment/chat" in changes["phaseMessage"]
    assert changes["usage"] == "4Ki"
    assert said(used_status(one, NOW)) == {"Releasable": ("False", "HeldByWorkloads")}


@pytest.mark.parametrize("sight", [Sight(tenants={"alpha": SEEN}), Sight(no_ledger=True)])
def test_a_binding_that_cannot_be_read_says_so_and_its_figures_stay(sight: Sight) -> None:
    changes = binding_status(binding(ceiling="1e101", status={"usage": "1Mi"}), sight, NOW)
    assert changes["phase"] == "Error"
    assert changes["phaseMessage"].startswith("the figures were not read: spec.quota.ceiling: '1e101' is no")
    assert "mend this Binding" in changes["phaseMessage"]
    assert {"usage", "effectiveQuota", "requestedQuota"}.isdisjoint(changes)


def test_only_twenty_workloads_are_named() -> None:
    one = binding(deleting=True, used_by=[f"w{number:02}" for number in range(23)])
    message = used_status(one, NOW)["phaseMessage"]
    assert "w19 and 3 more" in message
    assert "w20" not in message


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (SEEN, ["not committed"]),
        (replace(SEEN, usage_includes_in_flight=False, explicit_policy=False), ["no policy"]),
        (replace(SEEN, usage_includes_in_flight=False), []),
    ],
)
def test_what_is_observed_tells_its_reservations(figures: TenantFigures, words: list[str]) -> None:
    message = binding_status(binding(), Sight(tenants={"alpha": figures}), NOW)["phaseMessage"]
    assert [word for word in ("not committed", "no policy") if word in message] == words


def test_a_missing_axis_is_provisioning_and_a_fault_comes_before_it() -> None:
    one = binding(status={"conditions": [condition("QuotaGranted", "True", "Granted")]})
    assert binding_status(one, Sight(rivals=None, tenants={"alpha": SEEN}), NOW)["phase"] == "Provisioning"
    assert binding_status(one, Sight(rivals=None, blind="why"), NOW)["phase"] == "Error"


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    stored = [condition("QuotaObserved", "True", "NoTenantLedger"), condition("DomainExclusive", "False", "Whatever")]
    changes = binding_status(binding(status={"conditions": stored}), Sight(tenants={"alpha": SEEN}), NOW)
    times = {one["type"]: one["lastTransitionTime"] for one in changes["conditions"]}
    assert times["QuotaObserved"] == BEFORE
    assert times["DomainExclusive"] == "2026-01-01T00:00:00Z"


FAILED = MasterFailure("no answer")


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (Outcome(verdict=Verdict.CONVERGED), Release.FREE),
        (DECLARED_OFF, Release.FREE),
        (Outcome(verdict=Verdict.NO_LEDGER, failure=MultiTenancyOff("off")), Release.FREE),
        (Outcome(verdict=Verdict.RETAINED, retained=("alpha", "beta")), Release.NOT_EMPTY),
        (Outcome(verdict=Verdict.UNREACHABLE, retained=("alpha",), failure=FAILED), Release.NOT_EMPTY),
        (Outcome(verdict=Verdict.WITHDRAWN, failure=MultiTenancyOff("off")), Release.FREE),
        (Outcome(verdict=Verdict.UNREACHABLE, failure=FAILED), Release.UNKNOWN),
        (Outcome(verdict=Verdict.UNREACHABLE, deleted=("alpha",), failure=FAILED), Release.UNKNOWN),
        (Outcome(verdict=Verdict.NOT_WRITABLE, failure=CannotPersist("full")), Release.UNKNOWN),
        (Outcome(verdict=Verdict.RETAINED, retained=("beta",)), Release.FREE),
        (None, Release.UNKNOWN),
    ],
)
def test_a_releasing_binding_goes_only_when_nothing_of_it_can_be_left(outcome: Outcome | None, what: Release) -> None:
    assert release("alpha", outcome) is what


@pytest.mark.parametrize(
    ("why", "reason", "words"),
    [
        (Release.NOT_EMPTY, "LedgerNotReleased", ["'alpha'", "drain"]),
        (Release.UNKNOWN, "LedgerRequestFailed", ["'alpha'", "no answer", "pool"]),
    ],
)
def test_a_held_binding_says_why_and_what_to_do(why: Release, reason: str, words: list[str]) -> None:
    changes = held_status(binding(deleting=True, status=FIGURES), why, "no answer", NOW)
    assert said(changes) == {"Releasable": ("False", reason)}
    assert changes["phase"] == "Deleting"
    assert changes.keys() == {"conditions", "phase", "phaseMessage"}
    assert [word for word in words if word not in changes["phaseMessage"]] == []
