"""Replaces members that run with other settings than their group has now, one of each group at a time.

A DaemonSet that did this would go by its whole template, so that adding nodes to a group would restart every member it
has, and empty the cache. Here a member is as wanted if its Pod carries the fingerprint of everything but the choice of
nodes. Members on nodes that are not chosen any more are removed by the DaemonSet itself, whatever its strategy.

A member that does not work is replaced at once; one that works only while all others do, so that the store loses the
memory of one member of a group at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.kube.resource import Manifest

ANNOTATION_FINGERPRINT: Final = "note.gpustack.ai/template"

_CHOICE_OF_NODES: Final = frozenset({"nodeSelector", "tolerations"})


def with_fingerprint(template: dict[str, Any]) -> dict[str, Any]:
    """A Pod template that carries its fingerprint."""
    spec = {field: value for field, value in template["spec"].items() if field not in _CHOICE_OF_NODES}
    said = msgspec.json.encode([template["metadata"], spec], order="deterministic")
    marked = {ANNOTATION_FINGERPRINT: hashlib.sha256(said).hexdigest()[:16]}
    metadata = template["metadata"]
    return {**template, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **marked}}}


def fingerprint_of(daemon_set: Manifest) -> str:
    """The fingerprint that members of a group should carry."""
    annotations = daemon_set["spec"]["template"]["metadata"].get("annotations") or {}
    return str(annotations.get(ANNOTATION_FINGERPRINT, ""))


def up_to_date(pods: Iterable[StorePod], fingerprint: str) -> list[StorePod]:
    """Those of a group's Pods that are as wanted."""
    return [pod for pod in pods if not pod.is_leaving and _carries(pod, fingerprint)]


def next_to_replace(pods: Iterable[StorePod], fingerprint: str, nodes: int) -> StorePod | None:
    """The Pod of a group to delete now, if there is one.

    Args:
        pods: of the group, as a cache has them.
        fingerprint: what they should carry.
        nodes: how many there should be. With fewer, one that was deleted has no successor yet.
    """
    present = sorted((pod for pod in pods if not pod.is_leaving), key=lambda pod: pod.metadata.name)
    outdated = [pod for pod in present if not _carries(pod, fingerprint)]
    for pod in outdated:
        if not pod.ready:
            return pod
    if not outdated or len(present) < nodes or not all(pod.ready for pod in present):
        return None
    return outdated[0]


def _carries(pod: StorePod, fingerprint: str) -> bool:
    return pod.metadata.annotations.get(ANNOTATION_FINGERPRINT) == fingerprint
