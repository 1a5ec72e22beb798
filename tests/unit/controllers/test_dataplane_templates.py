"""PromptTemplates: revisions, the document and the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inferencecache.api.prompttemplate import PromptTemplate
from inferencecache.controllers.templates.document import revision_of, templates_document
from inferencecache.controllers.templates.status import template_status
from inferencecache.kube.resource import Key
from inferencecache.server.templates import Rendered, TemplateStore, parse
from inferencecache.wire.limits import LARGEST_DOCUMENT
from inferencecache.wire.v1alpha1.inferencecache_pb2 import RenderTemplateRequest

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
SLOTS = [{"name": "system", "type": "Stable"}, {"name": "q", "type": "Mutable", "required": True}]


def template(
    body: str = "{{ system }} {{ q }}",
    name: str = "chat",
    *,
    slots: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
    generation: int = 1,
    age: str = "2026-01-01T00:00:00Z",
) -> PromptTemplate:
    metadata = {"name": name, "namespace": "a", "generation": generation, "creationTimestamp": age}
    spec = {"body": body, "slots": SLOTS if slots is None else slots}
    return PromptTemplate.decode({"metadata": metadata, "spec": spec, "status": status or {}})


def status_of(this: PromptTemplate, failure: str = "") -> dict[str, Any]:
    status = template_status(this, templates_document([this]), failure, NOW)
    assert status is not None
    return status


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (template(name="other", generation=9), True),
        (template(slots=[{**SLOTS[0], "description": "who speaks", "required": False}, SLOTS[1]]), True),
        (template("{{ system }}  {{ q }}"), False),
        (template(slots=[SLOTS[0], {**SLOTS[1], "required": False}]), False),
        (template(slots=[SLOTS[0], {**SLOTS[1], "type": "Stable"}]), False),
    ],
    ids=["name", "description", "body", "required", "type"],
)
def test_a_revision_changes_exactly_when_prompts_may(other: PromptTemplate, same: bool) -> None:
    assert (revision_of(template()) == revision_of(other)) is same


def test_a_revision_is_the_same_in_every_process() -> None:
    assert revision_of(template("x", slots=[])) == "54bf1662192e9e8e"


def test_the_server_renders_what_it_is_told_and_answers_with_the_revision() -> None:
    store = TemplateStore()
    assert store.replace(parse(templates_document([template()]).document)) == []
    answer = store.render(
        RenderTemplateRequest(template_ref="a/chat", tenant_id="a", variables={"system": "Be brief.", "q": "Why?"})
    )
    assert isinstance(answer, Rendered)
    assert (answer.prompt, answer.stable, answer.revision) == ("Be brief. Why?", "Be brief. ", revision_of(template()))


def test_a_template_that_cannot_be_rendered_is_not_pushed_and_told_why() -> None:
    broken = template("{{ who }}")
    assert parse(templates_document([broken, template(name="fine")]).document).templates[0].name == "fine"
    status = status_of(broken)
    assert conditions(status) == {"Accepted": ("False", "InvalidBody"), "Ready": ("False", "NotAccepted")}
    assert "{{ who }} names none of its slots: q, system" in status["conditions"][0]["message"]
    assert status["templateRevision"] == revision_of(broken)


def test_of_too_long_templates_the_young_ones_are_left_out() -> None:
    half = "x" * (LARGEST_DOCUMENT // 2 - 200)
    old, young = template(half, "z"), template(half, "b", age="2026-02-02T00:00:00Z")
    middle = template(half, "c", age="2026-01-02T00:00:00Z")
    built = templates_document([young, middle, old])
    assert built.left_out == {Key("a", "b")}
    assert [one.name for one in parse(built.document).templates] == ["c", "z"]
    status = template_status(young, built, "", NOW)
    assert status is not None
    assert conditions(status) == {"Accepted": ("False", "DocumentFull"), "Ready": ("False", "NotAccepted")}


def test_a_pushed_template_is_ready_with_its_generation() -> None:
    status = status_of(template(generation=3))
    assert conditions(status) == {"Accepted": ("True", "Accepted"), "Ready": ("True", "Served")}
    assert status["observedGeneration"] == 3
    assert {one["observedGeneration"] for one in status["conditions"]} == {3}


def test_a_template_that_could_not_be_pushed_is_not_ready() -> None:
    status = status_of(template(), "no answer within 5 s")
    assert conditions(status) == {"Accepted": ("True", "Accepted"), "Ready": ("False", "PushFailed")}
    assert "no answer within 5 s" in status["conditions"][1]["message"]


def test_a_failing_push_takes_nothing_back_from_what_the_server_was_told() -> None:
    served = status_of(template())
    same = template(status=served)
    assert template_status(same, templates_document([same]), "down", NOW + timedelta(hours=1)) is None
    changed = template("{{ q }}", status=served, generation=2)
    assert conditions(status_of(changed, "down"))["Ready"] == ("False", "PushFailed")


def test_what_is_said_already_is_not_said_again() -> None:
    same = template(status=status_of(template()))
    assert template_status(same, templates_document([same]), "", NOW + timedelta(hours=1)) is None
