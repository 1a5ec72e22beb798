"""Checks 6 and 7: was every selected Pod wired, and was some Pod told that nothing matches it (spec 09 §1.2, §1.3).

A Pod is proven wired by the two annotations of admission, or, where those are missing, by the Event that tells of it.
The Event names a Pod by its UID and no backend, so what follows from it names none either. It proves nothing about a
Pod whose annotation says that it was wired to a backend which is gone: the Event is of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from inferencecache.api import constants as c
from inferencecache.api.annotations import opts_out
from inferencecache.api.cachebackend import CacheBackend
from inferencecache.doctor.checks.reads import api_failure, unread
from inferencecache.doctor.events import INJECTED, NO_MATCH, NOT_INJECTED
from inferencecache.doctor.findings import Check, Finding
from inferencecache.doctor.observe import Observations
from inferencecache.doctor.stamps import is_stamped
from inferencecache.kube.kinds import Pod
from inferencecache.kube.resource import Key
from inferencecache.webhooks.injection import select
from inferencecache.webhooks.kvcache_injection import wants_pool
from inferencecache.webhooks.kvcache_injection.keys import LABEL_INJECT

RECENT: Final = timedelta(hours=24)
"""How far back Events about orphans are believed."""

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


def check_injection(seen: Observations) -> Iterator[Finding]:
    """EP001 to EP003 for every Pod that a backend selects and that has not ended, in the order of their names."""
    if seen.pods is None:
        return
    yield from unread(Check.INJECTION, "Pod", seen.pods)
    for failure in seen.event_failures:
        yield api_failure(Check.INJECTION, "Event", failure)
    told: dict[str, dict[str, str]] = {}
    for event in seen.events:
        told.setdefault(event.pod.uid, {})[event.reason] = event.message
    nearby: dict[str, list[CacheBackend]] = {}
    for backend in seen.backends.items:
        nearby.setdefault(backend.metadata.namespace, []).append(backend)
    for pod in sorted(seen.pods.items, key=Key.of):
        namespace = pod.metadata.namespace
        owner = select(pod.metadata.labels, namespace, nearby.get(namespace, ()))
        if owner is not None and pod.status.phase not in _FINISHED:
            yield _judged(pod, owner, nearby[namespace], told.get(pod.metadata.uid, {}))


def _judged(pod: Pod, backend: CacheBackend, nearby: list[CacheBackend], told: dict[str, str]) -> Finding:
    check, resource, owner = Check.INJECTION, f"pod/{Key.of(pod)}", backend.metadata.name
    given = pod.metadata.annotations
    if is_stamped(pod, backend):
        return Finding("EP002", check, resource, f"wired to CacheBackend {owner}")
    if opts_out(given.get(c.ANNOTATION_SKIP_INJECT, "")):
        return Finding(
            "EP003", check, resource, f"CacheBackend {owner} selects it; {c.ANNOTATION_SKIP_INJECT} keeps it unwired"
        )
    if wants_pool(pod.metadata.labels) and not backend.events_only:
        return Finding(
            "EP003",
            check,
            resource,
            f"CacheBackend {owner} selects it; its label {LABEL_INJECT} asks for a pool instead",
        )
    uid = given.get(c.ANNOTATION_INJECTED_BY_UID, "")
    gone = bool(uid) and all(other.metadata.uid != uid for other in nearby)
    if INJECTED in told and not gone:
        return Finding("EP002", check, resource, f"wired at admission, as the Event {INJECTED} says")
    ask = f"`inferencecache explain pod {pod.metadata.name} -n {pod.metadata.namespace}` says what would happen now"
    if gone:
        why = f"is wired to {given.get(c.ANNOTATION_INJECTED_BY) or 'a backend'} as it was before it was made anew"
    elif NOT_INJECTED in told:
        why = f"was not wired: {told[NOT_INJECTED]}"
    else:
        why = "carries no proof that it was wired"
    return Finding(
        "EP001",
        check,
        resource,
        f"CacheBackend {owner} selects it, but it {why}; recreate the Pod, so that the webhook sees it again ({ask})",
    )


def check_orphans(seen: Observations) -> Iterator[Finding]:
    """OP001 for every Event of the last day that tells a Pod of no matching backend."""
    if seen.pods is None:  # else the audit has said so already
        for failure in seen.event_failures:
            yield api_failure(Check.ORPHANS, "Event", failure)
    for event in seen.events:
        if event.reason == NO_MATCH and (event.at is None or seen.now - event.at <= RECENT):
            yield Finding(
                "OP001",
                Check.ORPHANS,
                f"pod/{event.pod.namespace}/{event.pod.name}",
                f"LikelyOperatorMisconfiguration: {event.message}",
            )
