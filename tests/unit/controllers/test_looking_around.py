"""What a backend finds around it is what a search of its whole namespace would find, whatever changes meanwhile."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.controllers.cachebackend.observe import Surroundings
from inferencecache.controllers.cachebackend.rivals import Rivals
from inferencecache.controllers.cachebackend.selected import Selected
from inferencecache.kube.cache import Cache
from inferencecache.kube.informer import Informer
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from tests.unit.controllers.backends import backend

NOBODY: Any = None
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NAMESPACES = ("a", "b")
LABELS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
"""Few, so that selectors share labels, agree and disagree."""
PLACES = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from("klmn"))


def stored(namespace: str, name: str, labels: dict[str, str], version: int) -> CacheBackend:
    made = backend(name=name, engineSelector={"matchLabels": labels})
    metadata = made.metadata.model_copy(update={"namespace": namespace, "resource_version": str(version)})
    return made.model_copy(update={"metadata": metadata})


def pod(namespace: str, name: str, labels: dict[str, str], version: int) -> Pod:
    metadata = {"namespace": namespace, "name": name, "labels": labels, "resourceVersion": str(version), "uid": "u"}
    return msgspec.convert({"metadata": metadata}, Pod)


@given(st.lists(st.tuples(PLACES, st.none() | LABELS), max_size=20))
def test_rivals_are_the_backends_before_it_that_compete(
    steps: list[tuple[tuple[str, str], dict[str, str] | None]],
) -> None:
    """Against `competes_with`, asked of every backend; `None` deletes one."""
    informer: Informer[CacheBackend] = Informer(NOBODY, CacheBackend)
    rivals, versions, feed = Rivals(informer), itertools.count(1), _content(informer)
    for (namespace, name), labels in steps:
        if labels is None:
            feed.remove(Key(namespace, name))
        else:
            feed.put(stored(namespace, name, labels, next(versions)))
        for one in informer.list():
            siblings = informer.list(one.metadata.namespace)
            before = [other for other in siblings if other.metadata.name < one.metadata.name]
            assert rivals.of(one) == tuple(sorted(other.metadata.name for other in before if one.competes_with(other)))
    for one in informer.list():
        feed.remove(Key.of(one))
    assert rivals._groups == {}, "what is gone is forgotten"


@given(st.lists(st.tuples(PLACES, st.none() | LABELS, LABELS.filter(bool)), max_size=20))
def test_a_selector_finds_what_has_all_its_labels(
    steps: list[tuple[tuple[str, str], dict[str, str] | None, dict[str, str]]],
) -> None:
    informer: Informer[Pod] = Informer(NOBODY, Pod)
    selected, versions, feed = (
        Selected(informer, lambda one: one.metadata.labels),
        itertools.count(1),
        _content(informer),
    )
    for (namespace, name), labels, selector in steps:
        if labels is None:
            feed.remove(Key(namespace, name))
        else:
            feed.put(pod(namespace, name, labels, next(versions)))
        for place in NAMESPACES:
            wanted = [one for one in informer.list(place) if selector.items() <= one.metadata.labels.items()]
            found = selected.find(place, selector)
            assert sorted(one.metadata.name for one in found) == sorted(one.metadata.name for one in wanted)
            assert all(one is informer.get(Key.of(one)) for one in found)


def test_nothing_is_kept_for_a_selector_that_is_gone() -> None:
    informer: Informer[Pod] = Informer(NOBODY, Pod)
    selected = Selected(informer, lambda one: one.metadata.labels)
    _content(informer).put(pod("a", "k", {"x": "1", "y": "2"}, 1))
    assert len(selected) == 0, "what nobody asks for costs nothing"
    assert selected.find("a", {"x": "1", "y": "2"})
    selected.forget("a", {"x": "1", "y": "2"})
    assert len(selected) == 0


def test_a_look_goes_through_the_objects_of_the_rarest_pair_only() -> None:
    informer: Informer[Pod] = Informer(NOBODY, Pod)
    looked_at: list[str] = []

    def labels(one: Pod) -> dict[str, str]:
        looked_at.append(one.metadata.name)
        return dict(one.metadata.labels)

    selected, feed = Selected(informer, labels), _content(informer)
    for number in range(500):
        feed.put(pod("a", f"pod-{number}", {"app": "vllm", "model": f"m-{number % 100}"}, number + 1))
    selected.find("a", {"app": "vllm", "model": "m-7"})
    looked_at.clear()
    assert len(selected.find("a", {"app": "vllm", "model": "m-7"})) == 5
    assert len(looked_at) == 5


def test_a_selector_of_thousands_of_labels_goes_through_the_objects_until_one_label_is_nobodys() -> None:
    informer: Informer[Pod] = Informer(NOBODY, Pod)
    looked_at = 0

    def labels(one: Pod) -> dict[str, str]:
        nonlocal looked_at
        looked_at += 1
        return dict(one.metadata.labels)

    selected = Selected(informer, labels)
    for number in range(100):
        _content(informer).put(pod("a", f"pod-{number}", {"app": "vllm"}, number + 1))
    looked_at = 0
    assert selected.find("a", {"app": "vllm", **{f"label-{number}": "x" for number in range(5000)}}) == []
    assert looked_at <= 3 * 100
    assert len(selected) == 2


@pytest.mark.parametrize("after", [None, {"x": "2"}], ids=["gone", "changed"])
def test_a_pass_that_began_before_its_backend_went_or_changed_leaves_nothing_behind(
    after: dict[str, str] | None,
) -> None:
    around = Surroundings.of(Cache(NOBODY))
    feed = _content(around.backends)
    before = stored("a", "k", {"x": "1"}, 1)
    feed.put(before)
    assert around.observe(before, NOW).engines is not None
    assert (len(around.selected_pods), len(around.selected_deployments)) == (1, 1)
    if after is None:
        feed.remove(Key("a", "k"))
    else:
        feed.put(stored("a", "k", after, 2))
    around.observe(before, NOW)
    assert (len(around.selected_pods), len(around.selected_deployments)) == (0, 0)


def _content(informer: Any) -> Any:
    return informer._content
