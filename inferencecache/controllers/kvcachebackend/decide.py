"""From what a pass saw to the conditions and the phase of a backend. Pure: nothing is asked, and no clock is read.

Each condition is a walk through its rows; the first that holds speaks. A row that is a fault also says what it makes of
the phase, and the phase is that of the first such row in the order of `AXES`. Rollout and election move the phase only
where an object of the backend could not be written: while members are replaced, or spares wait, the store serves.

What hangs on the leader (who is mounted, and how much) is unknown while the leader does not serve: one fault is told
once, and an empty store is not to be read out of a silent one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from inferencecache.api import kvcache as k
from inferencecache.api.kvcache import listed
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend import reasons as r
from inferencecache.controllers.kvcachebackend.membership import Membership, join
from inferencecache.controllers.kvcachebackend.pods import StorePod, stuck
from inferencecache.controllers.kvcachebackend.reading import Reading
from inferencecache.controllers.mooncake.admin import Health, SegmentsNotServed
from inferencecache.controllers.mooncake.exposition import Scrape
from inferencecache.kube.conditions import ConditionStatus


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far a workload is. `fresh`: its controller has seen its present spec."""

    name: str
    wanted: int
    updated: int
    ready: int
    fresh: bool

    @property
    def complete(self) -> bool:
        """Whether all Pods that are wanted run the present template."""
        return self.fresh and self.updated >= self.wanted


@dataclass(frozen=True, slots=True)
class Trouble:
    """An object of the backend that could not be brought in line."""

    reason: str
    message: str


@dataclass(frozen=True)
class Facts:
    """What a pass saw of a backend.

    Attributes:
        leader: the leader's Deployment; None if there is none, or nothing is managed.
        spares_pending: more leaders are wanted than there may be for now.
        groups: the members' DaemonSets, by position; those that are not there are left out.
        pods: of leader and members.
        reading: what the leader said; None if there was nobody to ask.
        trouble: the first object that is not as wanted.
    """

    leader: Rollout | None = None
    spares_pending: bool = False
    groups: tuple[Rollout, ...] = ()
    pods: tuple[StorePod, ...] = ()
    reading: Reading | None = None
    trouble: Trouble | None = None

    @property
    def serving(self) -> bool:
        """Whether the leader serves."""
        return self.reading is not None and self.reading.serving

    @property
    def scrape(self) -> Scrape | None:
        """The leader's figures, if they mean anything."""
        found = self.reading.scrape if self.reading is not None and self.serving else None
        return found if isinstance(found, Scrape) else None


@dataclass(frozen=True, slots=True)
class Claim:
    """One condition, and what it makes of the phase; empty: nothing."""

    status: ConditionStatus
    reason: str
    message: str
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes; both None if they were not observed."""

    total: int | None = None
    used: int | None = None


class Verdict:
    """What is to be said about a backend, seeing these facts."""

    def __init__(self, backend: KVCacheBackend, facts: Facts) -> None:
        self._backend = backend
        self._facts = facts

    @cached_property
    def claims(self) -> dict[str, Claim | None]:
        """All conditions by type; None for one that has no place on this backend."""
        return {
            k.LEADER_AVAILABLE: _leader_available(self._backend, self._facts),
            k.MEMBERS_MOUNTED: _members_mounted(self._backend, self._facts, self.membership, self.capacity),
            k.CAPACITY_OBSERVED: _capacity_observed(self._facts, self.capacity),
            k.DELETABLE: _deletable(self._backend),
            k.ROLLOUT_COMPLETE: _rollout_complete(self._backend, self._facts),
            k.ELECTION_OBSERVED: _election_observed(self._backend, self._facts),
        }

    @property
    def phase(self) -> tuple[str, str]:
        """Phase and message."""
        for axis in AXES:
            claim = self.claims[axis]
            if claim is not None and claim.phase:
                return claim.phase, claim.message
        return k.PHASE_READY, ""

    @cached_property
    def membership(self) -> Membership | None:
        """Who is a member, as far as it is known; None if the last known members stand."""
        reading = self._facts.reading
        if reading is None or not reading.serving:
            return None
        if isinstance(reading.segments, SegmentsNotServed):
            return Membership(())
        if isinstance(reading.segments, Exception):
            return None
        return join(self._backend, reading.segments, self._facts.pods)

    @cached_property
    def capacity(self) -> Capacity:
        """Of memory, and of disks where there are or may be some."""
        scrape, managed = self._facts.scrape, self._backend.managed
        if scrape is None:
            return Capacity()
        total, used = scrape.total_capacity, scrape.allocated
        if managed is None or managed.has_disk_tier:
            total, used = _sum(total, scrape.file_capacity), _sum(used, scrape.file_allocated)
        return Capacity(total, used) if total is not None and used is not None else Capacity()


AXES: Final = (k.ROLLOUT_COMPLETE, k.LEADER_AVAILABLE, k.MEMBERS_MOUNTED, k.CAPACITY_OBSERVED)
"""The conditions that may move the phase, in order."""


def _leader_available(backend: KVCacheBackend, facts: Facts) -> Claim:
    reading = facts.reading
    if backend.managed is not None and (facts.leader is None or not facts.leader.ready):
        why = stuck(pod for pod in facts.pods if pod.is_leader)
        if why:
            return Claim("False", r.LEADER_NOT_STARTING, f"no leader can start: {why}", k.PHASE_ERROR)
        return Claim("False", r.LEADER_STARTING, "no leader is ready yet", k.PHASE_PROVISIONING)
    if reading is None:
        return Claim("False", r.LEADER_STARTING, "the leader has no address yet", k.PHASE_PROVISIONING)
    if not isinstance(reading.health, Health):
        return Claim("False", r.LEADER_UNREACHABLE, f"the leader does not answer: {reading.health}", k.PHASE_ERROR)
    if not reading.serving:
        phase = k.PHASE_PROVISIONING if backend.managed is not None else k.PHASE_ERROR
        return Claim("False", r.LEADER_NOT_SERVING, "the leader answers, but does not serve", phase)
    return Claim("True", r.LEADER_SERVING, "the leader serves")


def _members_mounted(backend: KVCacheBackend, facts: Facts, membership: Membership | None, capacity: Capacity) -> Claim:
    reading = facts.reading
    if reading is None or not reading.serving:
        return Claim("Unknown", r.LEADER_NOT_SERVING, "the members are not known while no leader serves")
    members = [pod for pod in facts.pods if pod.group is not None and not pod.is_leaving]
    if why := stuck(members):
        return Claim("False", r.MEMBER_NOT_STARTING, f"a member cannot start: {why}", k.PHASE_DEGRADED)
    if isinstance(reading.segments, SegmentsNotServed):
        if capacity.total == 0:
            return Claim("False", r.NO_SEGMENTS, "the leader reports no memory at all", k.PHASE_DEGRADED)
        text = "the leader is older than Mooncake 0.3.12 and does not list its segments"
        return Claim("Unknown", r.SEGMENT_LISTING_NOT_SERVED, text)
    if membership is None:
        return Claim(
            "False", r.LISTING_FAILED, f"the segments could not be listed: {reading.segments}", k.PHASE_DEGRADED
        )
    if membership.too_large:
        text = f"the {len(membership.rows)} segments are more than a status can carry; status.members is out of date"
        return Claim("False", r.LISTING_TOO_LARGE, text, k.PHASE_DEGRADED)
    if membership.ambiguous:
        text = (
            f"several ready members share the address {listed(membership.ambiguous)}, so their segments cannot be told "
            "apart; give groups on the host's network nodes of their own"
        )
        return Claim("False", r.AMBIGUOUS_MEMBER_IDENTITY, text, k.PHASE_DEGRADED)
    if membership.unlisted:
        text = f"ready members that lend nothing, as far as the leader knows: Pods {listed(membership.unlisted)}"
        return Claim("False", r.MEMBERS_NOT_LISTED, text, k.PHASE_DEGRADED)
    if not membership.rows:
        return _no_segments(backend, members)
    return Claim("True", r.MOUNTED, f"{len(membership.rows)} segments are mounted")


def _no_segments(backend: KVCacheBackend, members: list[StorePod]) -> Claim:
    if backend.managed is None:
        return Claim("False", r.NO_SEGMENTS, "no segment is mounted, so nothing can be stored", k.PHASE_DEGRADED)
    if members:
        text = f"no segment is mounted yet; {len(members)} members are starting"
        return Claim("False", r.NO_SEGMENTS, text, k.PHASE_PROVISIONING)
    return Claim("False", r.NO_MEMBERS, "no node matches the nodeSelector of a member group", k.PHASE_DEGRADED)


def _capacity_observed(facts: Facts, capacity: Capacity) -> Claim:
    reading = facts.reading
    if reading is None or not reading.serving:
        return Claim("Unknown", r.LEADER_NOT_SERVING, "the capacity is not known while no leader serves")
    if facts.scrape is None:
        return Claim("False", r.SCRAPE_FAILED, f"the metrics could not be read: {reading.scrape}", k.PHASE_DEGRADED)
    if capacity.total is None:
        return Claim("False", r.NOT_EXPORTED, "the leader's metrics do not tell its capacity", k.PHASE_DEGRADED)
    return Claim("True", r.OBSERVED, "the capacity is what the leader reports")


def _deletable(backend: KVCacheBackend) -> Claim:
    found = backend.status.used_by
    if found:
        return Claim("False", r.IN_USE, f"in use by {listed(found)}; delete them first")
    return Claim("True", r.NOT_IN_USE, "nobody uses the backend")


def _rollout_complete(backend: KVCacheBackend, facts: Facts) -> Claim | None:
    if facts.trouble is not None:
        return Claim("False", facts.trouble.reason, facts.trouble.message, k.PHASE_ERROR)
    if backend.managed is None:
        return None
    if facts.leader is None or not facts.leader.complete:
        return Claim("False", r.LEADER_ROLLING_OUT, f"the leader is not up to date: {_progress(facts.leader)}")
    if facts.spares_pending:
        return Claim("False", r.REPLICAS_PENDING, "spare leaders are added once the one that serves holds an election")
    behind = [group for group in facts.groups if not group.complete]
    if behind or len(facts.groups) < len(backend.managed.members):
        text = listed(_progress(group) for group in behind) or "not all member groups are there"
        return Claim("False", r.MEMBERS_ROLLING_OUT, f"members are not up to date: {text}")
    return Claim("True", r.ROLLED_OUT, "leader and members are as the spec wants them")


def _election_observed(backend: KVCacheBackend, facts: Facts) -> Claim | None:
    if backend.managed is None or not backend.managed.elects:
        return None
    elected = sorted(pod.metadata.name for pod in facts.pods if pod.is_elected and not pod.is_leaving)
    if not elected:
        return Claim("False", r.NO_LEADER_ELECTED, "no leader has said that it won the election")
    return Claim("True", r.LEADER_ELECTED, f"Pod {listed(elected)} won the election")


def _progress(rollout: Rollout | None) -> str:
    if rollout is None:
        return "its Deployment does not exist yet"
    return f"{rollout.updated}/{rollout.wanted} of {rollout.name}"


def _sum(memory: int | None, disks: int | None) -> int | None:
    return None if memory is None else memory + (disks or 0)
