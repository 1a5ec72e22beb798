"""One pass at a time per master, and one look at it for several."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from inferencecache.controllers.kvcachepool.masters import Answer, Master, MasterBusy, Masters, Question
from inferencecache.controllers.kvcachepool.pool_status import Findings
from inferencecache.controllers.kvcachepool.snapshot import Snapshot
from inferencecache.controllers.mooncake.admin import (
    AdminClient,
    LedgerEntry,
    MasterError,
    MasterFailure,
    MooncakeClients,
    MultiTenancyOff,
)
from inferencecache.controllers.mooncake.ledger import DECLARED_OFF
from inferencecache.kube.resource import Key
from tests.unit.controllers.pools import binding, pool


@dataclass
class Clock:
    """Time that a test lets pass."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Told(AdminClient):
    """A master that answers as it is told, and counts."""

    def __init__(self, answer: MasterError | None, address: str = "a:1") -> None:
        super().__init__(address, MooncakeClients(), lambda: None)
        self.answer = answer
        self.asked = 0

    async def quotas(self) -> dict[str, LedgerEntry]:
        self.asked += 1
        if self.answer is not None:
            raise self.answer
        return {}


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.master = Master(self.clock, 5.0)


def question(*, ceiling: str = "1Mi", address: str = "a:1", keeps_ledger: bool = True) -> Question:
    return Question.about(Snapshot.of([pool()], [binding(ceiling=ceiling)]), address, keeps_ledger=keeps_ledger)


ANSWER = Answer(Findings(outcome=DECLARED_OFF), {})


def test_an_answer_serves_equal_questions_for_a_while() -> None:
    world = World()
    assert world.master.answer(question()) is None
    world.master.remember(question(), ANSWER)
    world.clock.now += 4.9
    assert world.master.answer(question()) is ANSWER
    world.clock.now += 0.2
    assert world.master.answer(question()) is None


@pytest.mark.parametrize(
    "other", [question(ceiling="2Mi"), question(address="b:1"), question(keeps_ledger=False)], ids=str
)
def test_an_answer_serves_no_other_question(other: Question) -> None:
    world = World()
    world.master.remember(question(), ANSWER)
    assert world.master.answer(other) is None


def test_an_answer_ends_with_what_is_written_since() -> None:
    world = World()
    world.master.remember(question(), ANSWER)
    world.master.forget()
    assert world.master.answer(question()) is None


async def test_a_failure_is_met_once_in_a_while_for_all_questions() -> None:
    world, admin = World(), Told(MasterFailure("no answer"))
    first = await world.master.read(admin)
    world.clock.now += 4.9
    assert await world.master.read(admin) is first
    assert admin.asked == 1
    world.clock.now += 0.2
    admin.answer = None
    assert (await world.master.read(admin)).failure is None
    assert admin.asked == 2


async def test_a_failure_is_not_carried_to_another_address() -> None:
    world = World()
    await world.master.read(Told(MasterFailure("no answer")))
    assert (await world.master.read(Told(None, "b:1"))).failure is None


@pytest.mark.parametrize("answer", [None, MultiTenancyOff("off")])
async def test_an_answer_of_the_ledger_is_always_asked_for_anew(answer: MasterError | None) -> None:
    world, admin = World(), Told(answer)
    for _ in range(2):
        await world.master.read(admin)
    assert admin.asked == 2


def test_a_master_is_at_one_pass_s_disposal_and_free_again_whatever_ends_the_pass() -> None:
    masters = Masters(MooncakeClients(), wake=lambda _: None)

    def work() -> None:
        with masters.turn("one", Key("", "a")):
            with masters.turn("two", Key("", "b")):
                pass
            with masters.turn("one", Key("", "c")):
                pass

    for _ in range(2):
        with pytest.raises(MasterBusy):
            work()
    with masters.turn("one", Key("", "a")) as master:
        assert master.busy
    assert not master.busy


def test_whoever_came_in_vain_is_woken_in_the_order_of_coming_one_at_a_time() -> None:
    woken: list[str] = []
    masters = Masters(MooncakeClients(), wake=lambda key: woken.append(key.name))

    def come(*names: str) -> None:
        for name in names:
            with pytest.raises(MasterBusy), masters.turn("one", Key("", name)):
                pass

    with masters.turn("one", Key("", "a")):
        come("b", "c", "b", "d")
    assert woken == ["b"]
    with masters.turn("one", Key("", "c")):  # it was woken by something else
        come("e")
    assert woken == ["b", "d"]
    with masters.turn("two", Key("", "b")):
        pass
    assert woken == ["b", "d"]
    with masters.turn("one", Key("", "b")):
        pass
    assert woken == ["b", "d", "e"]
