"""What the policy document lists at each moment (spec 10 §9, decision O6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.kvcachepool.documents import after_removal, tenants_of, to_start_from
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import LedgerEntry
from inferencecache.controllers.mooncake.policy import render
from tests.unit.controllers.pools import binding, pool
from tests.unit.controllers.test_pool_snapshot import MIB, written


def entry(tenant: str, requested: int, *, explicit: bool = True) -> LedgerEntry:
    """An entry of a ledger."""
    return LedgerEntry(tenant_id=tenant, requested_quota_bytes=requested, has_explicit_policy=explicit)


def ledger(**tenants: int) -> dict[str, LedgerEntry]:
    """A ledger of registered tenants."""
    return {name: entry(name, quota) for name, quota in tenants.items()}


SEEN = Snapshot.of(
    [pool(status=written("forced"))],
    [
        binding("a", domain="wanted", ceiling="1Mi"),
        binding("b", domain="contested", ceiling="2Mi"),
        binding("c", domain="contested", ceiling="4Mi"),
        binding("d", domain="leaving", ceiling="8Mi", deleting=True),
    ],
)


@pytest.mark.parametrize(
    ("entries", "listed", "document"),
    [
        pytest.param({}, {}, {"wanted": MIB}, id="an empty ledger: what is desired"),
        pytest.param(
            ledger(wanted=5, contested=6, leaving=7, forced=8, foreign=9),
            {},
            {"wanted": MIB, "contested": 6, "leaving": 8 * MIB, "forced": 8},
            id="contested as it stands, leaving at its ceiling, forced away as it stands, foreign not at all",
        ),
        pytest.param(
            {**ledger(forced=8), "leaving": entry("leaving", 7, explicit=False)},
            {"leaving": 1, "contested": 2},
            {"wanted": MIB, "forced": 8},
            id="what has no policy any more is gone, whatever the document lists",
        ),
        pytest.param(
            None,
            {"wanted": 5, "contested": 6, "leaving": 7, "forced": 8, "foreign": 9},
            {"wanted": MIB, "contested": 6, "leaving": 8 * MIB, "forced": 8},
            id="a ledger that cannot be read: nothing that is listed and was ours is lost",
        ),
        pytest.param(None, {}, {"wanted": MIB}, id="neither ledger nor document"),
    ],
)
def test_the_document_lists_before_the_ledger_is_written(
    entries: dict[str, LedgerEntry] | None, listed: dict[str, int], document: dict[str, int]
) -> None:
    assert to_start_from(SEEN, entries, listed) == document


def test_the_document_after_a_removal_lists_siblings_and_the_rest_of_the_ledger() -> None:
    entries = {**ledger(gone=1, contested=6, foreign=9, wanted=5), "default": entry("default", 3, explicit=False)}
    assert after_removal(SEEN, entries, frozenset({"gone"})) == {"wanted": MIB, "contested": 6, "foreign": 9}
    assert after_removal(SEEN, {}, frozenset({"wanted"})) == {}


@pytest.mark.parametrize(
    "document", ["", "[]", "tenants", "tenants: 1", "version: 1", "tenants: [{name: a}]", "tenants: [{quota: x}]", "{"]
)
def test_a_document_that_somebody_broke_lists_nothing(document: str) -> None:
    assert tenants_of(document) == {}


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(lambda name: name[0] != "_"),
        st.integers(1, 2**63 - 1),
    )
)
def test_a_document_lists_what_was_rendered(tenants: dict[str, int]) -> None:
    assert tenants_of(render(tenants.items())) == tenants
