from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.server.templates import (
    MAX_PROMPT_BYTES,
    NotRendered,
    Rendered,
    Slot,
    Template,
    TemplatesDocument,
    TemplatesError,
    TemplateStore,
    parse,
)
from inferencecache.wire.limits import LARGEST_DOCUMENT
from inferencecache.wire.v1alpha1.inferencecache_pb2 import RenderTemplateRequest

SYSTEM, QUESTION = Slot("system", "Stable"), Slot("question", "Mutable", required=True)


def render(
    body: str, *slots: Slot, ref: str = "t/chat", tenant: str = "t", revision: str = "7", **variables: str
) -> Rendered | NotRendered:
    store = TemplateStore()
    store.replace(TemplatesDocument(1, [Template("t", "chat", body, list(slots), revision)]))
    return store.render(RenderTemplateRequest(template_ref=ref, tenant_id=tenant, variables=variables))


@pytest.mark.parametrize(
    ("body", "variables", "prompt"),
    [
        ("plain", {}, "plain"),
        ("{{ system }}: {{question}}", {"system": "Be brief", "question": "Why?"}, "Be brief: Why?"),
        ("{{question}}{{ question }}", {"question": "x"}, "xx"),
        ("{{\tquestion\n}}", {"question": "x"}, "x"),
        ("[{{ system }}]", {}, "[]"),
        ("{{{{ question }}", {}, "{{ question }}"),
        ("{{{{{{ question }}", {"question": "x"}, "{{x"),
        ('{"a": {"b": 1}}', {}, '{"a": {"b": 1}}'),
        ("{ question }", {}, "{ question }"),
        ("{{ question }}}}", {"question": "x"}, "x}}"),
        ("{{ question }}", {"question": "{{ system }}"}, "{{ system }}"),
        ("{{ question }}", {"question": "{{{{"}, "{{{{"),
        ("é{{ question }}", {"question": "漢"}, "é漢"),
    ],
)
def test_the_language(body: str, variables: dict[str, str], prompt: str) -> None:
    answer = render(body, SYSTEM, Slot("question", "Mutable"), **variables)
    assert isinstance(answer, Rendered)
    assert (answer.prompt, answer.revision) == (prompt, "7")


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        pytest.param("{{ question }}", {}, id="a required variable is missing"),
        pytest.param("plain", {}, id="required although the body does not use it"),
        pytest.param("{{ question }}", {"question": "x", "qestion": "y"}, id="a variable of no slot"),
        pytest.param("{{ other }}", {"question": "x"}, id="a placeholder of no slot"),
        pytest.param("{{ question", {"question": "x"}, id="a placeholder without end"),
        pytest.param("{{ }}", {"question": "x"}, id="a placeholder without a name"),
        pytest.param("{{ a { b }}", {"question": "x"}, id="a placeholder with a brace in it"),
        pytest.param("{{ question }}", {"question": "x" * (MAX_PROMPT_BYTES + 1)}, id="too long a prompt"),
    ],
)
def test_what_cannot_be_rendered_gives_no_prompt(body: str, variables: dict[str, str]) -> None:
    assert render(body, SYSTEM, QUESTION, **variables) == NotRendered("RENDER_ERROR", "7")


@pytest.mark.parametrize(
    ("ref", "tenant"),
    [("t/other", "t"), ("chat", "t"), ("", ""), ("/chat", ""), ("t/chat", "u"), ("t/chat", ""), ("u/chat", "u")],
)
def test_a_tenant_finds_its_own_templates_only(ref: str, tenant: str) -> None:
    assert render("x", ref=ref, tenant=tenant) == NotRendered("TEMPLATE_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "stable"),
    [
        ("{{ system }} {{ question }} end", "sys "),
        ("{{ question }}{{ system }}", ""),
        ("plain {{ system }}", "plain sys"),
        ("{{{{ {{ system }}{{ question }}", "{{ sys"),
    ],
)
def test_the_stable_part_ends_where_the_first_mutable_slot_begins(body: str, stable: str) -> None:
    answer = render(body, SYSTEM, QUESTION, system="sys", question="why")
    assert isinstance(answer, Rendered)
    assert answer.stable == stable
    assert answer.prompt.startswith(stable)


@given(st.text(st.characters(exclude_characters="{}", codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_a_value_appears_as_it_is_between_what_stands_for_itself(around: str, value: str) -> None:
    answer = render(around + "{{ question }}" + around, QUESTION, question=value)
    assert isinstance(answer, Rendered)
    assert answer.prompt == around + value + around


@given(st.text("{} aq"))
def test_any_body_renders_or_is_an_error(body: str) -> None:
    answer = render(body, Slot("q", "Stable"), Slot("a", "Mutable"), q="1")
    assert isinstance(answer, Rendered) or answer.reason == "RENDER_ERROR"


def test_a_hostile_body_takes_no_longer_than_its_length() -> None:
    """A search that tries every split of the blanks would take hours here."""
    assert render("{{" + " " * 500_000) == NotRendered("RENDER_ERROR", "7")
    assert render("{{ a " * 100_000) == NotRendered("RENDER_ERROR", "7")


def test_without_a_revision_one_follows_from_what_the_prompt_depends_on() -> None:
    def revision(body: str, *slots: Slot) -> str:
        return render(body, *slots, revision="").revision

    assert revision("a", SYSTEM)
    assert revision("a", SYSTEM) == revision("a", SYSTEM)
    assert len({revision("a", SYSTEM), revision("b", SYSTEM), revision("a"), revision("a", QUESTION)}) == 4


def test_a_broken_template_does_not_keep_the_others_from_being_used() -> None:
    store = TemplateStore()
    complaints = store.replace(
        TemplatesDocument(1, [Template("t", "broken", "{{ x }}"), Template("t", "whole", "fine")])
    )
    assert len(complaints) == 1
    assert complaints[0].startswith("t/broken: {{ x }} names none of its slots")
    whole = store.render(RenderTemplateRequest(template_ref="t/whole", tenant_id="t"))
    assert isinstance(whole, Rendered)
    assert whole.prompt == "fine"
    broken = store.render(RenderTemplateRequest(template_ref="t/broken", tenant_id="t"))
    assert isinstance(broken, NotRendered)
    assert broken.reason == "RENDER_ERROR"


def test_a_push_takes_the_place_of_all_templates() -> None:
    store = TemplateStore()
    store.replace(TemplatesDocument(1, [Template("t", "old", "x")]))
    store.replace(TemplatesDocument(1, [Template("t", "new", "x")]))
    old, new = (store.render(RenderTemplateRequest(template_ref=ref, tenant_id="t")) for ref in ("t/old", "t/new"))
    assert old == NotRendered("TEMPLATE_NOT_FOUND")
    assert isinstance(new, Rendered)


def test_a_document_carries_what_a_prompttemplate_says() -> None:
    slots = [{"name": "q", "type": "Mutable", "required": True}, {"name": "s", "type": "Stable"}]
    row = {"namespace": "t", "name": "n", "body": "b", "slots": slots, "revision": "3", "modelID": "m"}
    assert parse(json.dumps({"version": 1, "templates": [row]}).encode()) == TemplatesDocument(
        1, [Template("t", "n", "b", [Slot("q", "Mutable", True), Slot("s", "Stable")], "3", "m")]
    )


def template(**fields: Any) -> bytes:
    return json.dumps({"version": 1, "templates": [{"namespace": "t", "name": "n", "body": "b"} | fields]}).encode()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "decode templates"),
        (b'{"templates":[]}', "version"),
        (b'{"version":2,"templates":[]}', "unsupported templates version 2"),
        (b'{"version":1,"templates":[],"x":1}', "x"),
        (template(body=None), "body"),
        (template(slots=[{"name": "s"}]), "type"),
        (template(slots=[{"name": "s", "type": "Fixed"}]), "Fixed"),
        (template(description="d"), "description"),
        (template() + b"x", "decode templates"),
        (b" " * (LARGEST_DOCUMENT + 1), "more than"),
        (b"[" * 5000, "decode templates"),
        (b'{"version":1,"templates":[{"namespace":"\xff"}]}', "decode templates"),
    ],
)
def test_a_document_that_cannot_be_used_is_refused_with_the_field(body: bytes, complaint: str) -> None:
    with pytest.raises(TemplatesError, match=complaint):
        parse(body)
