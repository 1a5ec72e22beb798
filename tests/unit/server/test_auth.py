"""Who may call (spec 06 §4.5): the verdicts, what is remembered, and who may report for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from inferencecache.server.auth import (
    MEMORY_SECONDS,
    MEMORY_SIZE,
    Authenticator,
    Review,
    ReviewUnavailable,
    any_service_account,
    bearer_token,
    namespace_of,
)
from inferencecache.server.ingestion import Ingestion, IngestionRefused

CONTROLLER = "system:serviceaccount:inference-cache-system:inference-cache-controller-manager"


class Reviewer:
    """Knows some tokens, and counts what it is asked."""

    def __init__(self) -> None:
        self.users = {"good": CONTROLLER, "stranger": "system:serviceaccount:other:default"}
        self.down = False
        self.asked: list[tuple[str, Sequence[str]]] = []

    async def review(self, token: str, audiences: Sequence[str]) -> Review:
        self.asked.append((token, tuple(audiences)))
        await asyncio.sleep(0)
        if self.down:
            raise ReviewUnavailable("no answer")
        if token not in self.users:
            return Review(False, "", "invalid bearer token")
        return Review(True, self.users[token])


class Entrance:
    """An authenticator with what stands around it."""

    def __init__(self, audience: str = "inferencecache.io/controller") -> None:
        self.reviewer = Reviewer()
        self.now = 1000.0
        self.counted: list[str] = []
        self.authenticator = Authenticator(
            self.reviewer,
            audience=audience,
            allowed=lambda username: username == CONTROLLER,
            count=self.counted.append,
            clock=lambda: self.now,
        )

    async def status(self, authorization: str) -> int:
        return (await self.authenticator.check(authorization)).status


@pytest.mark.parametrize(
    ("authorization", "status", "result", "reviews"),
    [
        ("", 401, "unauth", 0),
        ("Bearer", 401, "unauth", 0),
        ("Bearer   ", 401, "unauth", 0),
        ("Basic good", 401, "unauth", 0),
        ("good", 401, "unauth", 0),
        ("Bearer good", 200, "ok", 1),
        ("bEARER good", 200, "ok", 1),
        ("Bearer   good  ", 200, "ok", 1),
        ("Bearer unknown", 401, "unauth", 1),
        ("Bearer stranger", 403, "forbidden", 1),
    ],
)
async def test_each_caller_gets_its_verdict_and_is_counted_once(
    authorization: str, status: int, result: str, reviews: int
) -> None:
    entrance = Entrance()
    assert await entrance.status(authorization) == status
    assert entrance.counted == [result]
    assert len(entrance.reviewer.asked) == reviews


async def test_without_an_answer_nobody_enters() -> None:
    entrance = Entrance()
    entrance.reviewer.down = True
    verdict = await entrance.authenticator.check("Bearer good")
    assert (verdict.status, verdict.message) == (503, "token review unavailable")
    assert entrance.counted == ["error"]


@pytest.mark.parametrize(("audience", "asked"), [("a.io/x", ("a.io/x",)), ("", ())])
async def test_the_audience_is_asked_for_unless_it_is_empty(audience: str, asked: tuple[str, ...]) -> None:
    entrance = Entrance(audience)
    await entrance.status("Bearer good")
    assert entrance.reviewer.asked == [("good", asked)]


async def test_an_admission_is_remembered_for_thirty_seconds_even_while_the_api_server_is_down() -> None:
    entrance = Entrance()
    await entrance.status("Bearer good")
    entrance.reviewer.down = True
    entrance.now += MEMORY_SECONDS - 0.001
    assert await entrance.status("Bearer good") == 200
    entrance.now += 0.001
    assert await entrance.status("Bearer good") == 503
    assert entrance.counted == ["ok", "ok", "error"]


@pytest.mark.parametrize("token", ["unknown", "stranger"])
async def test_a_refusal_is_never_remembered(token: str) -> None:
    entrance = Entrance()
    assert await entrance.status(f"Bearer {token}") != 200
    entrance.reviewer.users[token] = CONTROLLER
    assert await entrance.status(f"Bearer {token}") == 200


async def test_no_more_than_32_admissions_are_remembered_and_the_next_to_expire_goes_first() -> None:
    entrance = Entrance()
    for number in range(MEMORY_SIZE + 1):
        entrance.reviewer.users[f"t{number}"] = CONTROLLER
        await entrance.status(f"Bearer t{number}")
        entrance.now += 0.1
    assert entrance.authenticator.recall("Bearer t0") is None
    assert entrance.authenticator.recall("Bearer t1") is not None
    assert entrance.authenticator.recall(f"Bearer t{MEMORY_SIZE}") is not None


async def test_expired_admissions_make_room_before_valid_ones() -> None:
    entrance = Entrance()
    for number in range(MEMORY_SIZE):
        entrance.reviewer.users[f"t{number}"] = CONTROLLER
    for number in range(MEMORY_SIZE - 1):
        await entrance.status(f"Bearer t{number}")
    entrance.now += MEMORY_SECONDS
    await entrance.status(f"Bearer t{MEMORY_SIZE - 1}")
    await entrance.status("Bearer good")
    assert entrance.authenticator.recall(f"Bearer t{MEMORY_SIZE - 1}") is not None
    assert entrance.authenticator.recall("Bearer good") is not None


async def test_two_entrances_share_nothing() -> None:
    first, second = Entrance(), Entrance()
    await first.status("Bearer good")
    assert second.authenticator.recall("Bearer good") is None


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer a b", "a b"), ("bearer x", "x"), ("Bearer\tx", None), ("", None), ("Token x", None)]
)
def test_the_token_of_a_header(header: str, token: str | None) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize(
    ("username", "namespace"),
    [
        ("system:serviceaccount:team-a:engine", "team-a"),
        ("system:serviceaccount:team-a:", None),
        ("system:serviceaccount::engine", None),
        ("system:serviceaccount:team-a", None),
        ("system:node:n1", None),
        ("kubernetes-admin", None),
    ],
)
def test_the_namespace_of_a_service_account(username: str, namespace: str | None) -> None:
    assert namespace_of(username) == namespace
    assert any_service_account(username) == (namespace is not None)


# -- reports ---------------------------------------------------------------------------------------------------------


def ingestion() -> Ingestion:
    reviewer = Reviewer()
    reviewer.users = {"engine": "system:serviceaccount:team-a:engine", "human": "jane"}
    return Ingestion(
        Authenticator(
            reviewer, audience="i", allowed=any_service_account, count=lambda _result: None, clock=lambda: 0.0
        )
    )


async def test_a_service_account_reports_for_its_own_namespace_only() -> None:
    reporter = await ingestion().identify("Bearer engine")
    reporter.require("team-a")
    with pytest.raises(IngestionRefused, match="'team-b'") as refused:
        reporter.require("team-b")
    assert refused.value.verdict.status == 403


@pytest.mark.parametrize(("authorization", "status"), [("", 401), ("Bearer nobody", 401), ("Bearer human", 403)])
async def test_others_may_not_report(authorization: str, status: int) -> None:
    with pytest.raises(IngestionRefused) as refused:
        await ingestion().identify(authorization)
    assert refused.value.verdict.status == status


async def test_a_known_reporter_is_recalled_without_waiting() -> None:
    guard = ingestion()
    assert guard.recall("Bearer engine") is None
    await guard.identify("Bearer engine")
    reporter = guard.recall("Bearer engine")
    assert reporter is not None
    reporter.require("team-a")
    with pytest.raises(IngestionRefused):
        guard.recall("")


async def test_unguarded_ingestion_lets_everybody_report_for_all() -> None:
    (await Ingestion().identify("")).require("any")
    reporter = Ingestion().recall("")
    assert reporter is not None
    reporter.require("any")
