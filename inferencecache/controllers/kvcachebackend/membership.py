"""The rows of `status.members`: what the leader lists, joined with the Pods that lend it.

The leader is what places objects, so its listing says who is a member. It knows neither nodes nor media; they come from
the member Pod at the segment's address. Two Pods on the network of one host have the same address, and nothing tells
which of them a segment belongs to: then only what both agree on is said.

A listing that is too large is not published at all: cut off, it would look like a store that lost members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.api.quantity import binary
from inferencecache.controllers.kvcachebackend.pods import StorePod
from inferencecache.controllers.mooncake.admin import Segment

LARGEST_LISTING: Final = 512 << 10
"""Bytes of all rows. The API server takes objects of 1.5 MiB; the rest of one needs room, too."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is a member.

    Attributes:
        rows: one for each segment, by segment id.
        unlisted: names of Pods that are ready and lend nothing, as far as the leader knows.
        ambiguous: addresses that several ready Pods share.
    """

    rows: tuple[Row, ...]
    unlisted: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()

    @property
    def too_large(self) -> bool:
        """Whether the rows cannot be published."""
        return len(msgspec.json.encode(self.rows)) > LARGEST_LISTING


def join(backend: KVCacheBackend, segments: Iterable[Segment], pods: Iterable[StorePod]) -> Membership:
    """Join a listing with the Pods of a backend; leaders among them are passed over."""
    members = [pod for pod in pods if pod.group is not None and not pod.is_leaving]
    at: dict[str, list[StorePod]] = defaultdict(list)
    for pod in members:
        if pod.status.pod_ip:
            at[pod.status.pod_ip].append(pod)
    listed = {segment.segment_id: segment for segment in segments}
    hosts = {_host(segment.segment_name) for segment in listed.values()}
    rows = tuple(_row(backend, segment, at[_host(segment.segment_name)]) for _, segment in sorted(listed.items()))
    unlisted = sorted(pod.metadata.name for pod in members if pod.ready and pod.status.pod_ip not in hosts)
    ambiguous = sorted(host for host in hosts if sum(pod.ready for pod in at[host]) > 1)
    return Membership(rows, tuple(unlisted), tuple(ambiguous))


def _row(backend: KVCacheBackend, segment: Segment, pods: Sequence[StorePod]) -> Row:
    row = {
        "segmentID": segment.segment_id,
        "clientID": segment.client_id,
        "segmentName": segment.segment_name,
        "nodeName": _agreed(pod.spec.node_name for pod in pods),
        "medium": _agreed(_medium(backend, pod.group) for pod in pods),
        "protocol": segment.protocol,
        "capacity": binary(segment.size_bytes),
    }
    return {field: value for field, value in row.items() if value}


def _medium(backend: KVCacheBackend, group: int | None) -> str:
    groups = backend.managed.members if backend.managed is not None else ()
    return groups[group].medium if group is not None and group < len(groups) else ""


def _agreed(values: Iterable[str]) -> str:
    """The value if all are the same; empty if they differ, or if there is none."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""


def _host(segment_name: str) -> str:
    return segment_name.rpartition(":")[0].strip("[]") or segment_name
