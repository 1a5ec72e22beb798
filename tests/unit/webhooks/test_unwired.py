"""Notes about unwired Pods: found once, by the Pod they are about, and never without bound (decision A12)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from inferencecache.kube.kinds import Pod, PodMeta
from inferencecache.webhooks.unwired import UnwiredMemo


def _note(memo: UnwiredMemo, name: str = "", generate_name: str = "", message: str = "why", **labels: str) -> None:
    memo.note(
        namespace="ns",
        name=name,
        generate_name=generate_name,
        labels=labels,
        reason="no_endpoint",
        message=message,
        backend="ns/kv",
    )


def _pod(**meta: Any) -> Pod:
    return Pod(metadata=PodMeta(namespace="ns", **meta))


def test_a_note_is_taken_once_by_its_pod() -> None:
    memo = UnwiredMemo()
    _note(memo, name="p")
    assert memo.take(_pod(name="q")) is None
    note = memo.take(_pod(name="p"))
    assert note is not None
    assert (note.reason, note.backend) == ("no_endpoint", "ns/kv")
    assert memo.take(_pod(name="p")) is None


def test_pods_of_one_controller_take_one_note_each() -> None:
    memo = UnwiredMemo()
    _note(memo, generate_name="llm-", app="a")
    _note(memo, generate_name="llm-", app="a")
    taken = [memo.take(_pod(name=f"llm-{i}", generate_name="llm-", labels={"app": "a"})) for i in range(3)]
    assert [note is not None for note in taken] == [True, True, False]


def test_a_named_pod_with_a_generate_name_is_found_by_its_name() -> None:
    memo = UnwiredMemo()
    _note(memo, name="llm-x", generate_name="llm-", message="x")
    _note(memo, name="llm-y", generate_name="llm-", message="y")
    note = memo.take(_pod(name="llm-y", generate_name="llm-"))
    assert note is not None
    assert note.message == "y"


def test_notes_are_bounded_in_number_and_time() -> None:
    now = [0.0]
    memo = UnwiredMemo(capacity=3, lifetime=timedelta(seconds=10), clock=lambda: now[0])
    for index in range(5):
        _note(memo, name=f"p{index}")
    assert len(memo) == 3
    assert memo.take(_pod(name="p0")) is None
    now[0] = 10.0
    assert memo.take(_pod(name="p4")) is None
    assert len(memo) == 0


def test_a_pod_without_a_name_leaves_no_note() -> None:
    memo = UnwiredMemo()
    _note(memo)
    assert len(memo) == 0
