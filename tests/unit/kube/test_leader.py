"""An election never has two leaders at once, whatever the clocks, the network and the scheduler do."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferencecache.kube import leader as leader_module
from inferencecache.kube.errors import AlreadyExists, Conflict, LeadershipLost, NotFound, TransportError
from inferencecache.kube.leader import LeaderElection, LeaderElector

START = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now


class OneLease:
    """The API server's part: one Lease with optimistic concurrency, which can be cut off or slowed down."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.writes = 0

    def _answer(self) -> dict[str, Any]:
        return copy.deepcopy(self.lease or {})

    def _reach(self) -> None:
        if self.down:
            raise TransportError("no route")

    def _store(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.writes += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return self._answer()

    async def get_manifest(self, resource: Any, key: Any) -> dict[str, Any]:
        self._reach()
        if self.lease is None:
            raise NotFound("no lease", status=404)
        return self._answer()

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._reach()
        if self.lease is not None:
            raise AlreadyExists("there", status=409)
        return self._store(manifest)

    async def replace(self, resource: Any, key: Any, manifest: dict[str, Any]) -> dict[str, Any]:
        self._reach()
        if self.lease is None or manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("changed", status=409)
        return self._store(manifest)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sleeping only yields; time is the tests' own."""
    real = asyncio.sleep

    async def sleep(_: float) -> None:
        await real(0)

    monkeypatch.setattr("inferencecache.kube.leader.asyncio.sleep", sleep)
    yield
    monkeypatch.undo()


def candidate(server: OneLease, name: str, clock: Clock, *, wall: datetime = START) -> LeaderElector:
    client: Any = server
    settings = LeaderElection(namespace="ns", name="lock", identity=name)
    return LeaderElector(client, settings, clock=clock, now=lambda: wall + timedelta(seconds=clock.now - 500))


async def test_the_record_is_the_one_client_go_writes() -> None:
    server, clock = OneLease(), Clock()
    first = candidate(server, "first", clock)
    await first.acquire()
    assert server.lease is not None
    assert server.lease["spec"] == {
        "holderIdentity": "first",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-02T03:04:05.000678Z",
        "renewTime": "2026-01-02T03:04:05.000678Z",
        "leaseTransitions": 0,
    }
    server.lease["metadata"]["labels"] = {"kept": "yes"}
    server.lease["spec"]["strategy"] = "OldestEmulationVersion"
    later = candidate(server, "second", clock, wall=START + timedelta(minutes=1))
    assert not await later._attempt()
    clock.now += 15.1
    await later.acquire()
    spec = server.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("second", 1)
    assert spec["acquireTime"] == spec["renewTime"] == "2026-01-02T03:05:20.100678Z"
    assert spec["strategy"] == "OldestEmulationVersion"
    assert server.lease["metadata"]["labels"] == {"kept": "yes"}
    await later.release()
    spec = server.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 1)


async def test_a_released_lease_is_taken_at_once_and_a_held_one_only_after_it_stood_still() -> None:
    server = OneLease()
    clock_1, clock_2 = Clock(), Clock()
    clock_2.now += 9_000_000
    first = candidate(server, "first", clock_1)
    # A wall clock that is a year ahead sees an ancient renewTime, which must not matter.
    second = candidate(server, "second", clock_2, wall=START + timedelta(days=365))
    await first.acquire()
    for _ in range(5):  # renewed again and again: never free
        assert not await second._attempt()
        clock_1.now += 9
        clock_2.now += 9
        assert await first._attempt()
        first.check()
    assert not await second._attempt()
    clock_2.now += 14.9
    assert not await second._attempt()
    await first.release()
    with pytest.raises(LeadershipLost):
        first.check()
    assert await second._attempt() or await second._attempt() or (_after(clock_2, 1.1) and await second._attempt())
    second.check()


def _after(clock: Clock, seconds: float) -> bool:
    clock.now += seconds
    return True


async def test_a_leader_that_slept_holds_its_write_back_before_its_election_task_has_run() -> None:
    server, clock = OneLease(), Clock()
    sleeper = candidate(server, "sleeper", clock)
    await sleeper.acquire()
    sleeper.check()
    clock.now += 10.01
    assert not sleeper.is_leader
    with pytest.raises(LeadershipLost, match="sleeper does not hold Lease ns/lock"):
        sleeper.check()


async def test_a_leader_cut_off_is_over_before_another_can_begin() -> None:
    server = OneLease()
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.acquire()
    assert not await second._attempt()
    partition: Any = OneLease()
    partition.down = True
    first._client = partition
    holding = asyncio.create_task(first.hold())
    while not holding.done():
        clock.now += 0.5
        await asyncio.sleep(0)
        assert not (first.is_leader and await second._attempt())
    with pytest.raises(LeadershipLost):
        await holding
    assert clock.now < 500 + 10 + 3
    while not await second._attempt():
        clock.now += 0.5
    assert clock.now >= 500 + 15


async def test_a_leader_that_sees_another_holder_stops_at_once() -> None:
    server, clock = OneLease(), Clock()
    first = candidate(server, "first", clock)
    await first.acquire()
    assert server.lease is not None
    usurped = copy.deepcopy(server.lease)
    usurped["spec"]["holderIdentity"] = "usurper"
    server._store(usurped)
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(first.hold(), 60)
    assert clock.now == 500.0
    assert server.lease["spec"]["holderIdentity"] == "usurper"
    await first.release()  # gives nothing up that it does not have
    assert server.lease["spec"]["holderIdentity"] == "usurper"


async def test_a_renewal_that_was_applied_but_not_answered_costs_nothing() -> None:
    server, clock = OneLease(), Clock()
    first = candidate(server, "first", clock)
    await first.acquire()
    assert server.lease is not None
    server._store(server.lease)  # our own PUT, whose answer was lost
    assert not await first._attempt()
    first.check()
    assert await first._attempt()


async def test_a_deleted_lease_is_made_anew_by_its_holder() -> None:
    server, clock = OneLease(), Clock()
    first = candidate(server, "first", clock)
    await first.acquire()
    server.lease = None
    assert not await first._attempt()
    assert await first._attempt()
    assert server.lease is not None


async def test_a_steady_leader_sends_one_request_per_renewal() -> None:
    server, clock = OneLease(), Clock()
    first = candidate(server, "first", clock)
    await first.acquire()
    reads = 0
    read = server.get_manifest

    async def counted(*args: Any) -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return await read(*args)

    server.get_manifest = counted  # type: ignore[method-assign,assignment]
    for _ in range(10):
        assert await first._attempt()
    assert reads == 0
    assert server.writes == 11


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": ""},
        {"lease_duration": timedelta(seconds=10)},
        {"renew_deadline": timedelta(seconds=2)},
        {
            "lease_duration": timedelta(seconds=0.9),
            "renew_deadline": timedelta(seconds=0.5),
            "retry_period": timedelta(seconds=0.1),
        },
    ],
)
def test_settings_that_cannot_keep_two_leaders_apart_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leader election"):
        LeaderElection(**({"namespace": "ns", "name": "lock"} | wrong))


def test_the_clock_counts_while_the_machine_sleeps_and_never_goes_back() -> None:
    before = leader_module.clock()
    assert leader_module.clock() >= before
