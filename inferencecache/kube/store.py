"""The content of an informer: objects by key, and indexes that are kept in step with every change.

An index maps each object to terms ("the node it runs on") and answers which objects have a term. Terms are computed
once, when an object is stored, and remembered, so that taking it out never depends on computing them again. Objects
are immutable by contract, hence handed out without copying. All of it belongs to one event loop and needs no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias

from inferencecache.kube.resource import K, Key

IndexFunction: TypeAlias = Callable[[Any], Iterable[str]]


class Store(Generic[K]):
    """Objects by namespace and name, with named indexes."""

    def __init__(self) -> None:
        # Two levels instead of a Key per object: a namespace is listed without a scan, and 10,000 tuples are saved.
        self._namespaces: dict[str, dict[str, K]] = {}
        self._indexes: dict[str, _Index] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for objects in self._namespaces.values():
            yield from objects.values()

    def keys(self) -> Iterator[Key]:
        """The keys of all objects."""
        for namespace, objects in self._namespaces.items():
            for name in objects:
                yield Key(namespace, name)

    def get(self, key: Key) -> K | None:
        """The object of that name, or `None`."""
        objects = self._namespaces.get(key.namespace)
        return None if objects is None else objects.get(key.name)

    def put(self, obj: K) -> K | None:
        """Store an object; returns the one it replaces. What an index function raises leaves the store as it was."""
        key = Key.of(obj)
        terms = [(index, index.terms_of(obj)) for index in self._indexes.values()]
        for index, words in terms:
            index.set(key, words)
        objects = self._namespaces.setdefault(key.namespace, {})
        old = objects.get(key.name)
        objects[key.name] = obj
        self._size += old is None
        return old

    def remove(self, key: Key) -> K | None:
        """Take an object out; returns it, or `None` if there was none."""
        objects = self._namespaces.get(key.namespace)
        old = None if objects is None else objects.pop(key.name, None)
        if objects is None or old is None:
            return None
        if not objects:
            del self._namespaces[key.namespace]
        for index in self._indexes.values():
            index.set(key, ())
        self._size -= 1
        return old

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Add an index over what is stored and will be.

        The same function may be added again under its name; another one raises `ValueError`.
        """
        known = self._indexes.get(name)
        if known is not None:
            if known.function is not function:
                raise ValueError(f"index {name!r} exists with another function; choose another name")
            return
        index = _Index(function)
        for obj in self:
            index.set(Key.of(obj), index.terms_of(obj))
        self._indexes[name] = index

    def by_index(self, name: str, term: str) -> list[K]:
        """The objects that have a term in an index. Raises `LookupError` for an index nobody added."""
        index = self._indexes.get(name)
        if index is None:
            raise LookupError(f"no index {name!r}; there are: {', '.join(sorted(self._indexes)) or 'none'}")
        return [self._namespaces[key.namespace][key.name] for key in index.keys_with(term)]

    def list(self, namespace: str = "") -> list[K]:
        """All objects, or those of one namespace, in the order in which they came."""
        return list(self._namespaces.get(namespace, {}).values()) if namespace else list(self)


class _Index:
    """Both directions of one index: the keys of a term, and the terms of a key that has any."""

    def __init__(self, function: IndexFunction) -> None:
        self.function = function
        self._keys: dict[str, dict[Key, None]] = {}  # an ordered set of keys per term
        self._terms: dict[Key, tuple[str, ...]] = {}

    def terms_of(self, obj: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.function(obj)))

    def keys_with(self, term: str) -> Iterable[Key]:
        return self._keys.get(term, ())

    def set(self, key: Key, terms: tuple[str, ...]) -> None:
        before = self._terms.get(key, ())
        if terms == before:
            return
        for term in before:
            keys = self._keys[term]
            del keys[key]
            if not keys:
                del self._keys[term]
        for term in terms:
            self._keys.setdefault(term, {})[key] = None
        if terms:
            self._terms[key] = terms
        else:
            self._terms.pop(key, None)
