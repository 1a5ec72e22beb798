"""What a Pod's annotations are worth, whom it belongs to, and what admission would do with it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from inferencecache.adapters.pods import SUBSCRIBER
from inferencecache.adapters.registry import RuntimeRegistry, Settings
from inferencecache.api import constants as c
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.doctor.explain.drift import Change, changes
from inferencecache.doctor.explain.observe import Seen
from inferencecache.doctor.explain.pool import PoolExplanation, explain_pool
from inferencecache.kube.resource import Key, Manifest
from inferencecache.webhooks.injection import Injection, Outcome, inject, select
from inferencecache.webhooks.pods import PodView, view_of


class State(StrEnum):
    """What became of a Pod when it was admitted, as far as its annotations prove it."""

    WIRED = "wired"
    STALE = "stale"
    CLAIMED = "claimed"
    SKIPPED = "skipped"
    UNWIRED = "unwired"


_MEANING: Final = {
    State.WIRED: "wired to CacheBackend {by}",
    State.STALE: "wired to CacheBackend {by} as it was then; it is gone, or was made anew: recreate the Pod",
    State.CLAIMED: f"says that it was wired to {{by}}, without the {c.ANNOTATION_INJECTED_BY_UID} that admission gives",
    State.SKIPPED: f"not wired, because {c.ANNOTATION_SKIP_INJECT} is set",
    State.UNWIRED: "not wired",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A CacheBackend of the Pod's namespace. `lacking` are the labels that it asks for and the Pod does not have."""

    name: str
    selects: bool
    responsible: bool
    lacking: tuple[str, ...]
    remark: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One of admission's annotations, and whether the Pod has it by right."""

    name: str
    value: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything there is to say about a Pod.

    `now` is what admission would decide today, and `drift` what it would change in the Pod as it is; empty for a Pod
    that is as it would be.
    """

    pod: Key
    state: State
    summary: str
    candidates: tuple[Candidate, ...]
    marks: tuple[Mark, ...]
    now: Injection
    pool: PoolExplanation | None
    drift: tuple[Change, ...]
    told: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def explain(seen: Seen, runtimes: RuntimeRegistry) -> Explanation:
    """Explain a Pod. Raises `UnreadablePod` for one that the webhook could not read either."""
    view = view_of(seen.pod)
    key = Key(view.metadata.namespace, view.metadata.name)
    state = _state(view, seen.backends)
    base = _without_sidecar(seen.pod) if state is State.WIRED and seen.settings is not None else seen.pod
    now = inject(base, view, key.namespace, seen.backends, runtimes, seen.settings or Settings())
    by = view.metadata.annotations.get(c.ANNOTATION_INJECTED_BY, "")
    return Explanation(
        pod=key,
        state=state,
        summary=_MEANING[state].format(by=by),
        candidates=tuple(_candidates(view, key.namespace, seen.backends)),
        marks=tuple(_marks(view, state)),
        now=now,
        pool=explain_pool(seen.pod, view, seen.chain, dtype_owned=seen.dtype_owned) if seen.chain is not None else None,
        drift=tuple(changes(_comparable(seen.pod), _comparable(now.pod if now.outcome is Outcome.WIRED else seen.pod))),
        told=tuple((event.reason, event.message) for event in seen.events),
        notes=tuple(_notes(seen, state, now)),
    )


def _state(view: PodView, backends: tuple[CacheBackend, ...]) -> State:
    given = view.metadata.annotations
    by, uid = given.get(c.ANNOTATION_INJECTED_BY, ""), given.get(c.ANNOTATION_INJECTED_BY_UID, "")
    if by and not uid:
        return State.CLAIMED
    if by or uid:
        live = any(str(Key.of(one)) == by and one.metadata.uid == uid for one in backends)
        return State.WIRED if live else State.STALE
    return State.SKIPPED if view.opted_out else State.UNWIRED


def _candidates(view: PodView, namespace: str, backends: tuple[CacheBackend, ...]) -> Iterator[Candidate]:
    labels = view.metadata.labels
    chosen = select(labels, namespace, backends)
    for backend in sorted(backends, key=Key.of):
        name = backend.metadata.name
        lacking = tuple(f"{key}={value}" for key, value in sorted(backend.selector.items()) if labels.get(key) != value)
        if not backend.selector:
            remark = "it selects no Pods"
        elif lacking:
            remark = ""
        elif chosen is backend:
            remark = "it is being deleted" if backend.metadata.deletion_timestamp else ""
        else:
            remark = f"{chosen.metadata.name} comes first by name" if chosen is not None else ""
        yield Candidate(name, backend.selects(labels), chosen is backend, lacking, remark)


def _marks(view: PodView, state: State) -> Iterator[Mark]:
    given = view.metadata.annotations
    verdicts = {
        State.WIRED: "earned",
        State.STALE: "stale: no backend of that name and UID is there",
        State.CLAIMED: "not admission's: it always gives the UID, too",
    }
    for name in (c.ANNOTATION_INJECTED_BY, c.ANNOTATION_INJECTED_BY_UID):
        if given.get(name):
            yield Mark(name, given[name], verdicts[state])
    if c.ANNOTATION_SKIP_INJECT in given:
        yield Mark(c.ANNOTATION_SKIP_INJECT, given[c.ANNOTATION_SKIP_INJECT], _of_owner(view))
    if given.get(c.ANNOTATION_INJECT_SKIPPED):
        verdict = "earned" if state is State.SKIPPED else f"not earned: {c.ANNOTATION_SKIP_INJECT} is not set"
        yield Mark(c.ANNOTATION_INJECT_SKIPPED, given[c.ANNOTATION_INJECT_SKIPPED], verdict)


def _of_owner(view: PodView) -> str:
    return "the owner's: leave the Pod alone" if view.opted_out else "the owner's, and it counts as no"


def _without_sidecar(pod: Manifest) -> Manifest:
    """The Pod without its subscriber, which admission leaves as it is if it finds one."""
    spec: dict[str, Any] = pod.get("spec") or {}
    containers = [one for one in spec.get("containers") or () if one.get("name") != SUBSCRIBER]
    return {**pod, "spec": {**spec, "containers": containers}}


def _comparable(pod: Manifest) -> dict[str, Any]:
    """What admission may change, and what says that it did."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    ours = {name: value for name, value in annotations.items() if name.startswith(f"{c.GROUP}/")}
    return {"metadata": {"annotations": ours}, "spec": pod.get("spec") or {}}


def _notes(seen: Seen, state: State, now: Injection) -> Iterator[str]:
    if seen.not_asked:
        yield seen.not_asked
    elif state is State.UNWIRED and now.outcome is Outcome.WIRED:
        yield (
            "it would be wired now: the backend or its address came later than the Pod, or the webhook did not answer; "
            "recreate the Pod"
        )
    if seen.chain is None:
        yield "its KVCachePoolBinding, or what that leads to, cannot be read, so nothing is said of its pool"
    if seen.settings is None:
        yield (
            "with which flags the controller wires was not to be seen, so it is taken to add no sidecars, and those "
            "are left out of the comparison; give --kvevent-subscriber-image as the controller has it"
        )
