"""The store against a model that can be checked by eye: a dict of objects, scanned for every question."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.kube.kinds import ObjectMeta, View
from inferencecache.kube.resource import Key, Resource, ResourceType
from inferencecache.kube.store import Store


class Thing(View, frozen=True):
    resource: ClassVar[Resource] = ResourceType("test.dev", "v1", "Thing", "things")
    metadata: ObjectMeta = ObjectMeta()
    tags: tuple[str, ...] = ()


def thing(name: str, namespace: str = "a", *tags: str) -> Thing:
    return Thing(metadata=ObjectMeta(name=name, namespace=namespace), tags=tags)


def by_tag(obj: Thing) -> tuple[str, ...]:
    return obj.tags


def by_first_letter(obj: Thing) -> list[str]:
    return [tag[0] for tag in obj.tags]


NAMESPACES = ("", "a", "b")
NAMES = ("x", "y", "z")
TAGS = ("red", "rose", "blue", "black")

keys = st.builds(Key, st.sampled_from(NAMESPACES), st.sampled_from(NAMES))
things = st.builds(
    lambda key, tags: thing(key.name, key.namespace, *tags), keys, st.lists(st.sampled_from(TAGS), max_size=3)
)
steps = st.one_of(
    st.tuples(st.just("put"), things),
    st.tuples(st.just("remove"), keys),
    st.tuples(st.just("index"), st.just(None)),
)


@given(st.lists(steps, max_size=40))
def test_answers_like_a_scanned_dict(script: list[tuple[str, object]]) -> None:
    store: Store[Thing] = Store()
    store.add_index("tag", by_tag)
    model: dict[Key, Thing] = {}
    late = False
    for step, argument in script:
        if step == "put":
            assert isinstance(argument, Thing)
            assert store.put(argument) is model.get(Key.of(argument))
            model[Key.of(argument)] = argument
        elif step == "remove":
            assert isinstance(argument, Key)
            assert store.remove(argument) is model.pop(argument, None)
        else:
            store.add_index("letter", by_first_letter)
            late = True

        assert len(store) == len(model)
        assert set(store.keys()) == set(model)
        for namespace in NAMESPACES:
            expected = [obj for key, obj in model.items() if namespace in ("", key.namespace)]
            assert sorted(map(id, store.list(namespace))) == sorted(map(id, expected))
        for namespace in NAMESPACES:
            for name in NAMES:
                assert store.get(Key(namespace, name)) is model.get(Key(namespace, name))
        for tag in TAGS:
            expected = [obj for obj in model.values() if tag in obj.tags]
            assert sorted(map(id, store.by_index("tag", tag))) == sorted(map(id, expected))
        if late:
            for letter in "rb":
                expected = [obj for obj in model.values() if any(tag[0] == letter for tag in obj.tags)]
                assert sorted(map(id, store.by_index("letter", letter))) == sorted(map(id, expected))


def test_an_index_function_that_raises_leaves_the_store_as_it_was() -> None:
    store: Store[Thing] = Store()
    store.add_index("tag", by_tag)
    store.add_index("only", lambda obj: [{"red": "1"}[tag] for tag in obj.tags])
    good = thing("x", "a", "red")
    store.put(good)
    with pytest.raises(KeyError):
        store.put(thing("x", "a", "blue"))
    assert store.get(Key("a", "x")) is good
    assert store.by_index("tag", "red") == [good]
    assert store.by_index("tag", "blue") == []


def test_an_index_name_means_one_function() -> None:
    store: Store[Thing] = Store()
    store.add_index("tag", by_tag)
    store.add_index("tag", by_tag)
    with pytest.raises(ValueError, match="another function"):
        store.add_index("tag", by_first_letter)


def test_an_unknown_index_is_named() -> None:
    store: Store[Thing] = Store()
    store.add_index("tag", by_tag)
    with pytest.raises(LookupError, match="no index 'node'; there are: tag"):
        store.by_index("node", "n1")


def test_nothing_is_left_behind_by_what_is_gone() -> None:
    """Terms and namespaces that nothing uses any more take no memory."""
    store: Store[Thing] = Store()
    store.add_index("tag", by_tag)
    for number in range(100):
        store.put(thing("x", f"ns-{number}", f"tag-{number}"))
        store.remove(Key(f"ns-{number}", "x"))
    assert not store._namespaces
    assert not store._indexes["tag"]._keys
    assert not store._indexes["tag"]._terms
