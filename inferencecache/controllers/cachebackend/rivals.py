"""The backends that win Pods which another selects too: those before it by name (decisions A5, A11).

Two selectors can match one Pod if they ask no label for two values (`CacheBackend.competes_with`). Backends are kept by
the labels that they ask for. Against each such group a backend has to agree on the labels that both ask for, and those
that do are looked up by these values; the others of the namespace are never gone through. There are few groups, as
selectors of one namespace ask for the same few labels.

A backend that is being deleted still comes first: it wires nothing any more, and until it is gone nobody takes its
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.informer import Change, Informer

_Names: TypeAlias = dict[str, None]


class Rivals:
    """The backends of all namespaces, by what they select."""

    def __init__(self, backends: Informer[CacheBackend]) -> None:
        self._groups: dict[str, dict[frozenset[str], _Group]] = {}
        backends.on_change(self._told)

    def of(self, backend: CacheBackend) -> tuple[str, ...]:
        """Names of the backends that come before this one for some Pod, in order."""
        groups = self._groups.get(backend.metadata.namespace, {}) if backend.selector else {}
        found = (name for group in groups.values() for name in group.agreeing(backend.selector))
        return tuple(sorted(name for name in found if name < backend.metadata.name))

    def _told(self, change: Change[CacheBackend]) -> None:
        before = change.old.selector if change.old is not None else {}
        after = change.new.selector if change.new is not None else {}
        if before != after:
            namespace, name = change.key
            groups = self._groups.setdefault(namespace, {})
            if before:
                labels = frozenset(before)
                groups[labels].remove(name)
                if not groups[labels].selectors:
                    del groups[labels]
            if after:
                groups.setdefault(frozenset(after), _Group(frozenset(after))).add(name, after)
            if not groups:
                del self._groups[namespace]


class _Group:
    """Backends that ask for the same labels."""

    def __init__(self, labels: frozenset[str]) -> None:
        self.selectors: dict[str, Mapping[str, str]] = {}
        self._labels = labels
        self._by_values: dict[tuple[str, ...], dict[tuple[str, ...], _Names]] = {}
        """For some of the labels: names by the values of these; made when first asked for."""

    def add(self, name: str, selector: Mapping[str, str]) -> None:
        self.selectors[name] = selector
        for some, names in self._by_values.items():
            names.setdefault(_values(some, selector), {})[name] = None

    def remove(self, name: str) -> None:
        selector = self.selectors.pop(name)
        for some, names in self._by_values.items():
            values = _values(some, selector)
            del names[values][name]
            if not names[values]:
                del names[values]

    def agreeing(self, selector: Mapping[str, str]) -> _Names:
        """The names of those that ask no label for another value than `selector` does."""
        some = tuple(sorted(self._labels & selector.keys()))
        names = self._by_values.get(some)
        if names is None:
            names = self._by_values[some] = {}
            for name, theirs in self.selectors.items():
                names.setdefault(_values(some, theirs), {})[name] = None
        return names.get(_values(some, selector), {})


def _values(labels: tuple[str, ...], selector: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(selector[label] for label in labels)
