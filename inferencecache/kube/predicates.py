"""Which changes are worth waking a reconciler for.

A predicate is a plain function of a change; these are the usual ones and the ways to combine them. Those that compare
two states let creations and deletions pass: there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from inferencecache.kube.informer import Change

Predicate: TypeAlias = Callable[[Change[Any]], bool]


def generation_changed(change: Change[Any]) -> bool:
    """The spec changed: `metadata.generation` stays as it is when only metadata or status do.

    Use it only for kinds with a status subresource; the API server counts no generations for many built-in kinds.
    """
    return _differs(change, "generation")


def labels_changed(change: Change[Any]) -> bool:
    """The labels changed."""
    return _differs(change, "labels")


def annotations_changed(change: Change[Any]) -> bool:
    """The annotations changed."""
    return _differs(change, "annotations")


def created(change: Change[Any]) -> bool:
    """The object is new to us, which includes the first list."""
    return change.old is None and change.new is not None


def deleted(change: Change[Any]) -> bool:
    """The object is gone."""
    return change.new is None


def all_of(*predicates: Predicate) -> Predicate:
    """True when every one is; asks them in order and stops at the first that is not."""
    return lambda change: all(predicate(change) for predicate in predicates)


def any_of(*predicates: Predicate) -> Predicate:
    """True when at least one is; asks them in order and stops at the first that is."""
    return lambda change: any(predicate(change) for predicate in predicates)


def none_of(*predicates: Predicate) -> Predicate:
    """True when none is; `none_of(predicate)` is the opposite of a predicate."""
    return lambda change: not any(predicate(change) for predicate in predicates)


def _differs(change: Change[Any], field: str) -> bool:
    if change.old is None or change.new is None:
        return True
    return bool(getattr(change.old.metadata, field) != getattr(change.new.metadata, field))
