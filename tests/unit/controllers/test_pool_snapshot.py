"""What is claimed on one master (spec 10 §6.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.kube.resource import Key
from tests.unit.controllers.pools import binding, pool

MIB = 1 << 20


def written(*domains: str) -> dict[str, Any]:
    """A pool's status that lists these domains."""
    rows = [
        {"name": one, "binding": {"namespace": "team", "name": one}, "blockSize": 64, "dtype": "bf"} for one in domains
    ]
    return {"domains": rows}


def bare(one: KVCachePoolBinding) -> KVCachePoolBinding:
    """The same without the finalizer."""
    return one.model_copy(update={"metadata": one.metadata.model_copy(update={"finalizers": ()})})


def test_bindings_of_every_pool_of_the_master_are_desired_in_the_order_of_their_domains() -> None:
    seen = Snapshot.of(
        [pool("one"), pool("two")],
        [binding("b", domain="beta", pool="two"), binding("a", domain="alpha", pool="one"), binding(pool="elsewhere")],
    )
    assert list(seen.desired.items()) == [("alpha", 16 * MIB), ("beta", 16 * MIB)]
    assert seen.registered == {"alpha", "beta"}
    assert seen.contested == frozenset()
    assert seen.leaving == {}


def test_a_fraction_of_a_byte_is_asked_for_as_a_whole_one() -> None:
    assert Snapshot.of([pool()], [binding(ceiling="1500m")]).desired == {"alpha": 2}


def test_a_releasing_binding_is_registered_and_not_desired_and_one_in_use_is_desired_still() -> None:
    leaving = binding("a", domain="alpha", ceiling="8Mi", deleting=True)
    held = binding("b", domain="beta", deleting=True, used_by=["llm"])
    seen = Snapshot.of([pool()], [leaving, held])
    assert seen.desired == {"beta": 16 * MIB}
    assert seen.registered == {"alpha", "beta"}
    assert seen.leaving == {"alpha": 8 * MIB}
    assert [user["name"] for user in seen.used_by(pool())] == ["b"]


def test_a_contested_domain_is_managed_for_nobody_in_whatever_pool_its_claimants_are() -> None:
    one, two = binding("a", pool="one"), binding("b", pool="two", deleting=True, used_by=["llm"])
    status = written("alpha")
    seen = Snapshot.of([pool("one", status=status), pool("two")], [one, two])
    assert seen.contested == {"alpha"}
    assert seen.desired == {}
    assert seen.registered == frozenset()
    assert seen.rivals(one) == (Key("team", "b"),)
    assert seen.rivals(two) == (Key("team", "a"),)
    assert seen.domains(seen.pools["one"], gone=frozenset()) == []


def test_a_releasing_binding_contests_nothing() -> None:
    seen = Snapshot.of([pool()], [binding("a", deleting=True), binding("b")])
    assert seen.contested == frozenset()
    assert seen.desired == {"alpha": 16 * MIB}
    assert seen.leaving == {}
    assert seen.rivals(seen.all_bindings[1]) == ()


def test_a_binding_that_came_to_a_pool_on_its_way_out_is_nobodys_concern_but_that_pools() -> None:
    late = bare(binding("late", pool="going"))
    before = binding("before", domain="beta", pool="going")
    seen = Snapshot.of([pool("going", deleting=True), pool("staying")], [late, before, binding("own", pool="staying")])
    assert seen.bindings["going"] == (before, late)
    assert seen.bare_bindings == ()
    assert seen.desired == {"alpha": 16 * MIB, "beta": 16 * MIB}
    assert seen.contested == frozenset()
    assert seen.rivals(late) == (Key("team", "own"),)
    alone = Snapshot.of([pool("going", deleting=True), pool("staying")], [late])
    assert (alone.desired, alone.registered, alone.leaving) == ({}, frozenset(), {})


def test_a_pool_of_several_backends_desires_nothing_and_keeps_its_domains_registered() -> None:
    seen = Snapshot.of([pool(backends=["store", "other"])], [binding()])
    assert seen.desired == {}
    assert seen.registered == {"alpha"}


def test_a_domain_whose_binding_was_forced_away_is_leaving_until_its_entry_is_gone() -> None:
    seen = Snapshot.of([pool(status=written("alpha", "beta"))], [binding("b", domain="beta")])
    assert seen.leaving == {"alpha": None}
    told = [
        [row["name"] for row in seen.domains(seen.pools["pool"], gone=gone)]
        for gone in (frozenset(), frozenset({"alpha"}))
    ]
    assert told == [["alpha", "beta"], ["beta"]]


@pytest.mark.parametrize(
    ("ledger", "created", "never"),
    [
        (("False", "2026-01-02T03:04:05Z"), "2026-01-02T03:04:06Z", True),
        (("False", "2026-01-02T03:04:05Z"), "2026-01-02T03:04:05Z", False),
        (("False", "2026-01-02T03:04:05Z"), "2026-01-01T00:00:00Z", False),
        (("True", "2026-01-02T03:04:05Z"), "2026-01-02T03:04:06Z", False),
        (None, "2026-01-02T03:04:06Z", False),
    ],
)
def test_a_binding_that_came_when_there_was_no_ledger_left_no_entry(
    ledger: tuple[str, str] | None, created: str, never: bool
) -> None:
    status: dict[str, Any] = {}
    if ledger is not None:
        said = {"type": "QuotaLedgerAvailable", "status": ledger[0], "lastTransitionTime": ledger[1]}
        status = {"conditions": [{**said, "reason": "MultiTenancyDisabled", "message": ""}]}
    leaving = binding(deleting=True)
    metadata = leaving.metadata.model_copy(update={"creation_timestamp": created})
    seen = Snapshot.of([pool(status=status)], [leaving.model_copy(update={"metadata": metadata})])
    assert seen.never_registered == ({"alpha"} if never else set())


def test_a_domain_that_moved_to_a_sibling_pool_is_listed_there_only() -> None:
    old, new = pool("old", status=written("alpha")), pool("new")
    seen = Snapshot.of([old, new], [binding(pool="new")])
    assert seen.domains(old, gone=frozenset()) == []
    assert [row["name"] for row in seen.domains(new, gone=frozenset())] == ["alpha"]


def test_the_sum_of_a_pool_leaves_out_what_is_releasing_contested_or_nameless() -> None:
    bindings = [
        binding("a", domain="alpha", ceiling="1Mi"),
        binding("b", domain="beta", ceiling="2Mi", deleting=True),
        binding("c", domain="gamma", ceiling="4Mi"),
        binding("d", domain="gamma", ceiling="8Mi"),
        binding("e", domain="", ceiling="16Mi"),
        binding("f", domain="zeta", ceiling="32Mi", pool="two"),
        binding("g", domain="eta", ceiling="64Mi", deleting=True, used_by=["llm"]),
    ]
    seen = Snapshot.of([pool(), pool("two")], bindings)
    assert seen.asked_of(seen.pools["pool"]) == (65 * MIB, ("gamma",))


def test_a_domain_whose_binding_cannot_be_read_is_left_as_it_is_and_stays_recorded() -> None:
    broken, fine = binding("a", ceiling="1e101"), binding("b", domain="beta")
    seen = Snapshot.of([pool(status=written("alpha"))], [broken, fine])
    assert (seen.contested, seen.set_aside) == ({"alpha"}, {"alpha"})
    assert seen.desired == {"beta": 16 * MIB}
    assert "alpha" not in seen.registered
    assert [row["name"] for row in seen.domains(pool(status=written("alpha")), gone=frozenset())] == ["alpha", "beta"]
    assert [row["name"] for row in seen.used_by(pool())] == ["a", "b"]
    assert seen.asked_of(pool()) == (16 * MIB, ("alpha",))
    assert seen.rivals(broken) == ()


@pytest.mark.parametrize(("domain", "ceiling"), [("alpha", "0"), ("alpha", "8Ei"), ("_own", "16Mi"), ("a\nb", "16Mi")])
def test_what_no_master_would_take_is_set_aside_and_spoils_no_document(domain: str, ceiling: str) -> None:
    odd, fine = binding("a", domain=domain, ceiling=ceiling), binding("b", domain="beta")
    seen = Snapshot.of([pool()], [odd, fine])
    assert (seen.desired, seen.set_aside) == ({"beta": 16 * MIB}, {domain})
    assert "mend or delete" in seen.trouble(odd)
    leaving = Snapshot.of([pool()], [binding("a", domain=domain, ceiling=ceiling, deleting=True), fine])
    assert leaving.leaving == {domain: None}


def test_a_binding_that_cannot_be_held_is_set_aside_and_its_entry_is_not_taken_out() -> None:
    unheld, fine = binding("a"), binding("b", domain="beta")
    seen = Snapshot.of([pool(status=written("alpha"))], [unheld, fine]).but({Key.of(unheld): "no finalizer"})
    for same in (seen, seen.without([]), seen.only(["pool"])):
        assert (same.desired, same.set_aside) == ({"beta": 16 * MIB}, {"alpha"})
        assert "alpha" not in same.registered
        assert (same.trouble(unheld), same.trouble(fine)) == ("no finalizer", "")


def test_an_unreadable_binding_that_releases_is_leaving_at_whatever_its_entry_has() -> None:
    seen = Snapshot.of([pool(status=written("alpha"))], [binding("a", ceiling="1e101", deleting=True)])
    assert seen.leaving == {"alpha": None}
    assert seen.missing == {}


def test_without_bindings_is_as_if_they_had_not_been() -> None:
    one, two = binding("a"), binding("b", domain="beta")
    assert Snapshot.of([pool()], [one, two]).without([one]).desired == {"beta": 16 * MIB}


BINDINGS = st.lists(
    st.builds(
        lambda number, domain, to, deleting, used: binding(
            f"b{number}", domain=domain, pool=to, deleting=deleting, used_by=["llm"] if used else []
        ),
        st.integers(0, 40),
        st.sampled_from(["alpha", "beta", "gamma"]),
        st.sampled_from(["one", "two"]),
        st.booleans(),
        st.booleans(),
    ),
    unique_by=lambda one: one.metadata.name,
    max_size=8,
)


@given(BINDINGS, st.sets(st.sampled_from(["alpha", "beta", "delta"])))
def test_every_domain_is_desired_contested_or_leaving_and_never_two_of_them(
    bindings: list[KVCachePoolBinding], recorded: set[str]
) -> None:
    seen = Snapshot.of([pool("one", status=written(*recorded)), pool("two")], bindings)
    kinds = [seen.desired.keys(), seen.contested, seen.leaving.keys()]
    everything = recorded | {one.spec.domain.name for one in bindings}
    assert sum(map(len, kinds)) == len(set().union(*kinds)) == len(everything)
    assert seen.registered == everything - seen.contested
    listed = [row["name"] for one in seen.pools.values() for row in seen.domains(one, gone=frozenset())]
    assert len(listed) == len(set(listed))
    assert {*seen.desired} <= set(listed)
