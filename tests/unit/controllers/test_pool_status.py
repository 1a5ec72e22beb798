"""What a pool's status says, row by row (spec 10 §6.2, §6.4, §7.1, §8)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from inferencecache.api.kvcache import listed
from inferencecache.api.quantity import binary
from inferencecache.controllers.kvcachepool import pool_status as status
from inferencecache.controllers.kvcachepool.pool_status import Findings, served_status, unserved_status
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import CannotPersist, MasterFailure, MultiTenancyOff
from inferencecache.controllers.mooncake.exposition import Scrape, TenantFigures
from inferencecache.controllers.mooncake.ledger import DECLARED_OFF, Outcome, Verdict
from tests.unit.controllers.pools import binding, pool
from tests.unit.controllers.test_pool_binding_status import BEFORE, condition, said
from tests.unit.controllers.test_pool_snapshot import MIB, written

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONVERGED = Outcome(verdict=Verdict.CONVERGED)
FAILED = Outcome(verdict=Verdict.UNREACHABLE, failure=MasterFailure("no answer"))
FULL = Scrape(tenants={"alpha": TenantFigures(usage=MIB)}, allocatable=64 * MIB)
SERVED = Findings(outcome=CONVERGED, scrape=FULL, scrape_tried=True)


def served(findings: Findings, *, one: Any = None, bindings: Any = None) -> dict[str, Any]:
    one = one or pool()
    return served_status(one, Snapshot.of([one], bindings or [binding()]), findings, "client:50051", NOW)


@pytest.mark.parametrize(
    ("outcome", "ledger", "policy"),
    [
        (DECLARED_OFF, ("False", "MultiTenancyDisabled"), ("Unknown", "MultiTenancyDisabled")),
        (
            Outcome(verdict=Verdict.NO_LEDGER, failure=MultiTenancyOff("off")),
            ("False", "MultiTenancyDisabled"),
            ("Unknown", "MultiTenancyDisabled"),
        ),
        (
            Outcome(verdict=Verdict.WITHDRAWN, failure=MultiTenancyOff("off")),
            ("False", "MultiTenancyDisabled"),
            ("Unknown", "MultiTenancyDisabled"),
        ),
        (
            Outcome(verdict=Verdict.NOT_WRITABLE, failure=CannotPersist("full")),
            ("True", "Available"),
            ("False", "QuotaPolicyNotWritable"),
        ),
        (FAILED, ("False", "LedgerUnreachable"), ("Unknown", "LedgerUnreachable")),
        (Outcome(verdict=Verdict.RETAINED, retained=("beta",)), ("True", "Available"), ("True", "Writable")),
        (CONVERGED, ("True", "Available"), ("True", "Writable")),
    ],
)
def test_every_outcome_says_both_conditions_about_the_ledger(
    outcome: Outcome, ledger: tuple[str, str], policy: tuple[str, str]
) -> None:
    conditions = said(served(Findings(outcome=outcome)))
    assert conditions["QuotaLedgerAvailable"] == ledger
    assert conditions["QuotaPolicyWritable"] == policy


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        (Findings(outcome=FAILED, blind="no answer"), None),
        (Findings(outcome=CONVERGED, scrape_tried=True, blind="cut off"), ("False", "CapacityNotObserved")),
        (Findings(outcome=CONVERGED, scrape_tried=True, scrape=Scrape(tenants={})), ("False", "CapacityNotObserved")),
        (
            Findings(outcome=CONVERGED, scrape_tried=True, scrape=Scrape(tenants={}, total_capacity=5)),
            ("False", "CapacityNotObserved"),
        ),
        (
            Findings(outcome=CONVERGED, scrape_tried=True, scrape=Scrape(tenants={}, allocatable=0)),
            ("False", "NothingToAllocate"),
        ),
        (SERVED, ("True", "Allocatable")),
        (
            Findings(outcome=DECLARED_OFF, scrape_tried=True, scrape=Scrape(tenants={}, total_capacity=5)),
            ("True", "Allocatable"),
        ),
        (
            Findings(outcome=DECLARED_OFF, scrape_tried=True, scrape=Scrape(tenants={}, total_capacity=0)),
            ("False", "NothingToAllocate"),
        ),
        (
            Findings(
                outcome=DECLARED_OFF, scrape_tried=True, scrape=Scrape(tenants={}, total_capacity=5, allocatable=0)
            ),
            ("False", "NothingToAllocate"),
        ),
    ],
)
def test_capacity_is_told_by_its_gauge_and_only_if_it_was_asked_for(
    findings: Findings, told: tuple[str, str] | None
) -> None:
    assert said(served(findings)).get("CapacityAllocatable") == told


def test_an_axis_that_was_not_reached_keeps_what_it_said() -> None:
    stored = condition("CapacityAllocatable", "True", "Allocatable")
    changes = served(Findings(outcome=FAILED), one=pool(status={"conditions": [stored]}))
    assert stored in changes["conditions"]


def test_nothing_to_allocate_says_what_the_page_says() -> None:
    assert served(Findings(outcome=CONVERGED, scrape_tried=True, scrape=Scrape(tenants={}, allocatable=0)))[
        "phaseMessage"
    ] == (
        "the master reports nothing to allocate, so every reuse domain's effective quota is zero and no write can "
        "succeed. Its members have either not mounted their segments yet, or not finished remounting them after the "
        "master restarted"
    )


def test_a_total_that_cannot_be_read_holds_nothing_and_says_so() -> None:
    changes = served(SERVED, one=pool(total="1e101"))
    assert said(changes)["QuotaWithinTotal"] == ("False", "Oversubscribed")
    message = next(one["message"] for one in changes["conditions"] if one["type"] == "QuotaWithinTotal")
    assert "total cannot be read (spec.quota.total: '1e101'" in message


@pytest.mark.parametrize(
    ("total", "told"), [("16Mi", ("True", "WithinTotal")), ("16777215", ("False", "Oversubscribed"))]
)
def test_the_sum_is_compared_with_the_total_as_numbers(total: str, told: tuple[str, str]) -> None:
    changes = served(SERVED, one=pool(total=total))
    assert said(changes)["QuotaWithinTotal"] == told
    message = next(one["message"] for one in changes["conditions"] if one["type"] == "QuotaWithinTotal")
    assert "16Mi" in message
    assert changes["phase"] == "Ready"


@pytest.mark.parametrize(
    ("tenants", "domains", "usage"),
    [
        (None, [], None),
        (None, ["alpha"], None),
        ({}, ["alpha"], None),
        ({}, [], {"total": "0"}),
        ({"alpha": 3, "beta": 4, "foreign": 5}, ["alpha", "beta"], {"total": "7"}),
        ({"alpha": 3}, ["alpha", "beta"], {"total": "3"}),
        ({"alpha": 3, "beta": None}, ["alpha", "beta"], {"total": "3"}),
        ({"alpha": None}, ["alpha"], None),
    ],
)
def test_usage_is_the_sum_of_what_is_known_of_the_pools_domains(
    tenants: dict[str, int | None] | None, domains: list[str], usage: dict[str, str] | None
) -> None:
    scrape = Scrape(tenants={name: TenantFigures(usage=held) for name, held in (tenants or {}).items()})
    rows = [{"name": domain} for domain in domains]
    assert status.usage_of(rows, None if tenants is None else scrape) == usage


ALL_TRUE = [
    condition("BackendResolved", "True", "Resolved"),
    condition("QuotaLedgerAvailable", "True", "Available"),
    condition("QuotaPolicyWritable", "True", "Writable"),
    condition("CapacityAllocatable", "True", "Allocatable"),
]


def but(**changed: tuple[str, str] | None) -> list[dict[str, Any]]:
    """All axes true, but for these."""
    found = []
    for one in ALL_TRUE:
        if one["type"] not in changed:
            found.append(one)
        elif (told := changed[one["type"]]) is not None:
            found.append({**one, "status": told[0], "reason": told[1], "message": one["type"]})
    return found


OFF = {
    "QuotaLedgerAvailable": ("False", "MultiTenancyDisabled"),
    "QuotaPolicyWritable": ("Unknown", "MultiTenancyDisabled"),
}


@pytest.mark.parametrize(
    ("conditions", "phase", "words"),
    [
        (ALL_TRUE, "Ready", ""),
        (but(BackendResolved=("False", "X"), CapacityAllocatable=None), "Error", "BackendResolved"),
        (but(QuotaPolicyWritable=("Unknown", "X"), QuotaLedgerAvailable=("False", "X")), "Error", "QuotaLedger"),
        (but(QuotaPolicyWritable=("Unknown", "X"), QuotaLedgerAvailable=None), "Error", "QuotaPolicy"),
        (but(QuotaPolicyWritable=None, CapacityAllocatable=None), "Provisioning", "QuotaPolicyWritable"),
        (but(**OFF), "Ready", "single tenant"),
        (but(**OFF, CapacityAllocatable=("False", "X")), "Error", "CapacityAllocatable"),
        (but(**OFF, CapacityAllocatable=None), "Provisioning", "CapacityAllocatable"),
        ([*ALL_TRUE, condition("QuotaWithinTotal", "False", "Oversubscribed")], "Ready", ""),
    ],
)
def test_a_fault_comes_before_a_gap_and_a_store_without_tenants_is_neither(
    conditions: list[dict[str, Any]], phase: str, words: str
) -> None:
    one = pool(status={"conditions": conditions})
    after = {**one.status.manifest(), **unserved_status(one, None, [], NOW)}
    assert after["phase"] == phase
    assert words in (after.get("phaseMessage") or "")
    assert bool(words) == bool(after.get("phaseMessage"))


def test_a_pool_that_is_being_deleted_says_why_it_is_held() -> None:
    one = pool(deleting=True, status={"conditions": but(BackendResolved=("False", "X"))})
    changes = status.held_status(one, "HeldByBindings", "by team/one", NOW)
    assert (changes["phase"], changes["phaseMessage"]) == ("Deleting", "by team/one")
    assert said(changes)["Releasable"] == ("False", "HeldByBindings")


def test_a_status_that_says_all_that_is_not_written_and_times_stay() -> None:
    one = pool()
    changes = served(SERVED, one=one)
    assert changes["clientEndpoint"] == "client:50051"
    assert changes["usage"] == {"total": "1Mi"}
    assert [(row["name"], row["binding"]) for row in changes["domains"]] == [
        ("alpha", {"namespace": "team", "name": "one"})
    ]
    again = pool(status=changes)
    later = served_status(again, Snapshot.of([again], [binding()]), SERVED, "client:50051", NOW.replace(year=2027))
    assert later == {}


def test_a_pass_that_ended_early_takes_back_the_address_and_the_usage() -> None:
    one = pool(status={**written("alpha"), "clientEndpoint": "client:1", "usage": {"total": "1Mi"}})
    changes = unserved_status(one, Snapshot.of([one], [binding()]), [status.not_found("store")], NOW)
    assert changes["clientEndpoint"] is None
    assert changes["usage"] is None
    assert said(changes)["BackendResolved"] == ("False", "BackendNotFound")
    assert changes["phase"] == "Error"
    assert BEFORE not in str(changes)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1023, "1023"),
        (1024, "1Ki"),
        (16777216, "16Mi"),
        (6100806, "6100806"),
        (3 << 40, "3Ti"),
        (1 << 60, "1Ei"),
        ((1 << 63) - 1, "9223372036854775807"),
        (1 << 80, "1048576Ei"),
    ],
)
def test_amounts_are_exact_and_as_short_as_binary_suffixes_make_them(amount: int, text: str) -> None:
    assert binary(amount) == text


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "0"), (20, ", 19"), (21, ", 19 and 1 more")])
def test_names_beyond_the_twentieth_are_counted(count: int, text: str) -> None:
    assert listed(range(count)).endswith(text)
