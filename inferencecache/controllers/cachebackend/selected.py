"""What selectors find in a namespace, without going through the namespace for each.

A namespace may have five hundred backends and as many Deployments, and each backend looks around twice a minute. So
objects are kept by those label pairs that somebody has asked for, and a look goes through the objects of the rarest
pair of its selector. Pairs that nobody asks for cost nothing: most Pods of a cluster are selected by no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeAlias

from inferencecache.kube.informer import Change, Informer
from inferencecache.kube.resource import K, Key

Labels: TypeAlias = Mapping[str, str]
_Pair: TypeAlias = tuple[str, str, str]
"""Namespace, label, value."""


class Selected(Generic[K]):
    """The objects of an informer, by the labels that are selected by; `labels` tells those of an object."""

    def __init__(self, informer: Informer[K], labels: Callable[[K], Labels]) -> None:
        self._informer = informer
        self._labels = labels
        self._known: dict[_Pair, dict[Key, None]] = {}
        informer.on_change(self._told)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, namespace: str, selector: Labels) -> list[K]:
        """The objects of a namespace that have all these labels, of which there is at least one."""
        rarest = None
        for pair in _pairs(namespace, selector):
            having = self._with(pair)
            if not having:
                return []  # the other pairs, of which a selector may have thousands, need not be asked for
            rarest = having if rarest is None or len(having) < len(rarest) else rarest
        found = (obj for key in rarest or () if (obj := self._informer.get(key)) is not None)
        return [obj for obj in found if selector.items() <= self._labels(obj).items()]

    def forget(self, namespace: str, selector: Labels) -> None:
        """Whoever selected by this does so no more; others that do are asked for anew."""
        for pair in _pairs(namespace, selector):
            self._known.pop(pair, None)

    def _with(self, pair: _Pair) -> dict[Key, None]:
        known = self._known.get(pair)
        if known is None:
            namespace, label, value = pair
            having = (obj for obj in self._informer.list(namespace) if self._labels(obj).get(label) == value)
            known = self._known[pair] = dict.fromkeys(map(Key.of, having))
        return known

    def _told(self, change: Change[K]) -> None:
        key = change.key
        before = self._labels(change.old) if change.old is not None else {}
        after = self._labels(change.new) if change.new is not None else {}
        if before == after:
            return
        for pair in _pairs(key.namespace, before):
            if pair in self._known:
                self._known[pair].pop(key, None)
        for pair in _pairs(key.namespace, after):
            if pair in self._known:
                self._known[pair][key] = None


def _pairs(namespace: str, labels: Labels) -> Iterator[_Pair]:
    return ((namespace, label, value) for label, value in labels.items())
