"""The language of prompt templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.wire.prompt_body import BodyError, Placeholder, Text, parts_of

SLOTS = {"a", "b c"}


def written(parts: tuple[Text | Placeholder, ...]) -> str:
    """A body that means these parts."""
    return "".join(
        part.text.replace("{{", "{{{{") if isinstance(part, Text) else f"{{{{ {part.slot} }}}}" for part in parts
    )


@given(st.text("{} abc\n", max_size=40))
def test_any_text_is_a_body_or_is_refused_and_what_it_means_can_be_written_again(body: str) -> None:
    try:
        parts = parts_of(body, SLOTS)
    except BodyError:
        return
    meaning = merged(parts)
    assert merged(parts_of(written(parts), SLOTS)) == meaning
    assert {part.slot for part in parts if isinstance(part, Placeholder)} <= SLOTS


def merged(parts: tuple[Text | Placeholder, ...]) -> list[str | tuple[str]]:
    """The parts with texts side by side joined: a text as itself, a placeholder as a tuple."""
    found: list[str | tuple[str]] = []
    for part in parts:
        if isinstance(part, Placeholder):
            found.append((part.slot,))
        elif found and isinstance(found[-1], str):
            found[-1] += part.text
        elif part.text:
            found.append(part.text)
    return found


@given(st.text(st.characters(exclude_characters="{"), max_size=60))
def test_text_without_braces_stands_for_itself(body: str) -> None:
    assert "".join(part.text for part in parts_of(body, ()) if isinstance(part, Text)) == body


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{{ a", "at character 0 does not end or has no name"),
        ("x {{ }}", "at character 2 does not end or has no name"),
        ("{{ d }}", r"\{\{ d \}\} names none of its slots: a, b c"),
        ("{{ A }}", "names none"),
    ],
)
def test_a_refusal_says_where_and_why(body: str, why: str) -> None:
    with pytest.raises(BodyError, match=why):
        parts_of(body, SLOTS)
