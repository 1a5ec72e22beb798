"""What is done in turns with other work ends as it would if done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.index import Code, Query, Scope, matching, views
from inferencecache.server.index import turns as turns_module
from tests.unit.server.index.reports import HALF, NOW_US, SCOPE, Filled, blocks, chain, exact, report, snapshot_of
from tests.unit.server.index.rules import MINUTE

T = TypeVar("T")

B = blocks(*range(9))


def walked(turns: Generator[None, None, T]) -> tuple[int, T]:
    """How many turns were yielded, and the result."""
    number = 0
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return number, end.value
        number += 1


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 40), st.integers(1, 4)), max_size=6),
    st.lists(st.sampled_from([*B, b"nobody has it"]), min_size=1, max_size=20),
    st.integers(-8, 64),
)
def test_turns_change_nothing(held: list[tuple[int, int, int, int]], asked: list[bytes], tokens: int) -> None:
    filled = Filled(
        *(
            report(f"r{number}", B[start:end], ago=age * MINUTE, tier=tier)
            for number, (start, end, age, tier) in enumerate(held)
            if start < end
        )
    )
    query = chain(asked, tokens=tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "TURN", 3)
        _, outcome = walked(filled.index.match_in_turns(query, NOW_US))
    assert outcome == filled.index.match(query, NOW_US)


def test_a_turn_is_bounded_whether_the_blocks_or_the_replicas_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "TURN", 4)
    monkeypatch.setattr(matching, "REPLICA", 1)
    long = Filled(report("r", B[:8]))
    assert walked(long.index.match_in_turns(chain(B[:8]), NOW_US))[0] == 2
    wide = Filled(*(report(f"r{number}", B[:1]) for number in range(8)))
    assert walked(wide.index.match_in_turns(chain(B[:2]), NOW_US))[0] == 4


@pytest.mark.parametrize("query", [exact(B[0]), exact(b"nobody has it"), chain(B[:3])], ids=["exact", "warm", "chain"])
def test_many_replicas_are_asked_and_ranked_in_turns_as_if_at_once(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = Filled(
        *(
            report(f"r{number * 7 % 20:02}", B[: 1 + number % 4], ago=number * MINUTE, stats=HALF)
            for number in range(20)
        )
    )
    at_once = filled.index.match(query, NOW_US)
    assert len(at_once.scores) >= 5
    monkeypatch.setattr(turns_module, "SLICE", 3)
    taken, in_turns = walked(filled.index.match_in_turns(query, NOW_US))
    assert taken >= (len(at_once.scores) - 1) // 3
    assert in_turns == at_once


@given(st.lists(st.integers(0, len(B)), min_size=1, max_size=6), st.integers(1, 8))
def test_uses_are_counted_in_turns_as_if_at_once(held: list[int], turn: int) -> None:
    def filled() -> Filled:
        lanes = Filled(*(report(f"r{number}", B[:end]) for number, end in enumerate(held) if end))
        lanes.rules.lfu.add("team")
        return lanes

    def uses(lanes: Filled) -> dict[str, dict[bytes, int]]:
        scope = lanes.index._tree.scope(SCOPE)
        return {} if scope is None else {name: dict(lane.credits) for name, lane in scope.partitions[""].lanes.items()}

    at_once, by_turns = filled(), filled()
    query = chain(B)
    delivered = at_once.index.match(query, NOW_US).scores
    at_once.index.credit(query, delivered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "TURN", turn)
        patch.setattr(matching, "REPLICA", 0)
        taken = sum(1 for _ in by_turns.index.credit_in_turns(query, delivered))
    assert uses(by_turns) == uses(at_once)
    assert taken >= sum(held) // (2 * turn) - 1, "no turn counts twice as many as it may"


def test_a_replica_that_goes_while_uses_are_counted_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "TURN", 2)
    filled = Filled(*(report(name, B) for name in "ab"))
    filled.rules.lfu.add("team")
    turns = filled.index.credit_in_turns(chain(B), filled.index.match(chain(B), NOW_US).scores)
    next(turns)
    filled.clear("a")
    filled.ingest(report("a", B))
    filled.clear("b")
    assert sum(1 for _ in turns) >= 3
    (lane,) = filled.index._tree.scope(SCOPE).partitions[""].lanes.values()  # type: ignore[union-attr]
    assert dict(lane.credits) == dict.fromkeys(B[2:], 1)


def test_replicas_and_the_whole_model_may_go_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "TURN", 2)
    filled = Filled(*(report(name, B) for name in "abc"))
    turns = filled.index.match_in_turns(chain(B), NOW_US)
    next(turns)
    for name in "abc":
        filled.clear(name)
    assert walked(turns)[1].code is Code.PREFIX_MATCH
    assert filled.index.match(chain(B), NOW_US).code is Code.NONE


@pytest.mark.parametrize(
    "query",
    [
        exact(B[0]),
        chain(B, tokens=[1]),
        chain(B, scope=Scope("", "model", "vllm")),
        chain(B, adapter="x"),
        chain(B, scope=SCOPE._replace(model="?")),
    ],
)
def test_what_has_no_chain_to_walk_is_answered_at_once(query: object) -> None:
    filled = Filled(report("r", B), report("r", B, scope=Scope("", "model", "vllm")))
    assert walked(filled.index.match_in_turns(query, NOW_US)) == (0, filled.index.match(query, NOW_US))  # type: ignore[arg-type]


def test_only_many_blocks_of_many_replicas_take_turns() -> None:
    filled = Filled(*(report(f"r{number}", B[:1]) for number in range(8)))
    assert not filled.index.takes_turns(chain(B[:1] * 2048))
    assert filled.index.takes_turns(chain(B[:1] * 2049))
    assert not filled.index.takes_turns(chain(B[:1] * 100_000, adapter="x"))


@pytest.mark.parametrize("replicas", [512, 513])
def test_very_many_replicas_take_turns_whatever_is_asked(replicas: int) -> None:
    holders = Filled(*(report(f"r{number}", B[:1]) for number in range(replicas)))
    assert {holders.index.takes_turns(query) for query in (chain(B[:1]), exact(B[0]))} == {replicas > 512}
    candidates = Filled(report("r", B[:1]), *(report(f"r{number}", stats=HALF) for number in range(replicas)))
    assert [candidates.index.takes_turns(query) for query in (chain(B[:1]), exact(B[0]))] == [False, replicas > 512]


def many_models() -> Filled:
    return Filled(
        *(
            report(f"r{number % 3}", B[: 1 + number % 4], scope=SCOPE._replace(model=f"m{number}"), stats=HALF)
            for number in range(40)
        ),
        *(report("r", B[:2], scope=SCOPE._replace(tenant=f"t{number}")) for number in range(20)),
    )


def test_a_snapshot_gives_others_their_turn_after_so_many_replicas_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = many_models()
    at_once = snapshot_of(filled.index)
    monkeypatch.setattr(views, "SNAPSHOT_TURN", 7)
    turns, in_turns = walked(filled.index.snapshot())
    assert turns >= (40 + 40 + 20) // 7
    assert in_turns == at_once


def test_a_snapshot_adds_up_and_names_nobody_who_has_gone_whatever_happens_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "SNAPSHOT_TURN", 1)
    filled = many_models()
    turns = filled.index.snapshot()
    next(turns)
    for number in range(40):
        filled.index.clear(tenant="team", model=f"m{number}", replica_id="r1")
    for number in range(20):
        filled.index.clear(tenant=f"t{number}", model="model", replica_id="r")
    filled.ingest(report("new", B[:1]))
    _, snapshot = walked(turns)
    assert snapshot.total_prefixes == sum(row.index_entries for row in snapshot.tenants)
    assert {row.replica_id for row in snapshot.replicas if row.tenant == "team"} == {"r0", "r2", "new"}
    _, after = walked(filled.index.snapshot())
    assert after == snapshot_of(filled.index)
