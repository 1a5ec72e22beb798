from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.api.kvcache import Endpoint
from inferencecache.api.kvcachebackend import KVCacheBackend
from inferencecache.controllers.kvcachebackend.status import leaving, observed
from inferencecache.controllers.mooncake.admin import MasterFailure, SegmentsNotServed
from tests.unit.controllers.kvcachebackend.made import external, healthy, managed, reading, scrape, segment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
ENDPOINTS = (
    Endpoint(name="Client", address="dram-leader.pools.svc:50051"),
    Endpoint(name="Admin", address="dram-leader.pools.svc:9003"),
)
CLAIM = {"kind": "KVCachePool", "namespace": "", "name": "p"}


def written(before: KVCacheBackend, patch: dict[str, Any] | None) -> KVCacheBackend:
    """The object after a merge patch of its status."""
    status = {**before.status.manifest(), **(patch or {})}
    kept = {field: value for field, value in status.items() if value is not None}
    return before.model_copy(update={"status": type(before.status).model_validate(kept)})


@pytest.fixture
def ready() -> KVCacheBackend:
    backend = managed(status={"usedBy": [CLAIM]})
    return written(backend, observed(backend, healthy(), ENDPOINTS, NOW))


def test_a_first_pass_says_everything(ready: KVCacheBackend) -> None:
    status = ready.status.manifest()
    assert status["phase"] == "Ready"
    assert "phaseMessage" not in status
    assert [one["address"] for one in status["endpoints"]] == [one.address for one in ENDPOINTS]
    assert status["capacity"] == {"total": "1Gi", "used": "512Mi"}
    assert [row["nodeName"] for row in status["members"]] == ["n1"]
    assert len(status["conditions"]) == 6
    assert status["usedBy"] == [CLAIM], "the claims belong to the pools"


def test_a_pass_that_sees_the_same_writes_nothing(ready: KVCacheBackend) -> None:
    assert observed(ready, healthy(), ENDPOINTS, LATER) is None


def test_only_what_changed_is_written(ready: KVCacheBackend) -> None:
    patch = observed(ready, healthy(reading=reading(scrape=scrape(allocated=0))), ENDPOINTS, LATER)
    assert patch == {"capacity": {"total": "1Gi", "used": "0"}}


def test_figures_that_cannot_be_read_are_taken_away_and_members_that_cannot_be_listed_stay(
    ready: KVCacheBackend,
) -> None:
    silent = MasterFailure("no answer within 5 s")
    after = written(ready, observed(ready, healthy(reading=reading(scrape=silent, segments=silent)), ENDPOINTS, LATER))
    assert after.status.capacity is None
    assert after.status.members == ready.status.members
    assert after.status.phase == "Degraded"
    assert after.status.phase_message == "the segments could not be listed: no answer within 5 s"


def test_a_leader_that_starts_has_no_figures_and_its_members_stay(ready: KVCacheBackend) -> None:
    silent = reading(serving=False, scrape=scrape(total_capacity=0, allocated=0), segments=[])
    after = written(ready, observed(ready, healthy(reading=silent), ENDPOINTS, LATER))
    assert after.status.capacity is None
    assert after.status.members == ready.status.members
    assert after.status.phase == "Provisioning"


def test_a_listing_that_is_too_large_changes_no_member(ready: KVCacheBackend) -> None:
    many = [segment(number, host="10.0.0.1") for number in range(10_000)]
    patch = observed(ready, healthy(reading=reading(segments=many)), ENDPOINTS, LATER)
    assert patch is not None
    assert "members" not in patch


def test_a_listing_that_is_not_served_has_no_members(ready: KVCacheBackend) -> None:
    old = SegmentsNotServed("HTTP 404")
    after = written(ready, observed(ready, healthy(reading=reading(segments=old)), ENDPOINTS, LATER))
    assert after.status.members == ()


SILENT = MasterFailure("no answer within 5 s")
READINGS = st.none() | st.builds(
    lambda serving, figures, mounted: reading(serving=serving, scrape=figures, segments=mounted),
    st.booleans(),
    st.sampled_from([SILENT, scrape(), scrape(total_capacity=None), scrape(total_capacity=0, allocated=0)]),
    st.sampled_from([SILENT, SegmentsNotServed("HTTP 404"), [], [segment()], [segment(1), segment(2, host="h")]]),
)
BACKENDS = st.sampled_from([managed(), managed(leader={"electionBackend": "None"}), external()])
SIGHTS = st.tuples(BACKENDS, READINGS, st.sampled_from([(), ENDPOINTS]))


@given(st.lists(SIGHTS, min_size=1, max_size=5))
def test_whatever_was_seen_before_a_second_look_writes_nothing(sights: list[Any]) -> None:
    """A patch says all there is to say, and what it makes of the status can be read back."""
    status = managed(status={"usedBy": [CLAIM]}).status
    for number, (backend, said, endpoints) in enumerate(sights):
        now, facts = NOW + timedelta(minutes=number), healthy(reading=said)
        before = backend.model_copy(update={"status": status})
        after = written(before, observed(before, facts, endpoints, now))
        assert observed(after, facts, endpoints, now + timedelta(seconds=15)) is None
        assert [one.manifest() for one in after.status.used_by] == [CLAIM]
        status = after.status


def test_conditions_that_have_no_place_any_more_go(ready: KVCacheBackend) -> None:
    alone = managed(leader={"electionBackend": "None"}).model_copy(update={"status": ready.status})
    after = written(alone, observed(alone, healthy(), ENDPOINTS, LATER))
    assert {one.type for one in after.status.conditions} == {one.type for one in ready.status.conditions} - {
        "ElectionObserved"
    }


def test_a_transition_time_moves_with_the_status_only(ready: KVCacheBackend) -> None:
    def times(backend: KVCacheBackend) -> dict[str, str]:
        return {one.type: one.last_transition_time for one in backend.status.conditions}

    failed = written(ready, observed(ready, healthy(reading=reading(scrape=MasterFailure("x"))), ENDPOINTS, LATER))
    moved = {kind for kind, time in times(failed).items() if time != times(ready)[kind]}
    assert moved == {"CapacityObserved"}


def test_a_held_deletion_says_who_holds_it_and_goes_on_observing(ready: KVCacheBackend) -> None:
    metadata = ready.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    deleted = ready.model_copy(update={"metadata": metadata})
    after = written(deleted, observed(deleted, healthy(), ENDPOINTS, LATER))
    assert after.status.phase == "Deleting"
    assert after.status.phase_message == "in use by KVCachePool/p; delete them first"
    assert after.status.capacity is not None


def test_a_deletion_in_progress_says_what_it_waits_for() -> None:
    deleted = managed(status={"phase": "Ready"})
    after = written(deleted, leaving(deleted, "Deployment pools/dram-leader", NOW))
    assert (after.status.phase, after.status.phase_message) == (
        "Deleting",
        "waiting for Deployment pools/dram-leader to be gone",
    )
    assert [(one.type, one.status) for one in after.status.conditions] == [("Deletable", "True")]
    assert leaving(after, "Deployment pools/dram-leader", LATER) is None
