"""What a builder hears; the manager as it runs is tested against a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from inferencecache.kube.controller import Result
from inferencecache.kube.kinds import ConfigMap
from inferencecache.kube.manager import ControllerBuilder, Manager
from inferencecache.kube.resource import Key
from tests.unit.kube.scripted import Scripted, Thing


class Idle:
    """A reconciler with nothing to do."""

    async def reconcile(self, _: Key) -> Result:
        return Result()


def _primary(builder: ControllerBuilder, informer: Any) -> None:
    builder.watches_primary(Thing, informer=informer)


def _owned(builder: ControllerBuilder, informer: Any) -> None:
    builder.watches_primary(ConfigMap).owns(Thing, informer=informer)


def _mapped(builder: ControllerBuilder, informer: Any) -> None:
    builder.watches(Thing, lambda thing: [Key.of(thing)], informer=informer)


@pytest.mark.parametrize("watch", [_primary, _owned, _mapped])
async def test_an_informer_that_is_given_is_watched_though_it_has_no_objects_yet(watch: Any) -> None:
    manager = Manager(Scripted([], []).client)
    given = manager.cache.informer(Thing, labels={"app": "x"})
    assert not given  # an informer without objects is falsy, and must not be taken for none
    watch(manager.controller("idle", Idle()), given)
    assert [one for one in manager.cache.informers if one.kind is Thing] == [given]
