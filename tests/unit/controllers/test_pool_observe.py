"""What wakes a pass, and what does not (spec 10 §3)."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.api.kvcachepool import KVCachePool
from inferencecache.api.kvcachepoolbinding import KVCachePoolBinding
from inferencecache.controllers.kvcachepool.observe import binding_needs_a_pass, pool_needs_a_pass, pool_of
from inferencecache.kube.informer import Change
from inferencecache.kube.resource import Key
from tests.unit.controllers.pools import binding, pool


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
