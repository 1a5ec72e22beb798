"""All informers of a process: one per kind and selection, shared by whoever asks for it.

Informers asked for before the cache runs are started with it; those asked for later start at once. Questions by kind go
to that kind's only informer, or to the one without a selection if there are several; a question that cannot be answered
from what is being followed is an error of the program and says so, rather than looking like an empty cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from inferencecache.kube.client import Client, Labels
from inferencecache.kube.errors import KubeError
from inferencecache.kube.informer import Informer
from inferencecache.kube.reflector import DEFAULT_TIMING, Timing
from inferencecache.kube.resource import K, Key, Kind
from inferencecache.kube.store import IndexFunction


class CacheNotSynced(KubeError):
    """Some informer had no complete content in time; the message names each, and why if that is known."""


class _Selection(NamedTuple):
    kind: type[Kind]
    namespace: str
    labels: str
    fields: str


class Cache:
    """Shared informers, and questions to them by kind."""

    def __init__(self, client: Client, *, timing: Timing = DEFAULT_TIMING) -> None:
        self._client = client
        self._timing = timing
        self._informers: dict[_Selection, Informer[Any]] = {}
        self._transforms: dict[_Selection, Callable[[Any], Any] | None] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def informers(self) -> list[Informer[Any]]:
        """All informers, in the order in which they were asked for."""
        return list(self._informers.values())

    def informer(
        self,
        kind: type[K],
        *,
        namespace: str = "",
        labels: Labels = None,
        fields: str = "",
        transform: Callable[[K], K] | None = None,
        optional: bool = False,
        indexes: Mapping[str, IndexFunction] | None = None,
    ) -> Informer[K]:
        """The informer of a kind and selection; made when first asked for, extended by `indexes` afterwards.

        Raises `ValueError` if it exists with another `transform`: its readers would not see what they asked for. It is
        optional only as long as everybody who asks says so.
        """
        selection = _Selection(kind, namespace, _normal(labels), fields)
        informer = self._informers.get(selection)
        if informer is None:
            informer = Informer(
                self._client,
                kind,
                namespace=namespace,
                labels=selection.labels,
                fields=fields,
                transform=transform,
                optional=optional,
                indexes=indexes,
                timing=self._timing,
            )
            self._informers[selection] = informer
            self._transforms[selection] = transform
            if self._group is not None:
                self._group.create_task(informer.run())
            return informer
        if transform is not None and transform is not self._transforms[selection]:
            raise ValueError(
                f"the informer of {kind.__name__} exists with another transform; give its kind another view"
            )
        if not optional:
            informer.require()
        for name, function in (indexes or {}).items():
            informer.add_index(name, function)
        return informer

    def get(self, kind: type[K], key: Key) -> K | None:
        """The object of that name, or `None`. Raises `LookupError` if nobody follows the kind."""
        return self._of(kind).get(key)

    def by_index(self, kind: type[K], index: str, value: str) -> list[K]:
        """The objects that an index has under `value`. Raises `LookupError` for an unknown kind or index."""
        return self._of(kind).by_index(index, value)

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for informer in self._informers.values():
                    group.create_task(informer.run())
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def wait_synced(self, timeout: timedelta | None = None) -> None:  # noqa: ASYNC109 - names what was late
        """Wait until each informer has its first content. Raises `CacheNotSynced` after `timeout`."""
        try:
            async with asyncio.timeout(timeout.total_seconds() if timeout is not None else None):
                for informer in self.informers:
                    await informer.wait_synced()
        except TimeoutError:
            late = "; ".join(_complaint(i) for i in self.informers if not (i.synced or i.missing))
            raise CacheNotSynced(f"no complete list yet of {late}") from None

    def list(self, kind: type[K], namespace: str = "") -> list[K]:
        """All objects of a kind, or those of one namespace. Raises `LookupError` if nobody follows the kind."""
        return self._of(kind).list(namespace)

    def _of(self, kind: type[K]) -> Informer[K]:
        informer = self._informers.get(_Selection(kind, "", "", ""))
        if informer is not None:
            return informer
        found = [informer for selection, informer in self._informers.items() if selection.kind is kind]
        if len(found) == 1:
            return found[0]
        problem = f"has {len(found)} informers, all with selectors; ask one of them" if found else "has no informer"
        raise LookupError(f"{kind.__name__} {problem}: cache.informer({kind.__name__}) before it is read")


def _normal(labels: Labels) -> str:
    if not labels:
        return ""
    return labels if isinstance(labels, str) else ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _complaint(informer: Informer[Any]) -> str:
    why = f" ({informer.failure})" if informer.failure is not None else ""
    return f"{informer.kind.__name__}{why}"
