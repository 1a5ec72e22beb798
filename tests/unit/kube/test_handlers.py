"""Which keys a change wakes, and which changes are let through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from inferencecache.kube import predicates
from inferencecache.kube.handlers import for_controller, for_mapped, for_self
from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import ConfigMap, Deployment, Namespace, ObjectMeta, OwnerReference, Pod, PodMeta
from inferencecache.kube.resource import Key


def owned(*owners: OwnerReference) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="child", namespace="ns", owner_references=owners))


def owner(name: str, *, kind: str = "Deployment", api: str = "apps/v1", controller: bool = True) -> OwnerReference:
    return OwnerReference(api_version=api, kind=kind, name=name, controller=controller)


@pytest.mark.parametrize(
    ("owners", "names"),
    [
        ((owner("web"),), ["web"]),
        ((owner("web", api="apps/v1beta9"),), ["web"]),
        ((owner("web", controller=False),), []),
        ((owner("web", api="other.io/v1"),), []),
        ((owner("web", kind="StatefulSet"),), []),
        ((owner("x", kind="Job", api="batch/v1", controller=False), owner("web")), ["web"]),
        ((), []),
    ],
)
def test_only_the_controlling_owner_of_that_kind_and_group_is_woken(
    owners: tuple[OwnerReference, ...], names: list[str]
) -> None:
    assert [key.name for key in for_controller(Deployment)(Change(None, owned(*owners)))] == names


def test_a_cluster_scoped_owner_has_no_namespace() -> None:
    change = Change(None, owned(owner("ns", kind="Namespace", api="v1")))
    assert list(for_controller(Namespace)(change)) == [Key("", "ns")]


def test_an_object_that_changes_owners_wakes_both() -> None:
    change = Change(owned(owner("before")), owned(owner("after")))
    assert list(for_controller(Deployment)(change)) == [Key("ns", "before"), Key("ns", "after")]


def test_views_without_owner_references_wake_nobody() -> None:
    assert list(for_controller(Deployment)(Change(None, Pod(metadata=PodMeta(name="p"))))) == []


def test_mapped_keys_are_named_once() -> None:
    def mapper(obj: ConfigMap) -> Iterable[Key]:
        return [Key(obj.metadata.namespace, obj.data["for"])]

    old, new = ConfigMap(data={"for": "x"}), ConfigMap(data={"for": "x"})
    assert list(for_mapped(mapper)(Change(old, new))) == [Key("", "x")]
    assert list(for_self(Change(owned(), None))) == [Key("ns", "child")]


def change(old: dict[str, Any] | None, new: dict[str, Any] | None) -> Change[ConfigMap]:
    before, after = (None if meta is None else ConfigMap(metadata=ObjectMeta(**meta)) for meta in (old, new))
    return Change(before, after)


@pytest.mark.parametrize(
    ("predicate", "field", "one", "other"),
    [
        (predicates.generation_changed, "generation", 1, 2),
        (predicates.labels_changed, "labels", {"a": "1"}, {"a": "2"}),
        (predicates.annotations_changed, "annotations", {}, {"a": "2"}),
    ],
)
def test_comparing_predicates_look_at_one_field_and_let_births_and_deaths_pass(
    predicate: predicates.Predicate, field: str, one: Any, other: Any
) -> None:
    assert predicate(change({field: one}, {field: other}))
    assert not predicate(change({field: one, "resource_version": "1"}, {field: one, "resource_version": "2"}))
    assert predicate(change(None, {field: one}))
    assert predicate(change({field: one}, None))


def test_predicates_combine() -> None:
    born, gone, kept = change(None, {}), change({}, None), change({}, {})
    either = predicates.any_of(predicates.created, predicates.deleted)
    assert [either(c) for c in (born, gone, kept)] == [True, True, False]
    assert [predicates.none_of(either)(c) for c in (born, gone, kept)] == [False, False, True]
    both = predicates.all_of(predicates.created, predicates.none_of(predicates.deleted))
    assert [both(c) for c in (born, gone, kept)] == [True, False, False]
