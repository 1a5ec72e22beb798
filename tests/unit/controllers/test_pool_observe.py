"""What wakes a pass, and what does not (spec 10 §3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool.observe import (
    Surroundings,
    binding_needs_a_pass,
    pool_needs_a_pass,
    pool_of,
)
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.kube.cache import Cache
from inferencecache.kube.informer import Change
from inferencecache.kube.resource import Key
from tests.unit.controllers.pools import binding, pool
from tests.unit.controllers.test_pool_snapshot import written


def changed(one: Any, **metadata: Any) -> Any:
    """The same object with other metadata."""
    return one.model_copy(update={"metadata": one.metadata.model_copy(update=metadata)})


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, pool(), True),
        (pool(), changed(pool(), generation=2), True),
        (pool(), pool(deleting=True), True),
        (pool(), pool(status={"phase": "Ready"}), False),
        (pool(), changed(pool(), finalizers=("other",), resource_version="2", labels={"a": "b"}), False),
        (pool(deleting=True), None, False),
    ],
)
def test_a_pool_wakes_by_what_its_owner_does(old: KVCachePool | None, new: KVCachePool | None, wakes: bool) -> None:
    assert pool_needs_a_pass(Change(old, new)) is wakes


@pytest.mark.parametrize(
    ("old", "new", "wakes"),
    [
        (None, binding(), True),
        (binding(), None, True),
        (binding(), changed(binding(), generation=2), True),
        (binding(), binding(deleting=True), True),
        (binding(), binding(used_by=["llm"]), True),
        (binding(used_by=["llm"]), binding(), True),
        (binding(), binding(status={"phase": "Ready", "usage": "1Mi"}), False),
        (binding(), changed(binding(), finalizers=("other",), resource_version="2"), False),
    ],
)
def test_a_binding_wakes_by_what_its_owner_and_its_users_do(
    old: KVCachePoolBinding | None, new: KVCachePoolBinding | None, wakes: bool
) -> None:
    assert binding_needs_a_pass(Change(old, new)) is wakes


def test_a_binding_wakes_the_pool_it_names() -> None:
    assert pool_of(binding(pool="missing")) == (Key("", "missing"),)
    assert pool_of(binding(pool="")) == ()


class Fed(Cache):
    """A cache that follows nobody; the test plays the API server."""

    def __init__(self) -> None:
        super().__init__(NOBODY)

    def put(self, obj: Any) -> None:
        """What a watch does with a new state, after the API server has numbered it."""
        informer, number = self.informer(type(obj), optional=True), next(VERSIONS)
        before = informer.get(Key.of(obj))
        same = before is not None and before.spec == obj.spec
        generation = before.metadata.generation if same else number
        informer._content.put(changed(obj, resource_version=str(number), generation=generation))

    def remove(self, obj: Any) -> None:
        """What a watch does with a deletion."""
        self.informer(type(obj), optional=True)._content.remove(Key.of(obj))


NOBODY: Any = None
VERSIONS = itertools.count(1)
POOL_TRAITS = ("there", "elsewhere", "deleting", "bare", "alpha", "Ready")
BINDING_TRAITS = ("there", "two", "deleting", "bare", "used", "beta", "Ready")
TRAITS = [(name, trait) for name in ("one", "two") for trait in POOL_TRAITS]
TRAITS += [(name, trait) for name in ("a", "b") for trait in BINDING_TRAITS]


def with_traits(name: str, traits: set[str]) -> Any:
    """A pool or a Binding that has these."""
    deleting = "deleting" in traits
    status = {"phase": "Ready"} if "Ready" in traits else {}
    bare = {"finalizers": ()} if "bare" in traits else {}
    if name in ("one", "two"):
        backend, domains = "other" if "elsewhere" in traits else "store", ["alpha"] if "alpha" in traits else []
        return changed(
            pool(name, backends=[backend], deleting=deleting, status={**written(*domains), **status}), **bare
        )
    used = ["llm"] if "used" in traits else []
    domain, of = "beta" if "beta" in traits else "alpha", "two" if "two" in traits else "one"
    return changed(binding(name, domain=domain, pool=of, deleting=deleting, used_by=used, status=status), **bare)


def claimed(seen: Snapshot) -> object:
    """Everything that a pass takes from a snapshot."""
    return (
        (seen.desired, seen.registered, seen.contested, seen.leaving),
        sorted((one.metadata.name, one.pool, one.releasing) for one in seen.all_bindings),
        [sorted(one.metadata.name for one in part) for part in (seen.publishers, seen.bare_publishers)],
        sorted(one.metadata.name for one in seen.bare_bindings),
    )


@given(st.lists(st.sampled_from(TRAITS), max_size=25))
def test_what_is_known_of_the_claims_is_what_would_be_gathered_now(steps: list[tuple[str, str]]) -> None:
    cache = Fed()
    around = Surroundings(NOBODY, cache)
    traits: dict[str, set[str]] = {name: {"there"} for name, _ in TRAITS}
    for name, present in traits.items():
        cache.put(with_traits(name, present))
    for name, trait in steps:
        around.snapshot("store")
        traits[name] ^= {trait}
        obj = with_traits(name, traits[name])
        (cache.put if "there" in traits[name] else cache.remove)(obj)
        assert claimed(around.snapshot("store")) == claimed(Surroundings(NOBODY, cache).snapshot("store"))


def test_figures_that_move_gather_nothing_anew() -> None:
    cache = Fed()
    around = Surroundings(NOBODY, cache)
    cache.put(pool("one"))
    cache.put(binding("a", pool="one"))
    known = around.snapshot("store")
    cache.put(pool("one", status={"phase": "Ready", "usage": {"total": "1Mi"}}))
    cache.put(binding("a", pool="one", status={"usage": "1Mi"}))
    assert around.snapshot("store") is known
