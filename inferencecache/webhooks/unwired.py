"""Remembers which Pods were matched but not wired, until the Pod exists and can carry an Event (decision A12).

While a Pod is admitted it has no UID and often no name, so nothing can be recorded on it yet. The webhook leaves a note
here; whoever sees the Pod appear takes it. A note belongs to the process that admitted the Pod: where another replica
narrates Events, the reason is still in the admission response and in the metric. Memory is bounded in number and time,
because a Pod that a later admission step refuses never appears.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

CAPACITY: Final = 4096
LIFETIME: Final = timedelta(minutes=2)


class PodMetadata(Protocol):
    """What a note is found by."""

    @property
    def name(self) -> str: ...
    @property
    def generate_name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class PodLike(Protocol):
    """A persisted Pod."""

    @property
    def metadata(self) -> PodMetadata: ...


@dataclass(frozen=True, slots=True)
class Note:
    """Why a Pod was not wired: a short `reason`, the whole `message`, and the backend as `namespace/name`."""

    reason: str
    message: str
    backend: str


@dataclass(frozen=True, slots=True)
class _Entry:
    due: float
    namespace: str
    name: str
    generate_name: str
    labels: Mapping[str, str]
    note: Note

    def fits(self, pod: PodMetadata) -> bool:
        same_name = pod.name == self.name if self.name else pod.generate_name == self.generate_name
        return same_name and self.labels.items() <= pod.labels.items()


class UnwiredMemo:
    """A bounded memory of notes; the oldest give way. Not safe across threads: one event loop owns it."""

    def __init__(
        self,
        *,
        capacity: int = CAPACITY,
        lifetime: timedelta = LIFETIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._lifetime = lifetime.total_seconds()
        self._clock = clock
        self._entries: dict[tuple[str, str], deque[_Entry]] = {}
        self._ages: deque[tuple[tuple[str, str], _Entry]] = deque()

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())

    def note(
        self,
        *,
        namespace: str,
        name: str,
        generate_name: str,
        labels: Mapping[str, str],
        reason: str,
        message: str,
        backend: str,
    ) -> None:
        """Remember why a Pod that a backend selects was admitted unwired. A Pod without any name leaves no note."""
        if not (name or generate_name):
            return
        self._forget_old()
        key = (namespace, generate_name or name)
        entry = _Entry(
            due=self._clock() + self._lifetime,
            namespace=namespace,
            name=name,
            generate_name=generate_name,
            labels=dict(labels),
            note=Note(reason=reason, message=message, backend=backend),
        )
        self._entries.setdefault(key, deque()).append(entry)
        self._ages.append((key, entry))

    def take(self, pod: PodLike) -> Note | None:
        """The note left for this Pod, which is thereby forgotten; None if there is none."""
        self._forget_old()
        meta = pod.metadata
        for key in {(meta.namespace, meta.generate_name or meta.name), (meta.namespace, meta.name)}:
            entries = self._entries.get(key, ())
            found = next((entry for entry in entries if entry.fits(meta)), None)
            if found is not None:
                self._drop(key, found)
                return found.note
        return None

    def _forget_old(self) -> None:
        now = self._clock()
        while self._ages and (len(self._ages) >= self._capacity or self._ages[0][1].due <= now):
            self._drop(*self._ages.popleft())

    def _drop(self, key: tuple[str, str], entry: _Entry) -> None:
        entries = self._entries.get(key)
        if entries is None:
            return
        kept = deque(other for other in entries if other is not entry)
        if kept:
            self._entries[key] = kept
        else:
            del self._entries[key]
