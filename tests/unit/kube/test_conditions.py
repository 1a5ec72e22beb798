"""A condition that says the same again is the same value, so that no write follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from inferencecache.kube.conditions import find_condition, is_true, remove_condition, set_condition, timestamp

EARLY, LATE = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=UTC)


def ready(status: Any, now: datetime, *, message: str = "", before: Any = ()) -> list[dict[str, Any]]:
    return set_condition(before, "Ready", status, reason="Because", message=message, observed_generation=3, now=now)


def test_a_new_condition_is_complete() -> None:
    assert ready("True", EARLY) == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Because",
            "message": "",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ]


def test_saying_it_again_later_changes_nothing() -> None:
    before = ready("True", EARLY)
    assert ready("True", LATE, before=before) == before


def test_a_new_message_is_no_transition_and_a_new_status_is_one() -> None:
    before = ready("True", EARLY)
    (reworded,) = ready("True", LATE, message="words", before=before)
    assert (reworded["message"], reworded["lastTransitionTime"]) == ("words", "2026-01-01T12:00:00Z")
    (flipped,) = ready("False", LATE, before=before)
    assert flipped["lastTransitionTime"] == "2026-01-01T13:00:00Z"
    assert before[0]["status"] == "True"  # the argument is left alone


def test_others_keep_their_place() -> None:
    before: list[dict[str, Any]] = [{"type": "A", "x": 1}, *ready("True", EARLY), {"type": "B"}]
    after = ready("False", LATE, before=before)
    assert [one["type"] for one in after] == ["A", "Ready", "B"]
    assert after[0] == {"type": "A", "x": 1}
    assert [one["type"] for one in remove_condition(after, "Ready")] == ["A", "B"]


def test_looking_up() -> None:
    assert is_true(ready("True", EARLY), "Ready")
    assert not is_true(ready("Unknown", EARLY), "Ready")
    assert not is_true([], "Ready")
    assert find_condition([], "Ready") is None


def test_timestamps_are_utc_seconds_and_need_a_zone() -> None:
    assert timestamp(datetime(2026, 1, 1, 1, 2, 3, 999, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31T23:02:03Z"
    with pytest.raises(ValueError, match="time zone"):
        timestamp(datetime(2026, 1, 1))
