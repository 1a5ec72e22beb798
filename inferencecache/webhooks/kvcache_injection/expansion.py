"""`$(NAME)` in a container's command, args and variables, resolved the way the kubelet does before anything starts.

Only literal variables of the container itself are known while a Pod is admitted. A reference to anything else, a Secret
or a field of the Pod, stays as it is written. So does what would become longer than any program can be given: a few
variables, each of them twice the one before, would fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

LONGEST: Final = 2 << 20
"""Characters of all variables, and of all words. Linux gives a program no more bytes of them together, as a rule."""

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]{0,500}+)\)")  # longer names nobody has, and each `$(` looks for its end


def literal_variables(env: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The variables whose values are known; a variable may refer to those before it."""
    known: dict[str, str] = {}
    room = LONGEST
    for entry in env:
        name = entry.get("name", "")
        value = None if entry.get("valueFrom") else _expanded(entry.get("value") or "", known, room)
        if value is None:
            known.pop(name, None)
        else:
            known[name] = value
            room -= len(value)
    return known


def expand(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The words as the program gets them."""
    expanded = []
    room = LONGEST
    for word in words:
        given = _expanded(word, variables, room)
        expanded.append(word if given is None else given)
        room -= len(expanded[-1])
    return expanded


def _expanded(word: str, variables: Mapping[str, str], room: int) -> str | None:
    """The word with its references resolved; None if there is no room for it."""
    parts: list[str] = []
    at = 0
    room -= len(word)
    for found in _REFERENCE.finditer(word):
        value = "$" if found[0] == "$$" else variables.get(found[1], found[0])
        parts += word[at : found.start()], value
        at = found.end()
        room -= len(value)
        if room < 0:
            return None
    return "".join((*parts, word[at:])) if parts else word


def literally(word: str) -> str:
    """How to write a word so that the program gets exactly this one."""
    return word.replace("$", "$$")
