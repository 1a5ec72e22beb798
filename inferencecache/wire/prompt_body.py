"""The language of a prompt template's body, for the server that renders it and the controller that checks it.

It is as small as it can be, so that equal inputs give equal bytes: `{{ name }}` stands for the variable of that slot,
`{{{{` for two braces, and everything else for itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple


class BodyError(ValueError):
    """A body is not of the language, or names a slot that is not declared."""


class Text(NamedTuple):
    """A part of a body that stands for itself."""

    text: str


class Placeholder(NamedTuple):
    """A part of a body that stands for a variable."""

    slot: str


def parts_of(body: str, slots: Collection[str]) -> tuple[Text | Placeholder, ...]:
    """The parts of a body, in order.

    Raises:
        BodyError: a placeholder does not end, or names none of `slots`.
    """
    parts = tuple(_parts(body))
    for part in parts:
        if isinstance(part, Placeholder) and part.slot not in slots:
            raise BodyError(f"{{{{ {part.slot} }}}} names none of its slots: {', '.join(sorted(slots)) or 'none'}")
    return parts


_TOKEN: Final = re.compile(r"\{\{\{\{|\{\{(?P<slot>[^{}]*)\}\}|\{\{")


def _parts(body: str) -> Iterator[Text | Placeholder]:
    at = 0
    for token in _TOKEN.finditer(body):
        yield Text(body[at : token.start()])
        at = token.end()
        if token.group() == "{{{{":
            yield Text("{{")
        elif slot := (token.group("slot") or "").strip():
            yield Placeholder(slot)
        else:
            raise BodyError(f"the placeholder at character {token.start()} does not end or has no name")
    yield Text(body[at:])
