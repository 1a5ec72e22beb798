"""What the number of a message means."""

from __future__ import annotations

import pytest

from inferencecache.subscriber.sequence import MAX_AHEAD, Meaning, Sequence


@pytest.mark.parametrize(
    ("numbers", "meanings"),
    [
        ([0, 1, 2], [Meaning.FIRST, Meaning.NEXT, Meaning.NEXT]),
        ([7, 8], [Meaning.FIRST, Meaning.NEXT]),
        ([0, 2, 3], [Meaning.FIRST, Meaning.GAP, Meaning.NEXT]),
        ([5, 0, 1], [Meaning.FIRST, Meaning.RESTART, Meaning.NEXT]),
        ([0, 0, 1], [Meaning.FIRST, Meaning.RESTART, Meaning.NEXT]),
        ([5, 3, 5], [Meaning.FIRST, Meaning.RESTART, Meaning.GAP]),
    ],
)
def test_numbers_in_turn(numbers: list[int], meanings: list[Meaning]) -> None:
    sequence = Sequence()
    judged = []
    for number in numbers:
        judged.append(sequence.judge(number))
        sequence.applied(number)
    assert judged == meanings


def test_what_a_replay_brought_already_is_no_restart() -> None:
    sequence = Sequence()
    sequence.judge(0)
    sequence.applied(0)
    assert sequence.judge(3) is Meaning.GAP
    for number in range(1, 6):  # the replay ran ahead of the stream
        sequence.applied(number)
    assert [sequence.judge(number) for number in (4, 5, 6)] == [Meaning.REPLAYED, Meaning.REPLAYED, Meaning.NEXT]


def test_a_restart_is_noticed_while_replayed_numbers_are_met() -> None:
    sequence = Sequence()
    sequence.judge(3)
    for number in range(6):
        sequence.applied(number)
    assert sequence.judge(2) is Meaning.RESTART
    assert sequence.due is None


def test_after_a_loss_everything_begins_anew() -> None:
    sequence = Sequence()
    sequence.judge(4)
    sequence.applied(4)
    sequence.forget()
    assert sequence.judge(2) is Meaning.FIRST


@pytest.mark.parametrize(("behind", "meaning"), [(MAX_AHEAD, Meaning.REPLAYED), (MAX_AHEAD + 1, Meaning.RESTART)])
def test_a_replay_cannot_have_run_ahead_of_what_waits_on_the_way(behind: int, meaning: Meaning) -> None:
    sequence = Sequence()
    due = 2 * MAX_AHEAD
    sequence.applied(due - 1)
    assert sequence.judge(due - behind) is meaning
