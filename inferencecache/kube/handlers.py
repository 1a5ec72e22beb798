"""From a change to the keys that must be looked at because of it.

A handler is a plain function. It sees both states of an update, so that an object that left one owner (or one
selector) for another wakes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import controller_of
from inferencecache.kube.resource import K, Key, Kind

Handler: TypeAlias = Callable[[Change[Any]], Iterable[Key]]
Mapper: TypeAlias = Callable[[K], Iterable[Key]]


def for_self(change: Change[Any]) -> Iterable[Key]:
    """The changed object itself."""
    return (change.key,)


def for_controller(owner: type[Kind]) -> Handler:
    """The object of kind `owner` that controls the changed one, by its owner reference; any API version counts."""
    kind, group, namespaced = owner.resource.kind, owner.resource.group, owner.resource.namespaced

    def keys(obj: Kind) -> Iterable[Key]:
        reference = controller_of(obj)
        if reference is not None and reference.kind == kind and _group(reference.api_version) == group:
            yield Key(obj.metadata.namespace if namespaced else "", reference.name)

    return for_mapped(keys)


def for_mapped(mapper: Mapper[Any]) -> Handler:
    """Whatever `mapper` names for the old and for the new state."""

    def handle(change: Change[Any]) -> Iterable[Key]:
        return dict.fromkeys(key for obj in (change.old, change.new) if obj is not None for key in mapper(obj))

    return handle


def _group(api_version: str) -> str:
    group, _, _ = api_version.rpartition("/")
    return group
