"""Tells on engine Pods what admission decided about them (spec 05 §6, spec 03 §14, decision A12).

Admission cannot do it itself, because a Pod has no UID before it is stored. So there are two tellers. The first reads
the annotations that admission left and runs on the leader only. The second tells why a selected Pod was not wired,
which no annotation says: it runs on every replica, and each knows what it admitted itself.

Each Pod, by its UID, is told about once in the life of a process. Of the Pods that a process finds when it starts, only
those that have not started yet are told about: the process before it may not have come to them, whereas telling again
about every engine of the cluster would say nothing new.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, Protocol

from inferencecache.api import constants as c
from inferencecache.api.annotations import opts_out
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.kube.cache import Cache
from inferencecache.kube.client import Client
from inferencecache.kube.controller import Result
from inferencecache.kube.errors import NotFound
from inferencecache.kube.events import EventRecorder
from inferencecache.kube.informer import Change
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key

INJECTED: Final = "InjectedByCacheBackend"
SKIPPED: Final = "SkippedByOperator"
NOT_INJECTED: Final = "NotInjected"

_PENDING: Final = "Pending"
_REMEMBERED: Final = 20_000
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253


def owner_key(reference: str) -> Key | None:
    """The backend that an `injected-by` annotation names, or None if it is no reference."""
    namespace, slash, name = reference.partition("/")
    if not slash or not _LABEL.fullmatch(namespace) or len(name) > _LONGEST_NAME or not _SUBDOMAIN.fullmatch(name):
        return None
    return Key(namespace, name)


def was_skipped(pod: Pod) -> bool:
    """Whether the Pod opted out, and admission said so."""
    given = pod.metadata.annotations
    return (
        opts_out(given.get(c.ANNOTATION_SKIP_INJECT, ""))
        and given.get(c.ANNOTATION_INJECT_SKIPPED) == c.INJECT_SKIPPED_VALUE
    )


def is_annotated(change: Change[Pod]) -> bool:
    """A new Pod about which there is something to tell."""
    pod = change.new
    if change.old is not None or pod is None or (change.initial and pod.status.phase != _PENDING):
        return False
    return bool(pod.metadata.annotations.get(c.ANNOTATION_INJECTED_BY)) or was_skipped(pod)


class EnginePodReconciler:
    """Tells what the annotations of a Pod say, if they hold against the live backend."""

    def __init__(self, *, client: Client, cache: Cache, recorder: EventRecorder) -> None:
        self._client = client
        self._cache = cache
        self._recorder = recorder
        self._told: OrderedDict[str, None] = OrderedDict()

    async def reconcile(self, key: Key) -> Result:
        """Tell about one Pod. Raises if the backend could not be read for another reason than being gone."""
        pod = self._cache.get(Pod, key)
        if pod is None or pod.metadata.uid in self._told:
            return Result()
        reference = pod.metadata.annotations.get(c.ANNOTATION_INJECTED_BY, "")
        if not reference:
            if was_skipped(pod):
                note = f"not wired to any cache: {c.INJECT_SKIPPED_VALUE} ({c.ANNOTATION_SKIP_INJECT} is set)"
                self._recorder.event(pod, "Normal", SKIPPED, note)
                self._remember(pod)
            return Result()
        backend = await self._owner(pod, reference)
        if backend is not None:
            self._recorder.event(pod, "Normal", INJECTED, f"wired to CacheBackend {reference}", related=backend)
            self._remember(pod)
        return Result()

    async def _owner(self, pod: Pod, reference: str) -> CacheBackend | None:
        """The backend that wired the Pod; the UID tells it from a namesake (decision F12).

        The cache's word is enough for it. That it is another one, or gone, is only believed live: the cache may not
        have heard of a backend that was made together with its engines.
        """
        key = owner_key(reference)
        uid = pod.metadata.annotations.get(c.ANNOTATION_INJECTED_BY_UID)
        if key is None or not uid:
            return None
        known = self._cache.get(CacheBackend, key)
        if known is not None and known.metadata.uid == uid:
            return known
        try:
            backend = await self._client.get(CacheBackend, key)
        except NotFound:
            return None
        return backend if backend.metadata.uid == uid else None

    def _remember(self, pod: Pod) -> None:
        self._told[pod.metadata.uid] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)


class UnwiredNote(Protocol):
    """Why a Pod was admitted unwired."""

    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def backend(self) -> str: ...


class UnwiredNotes(Protocol):
    """What this replica's webhook remembers of Pods that a backend selects and that it did not wire."""

    def take(self, pod: Pod) -> UnwiredNote | None:
        """The note about this Pod, which is thereby forgotten."""


class UnwiredTeller:
    """A handler of Pod changes that tells why a Pod was not wired."""

    def __init__(self, notes: UnwiredNotes, recorder: EventRecorder) -> None:
        self._notes = notes
        self._recorder = recorder

    def __call__(self, change: Change[Pod]) -> None:
        """Tell, if the Pod is new and there is a note about it."""
        if change.old is not None or change.new is None or change.initial:
            return
        note = self._notes.take(change.new)
        if note is not None:
            text = f"not wired to CacheBackend {note.backend}: {note.reason}: {note.message}"
            self._recorder.event(change.new, "Warning", NOT_INJECTED, text)
