"""Leader election over a Lease, compatible with client-go, so that replicas of either implementation can share one.

The holder writes the time of its last renewal; the others do not compare that time with their own clocks, which may
differ. Each notes *when it saw the record change*, on its own clock, and takes over once nothing has changed for the
lease's duration. Hence the two deadlines that make it safe:

    renewed ──── renew_deadline (10 s) ────▶ the holder stops acting ──── lease_duration (15 s) ────▶ another may act

The holder counts from the moment it *sent* its last successful renewal, which is earlier than anybody can have seen
it. `check` compares that with the clock at the very moment of each write (decision F14), so a process that slept
past its deadline holds its first write back, even before its own election task has woken up. For the same reason the
clock goes on while the machine is suspended, where the system has such a clock.
"""

from __future__ import annotations

import asyncio
import copy
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from inferencecache.kube.client import Client
from inferencecache.kube.errors import Conflict, KubeError, LeadershipLost, NotFound
from inferencecache.kube.kinds import Lease
from inferencecache.kube.metrics import LEADING
from inferencecache.kube.resource import Key, Manifest

_JITTER: Final = 1.2
_log = structlog.stdlib.get_logger(__name__)


def clock() -> float:
    """Seconds on a clock that never goes back and, on Linux, also counts while the machine is suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def _identity() -> str:
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, kw_only=True)
class LeaderElection:
    """Settings of one election. Raises `ValueError` when the durations cannot keep two leaders apart."""

    namespace: str
    name: str
    identity: str = field(default_factory=_identity)
    lease_duration: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    retry_period: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        if not self.namespace or not self.name:
            raise ValueError("leader election needs the namespace and the name of its Lease")
        if self.lease_duration <= self.renew_deadline:
            raise ValueError("leader election: the lease duration must be longer than the renew deadline")
        if self.renew_deadline <= self.retry_period * _JITTER:
            raise ValueError(f"leader election: the renew deadline must be longer than {_JITTER} retry periods")
        if self.lease_duration < timedelta(seconds=1):
            raise ValueError("leader election: a Lease counts whole seconds; its duration must be at least one")

    @property
    def key(self) -> Key:
        """The name of the Lease."""
        return Key(self.namespace, self.name)


class LeaderElector:
    """One candidate. Call `acquire`, then `hold` for as long as leadership is wanted, then `release`.

    `client` must not be guarded by this elector's own `check`.
    """

    def __init__(
        self,
        client: Client,
        settings: LeaderElection,
        *,
        clock: Callable[[], float] = clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._now = now
        self._lease: Manifest = {}
        self._stale = True  # whether somebody else may have written the Lease since we read or wrote it
        self._changed_at = 0.0  # when we saw the Lease's record change
        self._renewed_at: float | None = None  # when we sent the renewal that counts; None while not leading
        self._leading = LEADING.labels(settings.name)
        self._leading.set(0)

    @property
    def is_leader(self) -> bool:
        """Whether writing is allowed at this moment."""
        return self._renewed_at is not None and self._clock() <= self._renewed_at + self._deadline

    @property
    def holder(self) -> str:
        """Who held the Lease when we last looked; empty if nobody did."""
        return str(self._spec.get("holderIdentity") or "")

    def check(self) -> None:
        """Raise `LeadershipLost` unless writing is allowed at this moment; see `Client.guarded`."""
        if not self.is_leader:
            raise LeadershipLost(
                f"{self._settings.identity} does not hold Lease {self._settings.key} (any more); the write is held back"
            )

    # ------------------------------------------------------------------------------------------------------- phases

    async def acquire(self) -> None:
        """Wait until we lead. Errors of the API server are logged and tried again."""
        seen = ""
        while not await self._attempt():
            if self.holder != seen:
                seen = self.holder
                _log.info("waiting for leadership", lease=str(self._settings.key), holder=seen)
            await asyncio.sleep(self._retry * random.uniform(1.0, _JITTER))
        self._leading.set(1)
        _log.info("leading", lease=str(self._settings.key), identity=self._settings.identity)

    async def hold(self) -> None:
        """Renew until cancelled. Raises `LeadershipLost` no later than the renew deadline after the last renewal."""
        try:
            while True:
                await asyncio.sleep(self._retry)
                self.check()
                if not await self._attempt() and not self._stale and self.holder != self._settings.identity:
                    self._renewed_at = None
                self.check()
        finally:
            self._leading.set(0)

    async def release(self) -> None:
        """Give leadership up, if we have it, so that another need not wait for the Lease to run out."""
        if not self.is_leader:
            return
        self._renewed_at = None
        now = self._timestamp()
        record = {**self._spec, "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
        try:
            async with asyncio.timeout(self._deadline / 2):
                await self._replace(record)
        except (KubeError, TimeoutError) as error:
            _log.warning(
                "the Lease could not be released; it runs out", lease=str(self._settings.key), error=str(error)
            )
        else:
            _log.info("leadership released", lease=str(self._settings.key))

    # ---------------------------------------------------------------------------------------------------- one attempt

    async def _attempt(self) -> bool:
        """Acquire or renew once, within half the renew deadline; true if it worked."""
        limit = self._deadline / 2
        if self._renewed_at is not None:
            limit = min(limit, max(0.0, self._renewed_at + self._deadline - self._clock()))
        try:
            async with asyncio.timeout(limit):
                return await self._acquire_or_renew()
        except (Conflict, NotFound):
            self._stale = True  # somebody was faster; the next attempt sees who
            return False
        except Exception as error:  # whatever it is, the deadline decides what becomes of it
            _log.warning(
                "cannot acquire or renew the Lease",
                lease=str(self._settings.key),
                error=str(error) or f"no answer within {limit:g} s",
            )
            return False

    async def _acquire_or_renew(self) -> bool:
        if self._stale or self._renewed_at is None:
            try:
                self._observe(await self._client.get_manifest(Lease.resource, self._settings.key))
            except NotFound:
                return await self._create()
        mine = self.holder == self._settings.identity
        if self.holder and not mine and not self._expired():
            return False
        sent = self._clock()
        now = self._timestamp()
        record = {
            **self._spec,
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": self._seconds,
            "renewTime": now,
        }
        if not mine:
            record["acquireTime"] = now
            record["leaseTransitions"] = int(self._spec.get("leaseTransitions") or 0) + 1
        await self._replace(record)
        self._renewed_at = sent
        return True

    async def _create(self) -> bool:
        sent = self._clock()
        now = self._timestamp()
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._settings.namespace, "name": self._settings.name},
            "spec": {
                "holderIdentity": self._settings.identity,
                "leaseDurationSeconds": self._seconds,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        self._observe(await self._client.create(lease))
        self._renewed_at = sent
        return True

    async def _replace(self, spec: dict[str, Any]) -> None:
        lease = copy.deepcopy(self._lease)  # labels, annotations and fields of later API versions stay
        lease["spec"] = spec
        self._observe(await self._client.replace(Lease.resource, self._settings.key, lease))

    def _observe(self, lease: Manifest) -> None:
        if lease.get("spec") != self._lease.get("spec") or not self._lease:
            self._changed_at = self._clock()
        self._lease = lease
        self._stale = False

    def _expired(self) -> bool:
        return self._clock() > self._changed_at + float(self._spec.get("leaseDurationSeconds") or 0)

    # ------------------------------------------------------------------------------------------------------- values

    @property
    def _spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self._lease.get("spec") or {}
        return spec

    @property
    def _deadline(self) -> float:
        return self._settings.renew_deadline.total_seconds()

    @property
    def _retry(self) -> float:
        return self._settings.retry_period.total_seconds()

    @property
    def _seconds(self) -> int:
        return int(self._settings.lease_duration.total_seconds())

    def _timestamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
